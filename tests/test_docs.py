"""Every command on the course's pages works: each is run here, or its words are checked by what would read them.

run      in an empty folder, with traces of the names that the pages use
parsed   by the real parser, with the same options: it measures, or writes to the course's own folders (run in test_cli.py,
         test_class.py, test_nightly.py, test_phase4_board.py)
planned  `make -n`: each target is there, and the commands behind it
offered  the module is there, and its source offers these options: it measures, or takes long to import
known    nbgrader has this command with these options
has_extras  the package has the extras that are named
there    the files that the words name are there
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from grader import trace
from grader.frontends import cli
from grader.paths import REPOSITORY

PAGES = ["README.md", "CONTRIBUTING.md", "grader/classroom/README.md"]
PAGES += [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "docs").glob("*.md"))]


def run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    assert cli.main(words[1:]) == 0


def run_in_shell(command: str, folder: Path) -> None:
    """In a copy of the repository below the folder."""
    course = folder / "course"
    if not course.exists():
        subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", REPOSITORY, course], check=True)
    (folder / "for-students").mkdir(exist_ok=True)
    subprocess.run(["bash", "-ec", command.replace("mkdir", "mkdir -p")], cwd=course, check=True)


def parsed(command: str, folder: Path) -> None:
    assert cli.parsed(shlex.split(command)[1:]).run


def planned(command: str, folder: Path) -> None:
    make = ["make", "-n", *shlex.split(command)[1:]]
    subprocess.run(make, cwd=REPOSITORY, check=True, capture_output=True)


def offered(command: str, folder: Path) -> None:
    words = shlex.split(command)
    source = (REPOSITORY / f"{words[2].replace('.', '/')}.py").read_text(encoding="utf-8")
    assert all(f'add_argument("{word}"' in source for word in words if word.startswith("--"))


def known(command: str, folder: Path) -> None:
    from nbgrader.apps import NbGraderApp

    application, words = NbGraderApp(), shlex.split(command)[1:]
    while words[0] in application.subcommands:
        application = application.subcommands[words.pop(0)][0]()
    options = {word.partition("=")[0].lstrip("-") for word in words if word.startswith("--")}
    names = (*application.flags, *application.aliases)
    assert options <= {name for each in names for name in ([each] if isinstance(each, str) else each)}


def has_extras(command: str, folder: Path) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"pytorch-speed-course\[([\w,]+)\]", command)
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


def there(command: str, folder: Path) -> None:
    names = [word for word in shlex.split(command) if re.search(r"\.(ipynb|yml)$", word)]
    assert all((REPOSITORY / name).exists() for name in names)


# The first row that a command begins with says how it is checked; one without a row fails.
CHECKED: dict[str, Callable[[str, Path], None]] = {
    "grader labs": run,
    "grader diagnose": run,
    "grader scaffold": run,
    "grader ": parsed,
    "make ": planned,
    "nbgrader ": known,
    "python -m ": offered,
    "mkdir ": run_in_shell,
    "git archive ": run_in_shell,
    "pip install": has_extras,
    "jupyter lab": there,
    "conda ": there,
    ". .venv/bin/activate": there,
}


def blocks(page: str, language: str) -> list[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [
        block
        for name, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if name == language
    ]


def commands() -> list[tuple[str, str]]:
    """(page, command) of all shell blocks, without comments."""
    found = [(page, line) for page in PAGES for block in blocks(page, "") for line in block.splitlines()]
    return list(dict.fromkeys((page, re.sub(r"\s+#.*", "", line).strip()) for page, line in found if line.strip()))


def test_the_pages_have_commands():
    assert len(commands()) > 40 and {page for page, _ in commands()} >= {"README.md", "docs/your_own_jobs.md"}


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_works(page, command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, recorded in {"trace": "gpt_sync_stacks", "before": "gpt_input", "after": "gpt_healthy"}.items():
        shutil.copy(REPOSITORY / "data" / "traces" / f"{recorded}.json.gz", tmp_path / f"{name}.json.gz")
    if page == "docs/your_own_jobs.md" and ("rank" in command or "traces/" in command):
        ranks = REPOSITORY / "tests" / "data" / "dlrm8"
        shutil.copytree(ranks, tmp_path / "traces")
        for r in (0, 1):
            shutil.copy(ranks / f"worker{r}.json.gz", tmp_path / f"trace-rank{r}.json.gz")
    check = next((check for begins, check in CHECKED.items() if command.startswith(begins.rstrip())), None)
    assert check, f"{page}: how is this one checked? {command}"
    check(command, tmp_path)


def test_the_lines_of_python_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(REPOSITORY / "data" / "traces" / "gpt_input.json.gz", "before.json.gz")
    shutil.copy("before.json.gz", "after.json.gz")
    shown = []
    monkeypatch.setattr(trace, "explore", lambda *analyses: shown.append(analyses))
    for block in blocks("docs/your_own_jobs.md", "python"):
        exec(compile(block, "your_own_jobs.md", "exec"), {})
    assert [len(analyses) for analyses in shown] == [2]


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    to_sections = 0
    for page in (REPOSITORY / name for name in PAGES):
        for link, _, section in (
            link.partition("#") for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))
        ):
            there = page.parent / link if link else page
            assert there.exists() and (not section or section in anchors(there)), f"{page}: {link}#{section}"
            to_sections += bool(section)
    assert to_sections > 5


def test_files_that_the_pages_name_are_there():
    for page in PAGES:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:grader|tests|data|docs|notebooks|solutions)/[a-z0-9_/*]+(?:\.\w+|/))`", text):
            assert any(REPOSITORY.glob(name)), f"{page}: {name}"
