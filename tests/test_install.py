"""What a learner has outside of a checkout: the course laid down in a folder, the small install, what a child may not read of it."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader import paths
from grader.course import outline
from grader.frontends import cli, start
from grader.paths import REPOSITORY
from grader.sandbox import confine
from grader.sandbox.around import around
from tests.ranks import Plan, write

START = "notebooks/00_start_here.ipynb"
A_LAB = "labs/2a_workers/2a_workers.ipynb"


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A small course as it is in a wheel."""
    shipped = tmp_path / "site-packages" / "grader" / "shipped"
    for name in (START, A_LAB, "notebooks/figures/idea.svg"):
        (shipped / name).parent.mkdir(parents=True, exist_ok=True)
        (shipped / name).write_text(f"{name}, first edition")
    monkeypatch.setattr(paths, "SHIPPED", shipped)
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path / "site-packages")
    return shipped


def grader(*words: object) -> int:
    return cli.main([str(word) for word in words])


# ---------------------------------------------------------------- grader course


def test_it_is_laid_down_whole(course, tmp_path, capsys):
    folder = tmp_path / "my course"
    assert grader("course", folder) == 0
    said = capsys.readouterr().out
    assert f"{folder}: 3 new." in said and f"cd '{folder}' && jupyter lab" in said
    assert (folder / A_LAB).read_bytes() == (course / A_LAB).read_bytes()


def test_a_second_call_brings_what_is_missing_or_new_and_keeps_what_is_the_learners(course, tmp_path, capsys):
    grader("course", tmp_path / "mine")
    mine, figure = tmp_path / "mine", "notebooks/figures/idea.svg"
    (mine / START).write_text("my notes")
    (mine / figure).unlink()
    (course / START).write_text("second edition")
    (course / A_LAB).write_text("second edition")
    (course / "labs" / "new.ipynb").write_text("new")
    capsys.readouterr()
    grader("course", mine)
    said = capsys.readouterr().out
    assert "2 new, 1 brought up to date, 1 yours." in said and "newer ones of these" in said and f"  {START}" in said
    assert (mine / START).read_text() == "my notes" and (mine / figure).exists()
    assert (mine / A_LAB).read_text() == "second edition" and (mine / "labs" / "new.ipynb").exists()
    grader("course", mine)
    assert "1 yours, 3 unchanged." in capsys.readouterr().out and (mine / START).read_text() == "my notes"


def test_what_was_there_before_stays(course, tmp_path, capsys):
    (tmp_path / "mine" / "notebooks").mkdir(parents=True)
    (tmp_path / "mine" / START).symlink_to(tmp_path / "elsewhere")
    grader("course", tmp_path / "mine")
    assert (tmp_path / "mine" / START).is_symlink() and not (tmp_path / "elsewhere").exists()
    assert START in capsys.readouterr().out


def test_a_damaged_record_costs_no_work_of_a_learner(course, tmp_path):
    grader("course", tmp_path / "mine")
    (tmp_path / "mine" / START).write_text("my notes")
    (tmp_path / "mine" / paths.MARK).write_text("[")
    assert grader("course", tmp_path / "mine") == 0 and (tmp_path / "mine" / START).read_text() == "my notes"


def test_a_file_in_the_folders_place_is_said(course, tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert grader("course", tmp_path / "mine") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_checkouts_own_folders_are_refused(capsys):
    assert grader("course", paths.REPOSITORY) == 2 and "Name a different folder" in capsys.readouterr().err
    assert not (paths.REPOSITORY / paths.MARK).exists()


def test_labs_are_begun_in_the_folder_where_one_is(course, tmp_path, monkeypatch, capsys):
    grader("course", tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine" / "notebooks")
    copy = outline.start("2a_workers")
    assert copy == tmp_path / "mine" / "work" / "2a_workers" / "2a_workers.ipynb" and copy.exists()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert grader("start", "2a_workers") == 2 and "grader course FOLDER" in capsys.readouterr().err


def test_it_is_laid_down_from_a_checkout_as_well(tmp_path):
    folder = tmp_path / "mine"
    done = subprocess.run(
        [sys.executable, "-m", "grader", "course", str(folder)], capture_output=True, text=True, cwd=paths.REPOSITORY
    )
    assert not done.returncode, done.stderr
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.ipynb")}
    assert {f"labs/{stop.name}/{stop.name}.ipynb" for stop in outline.lab_stops()} < there
    assert {stop.place for phase in outline.PHASES for stop in phase.stops if isinstance(stop, outline.Lesson)} < there
    for path in folder.rglob("*.ipynb"):
        text = " ".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        links = re.findall(r"\]\(((?:\.\./)*[\w/]+\.(?:ipynb|py|svg|md))", text)
        assert not [link for link in links if not (path.parent / link).exists()], path
    assert not any("solutions" in name for name in there) and list((folder / "notebooks" / "figures").glob("*.svg"))


# ---------------------------------------------------------------- the small install

WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from grader.frontends import cli
sys.exit(cli.main({words!r}))
"""
NOT_SMALL = [
    "torch",
    "torchvision",
    "matplotlib",
    "PIL",
    "IPython",
    "ipywidgets",
    "nbformat",
    "nbgrader",
    "distributed",
]


def small(*words: str, cwd: Path = paths.REPOSITORY) -> subprocess.CompletedProcess[str]:
    """A command where only the small install is."""
    code = WITHOUT.format(missing=NOT_SMALL, words=list(words))
    environment = os.environ | {"PYTHONPATH": str(paths.REPOSITORY)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=cwd)


@pytest.mark.parametrize(
    "words", [("diagnose",), ("run",), ("try",), ("compare",), ("doctor",), ("course",), ("grade",)]
)
def test_commands_know_their_options_without_the_rest(words):
    done = small(*words, "--help")
    assert not done.returncode and "usage: grader" in done.stdout, done


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trace_is_diagnosed_without_the_rest(ranks, tmp_path):
    page = tmp_path / "page.html"
    files = [paths.DATA / "traces" / "gpt_sync_stacks.json.gz"] if ranks == 1 else write(Plan([1e3, 2e3]), tmp_path)
    done = small("diagnose", *map(str, files), "--html", str(page))
    assert not done.returncode and ("sync-bound" if ranks == 1 else "Read as ranks of one job") in done.stdout, done
    assert (
        'A picture is missing here. The package matplotlib is not installed: pip install "pytorch-speed'
        in html.unescape(page.read_text())
    )


@pytest.mark.parametrize(
    ("words", "extra"), [(("nightly",), "class"), (("demo",), "torch"), (("grade", "2a", A_LAB), "torch")]
)
def test_what_needs_more_says_in_one_line_what_to_install(words, extra, tmp_path):
    done = small(*words, cwd=tmp_path if words == ("demo",) else paths.REPOSITORY)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert f'pip install "pytorch-speed-course[{extra}]"' in done.stderr, done


# ---------------------------------------------------------------- what a child may not read


@pytest.fixture
def package(tmp_path) -> Path:
    """A Python as a wheel leaves it: what is kept from children lies inside what they must read."""
    package = tmp_path / "python" / "lib" / "grader"
    for name in ("child.py", "shipped/solutions/2a.ipynb", "data/cache.py", "data/measured/calibration.json"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    (tmp_path / "python" / "lib" / "torch").mkdir()
    (tmp_path / "python" / "lib" / "torch" / "__init__.py").touch()
    (tmp_path / "python" / "lib64").symlink_to("lib")
    (tmp_path / "python" / "shortcut").symlink_to(package / "shipped" / "solutions")
    return package


def test_a_child_reads_all_of_python_but_what_is_kept_from_it(package, tmp_path):
    if not confine.landlock_abi():
        pytest.skip("this kernel has no Landlock")
    rights = [(str(tmp_path / "python"), confine.READ), (str(tmp_path / "python" / "lib64"), confine.READ)]
    kept = [str(package / "shipped"), str(package / "data" / "measured")]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        found = {}
        try:
            confine._libc.prctl(38, 1, 0, 0, 0)  # no new privileges, as Landlock asks for
            confine.restrict_files(around(rights, kept))
            for path in ("lib/grader/child.py", "lib64/torch/__init__.py", "lib/grader/data/cache.py", *HIDDEN):
                try:
                    found[path] = bool((tmp_path / "python" / path).read_bytes() is not None)
                except OSError:
                    found[path] = False
        finally:
            os.write(write, json.dumps(found).encode())
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert {path for path, could in found.items() if not could} == set(HIDDEN) and len(found) == len(HIDDEN) + 3


HIDDEN = (
    "lib/grader/shipped/solutions/2a.ipynb",
    "lib64/grader/shipped/solutions/2a.ipynb",
    "shortcut/2a.ipynb",
    "lib64/grader/data/measured/calibration.json",
)


def test_where_nothing_is_kept_rights_stay_as_they_are(tmp_path):
    rights = [(str(tmp_path), confine.READ), ("/dev", confine.LIST)]
    assert list(around(rights, [])) == rights


# ---------------------------------------------------------------- beside another one

LOOKS = """
import sys

sys.path.insert(0, sys.argv[1])  # as a notebook does

from grader.frontends.ranks import Ranks
from grader.sandbox import probe, rights, workspace


def where(me):
    import grader.paths

    return str(grader.paths.PACKAGE)


print(Ranks(1, cuda=False)(where), rights.no_own_loopback(), rights.has_own_shared_memory(False), workspace._may_give_users())
print(probe.confinement())
"""


@pytest.mark.slow
def test_programs_of_its_own_have_the_same_grader(tmp_path):
    """Whatever else is installed, and however Python finds it."""
    (tmp_path / "other" / "grader").mkdir(parents=True)
    (tmp_path / "other" / "grader" / "__init__.py").write_text("raise ImportError('another grader')")
    (tmp_path / "looks.py").write_text(LOOKS)
    seen = [
        subprocess.run(
            [sys.executable, tmp_path / "looks.py", REPOSITORY],
            env=os.environ | {"PYTHONPATH": str(path)} | more,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        for path, more in ((REPOSITORY, {}), (tmp_path / "other", {"PYTHONSAFEPATH": "1"}))
    ]
    assert seen[0].stdout == seen[1].stdout != "", seen[1].stderr


# ---------------------------------------------------------------- a front end without widgets


def test_the_map_has_a_page_where_no_widget_is_shown():
    page = start.as_html()
    assert "<button" not in page and 'href="../notebooks/1_instrumentation/1_throughput.ipynb"' in page
    linked = set(re.findall('<a [^>]*href="([^"]+)"', page))  # what is next is linked twice
    assert len(linked) == sum(len(phase.stops) for phase in outline.PHASES)
    there = start.as_html(lambda place: f"https://example.org/{place}")
    assert 'href="https://example.org/labs/2a_workers/2a_workers.ipynb"' in there and 'href="../' not in there


def test_the_notebook_for_hosted_machines_holds_the_lab_as_it_is_released():
    notebook = json.loads((outline.NOTEBOOKS / "colab.ipynb").read_text(encoding="utf-8"))
    code = {cell["id"]: cell for cell in notebook["cells"] if cell["cell_type"] == "code"}
    assert list(code)[:3] == ["parameters", "install", "map"] and code["parameters"]["metadata"]["tags"] == [
        "parameters"
    ]
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code.values())
    starter = (paths.PACKAGE / "labs" / "2a_workers" / "starter.py").read_text(encoding="utf-8")
    assert "".join(code["submission"]["source"]).split() == f"%%submission {starter}".split()


def test_there_the_course_has_one_folder_of_any_name_however_often_its_cell_is_run(tmp_path):
    notebook = json.loads((outline.NOTEBOOKS / "colab.ipynb").read_text(encoding="utf-8"))
    cells = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    for name in ("my course", str(tmp_path / "it's anywhere")):
        run = [cells["parameters"], f"folder = {name!r}", cells["install"]] * 2
        program = f"""
import os
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for source in {run!r}:
    shell.run_cell(source).raise_error()
print(os.getcwd())"""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PATH": path}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.stdout.splitlines()[-1:] == [str(tmp_path / name / "work" / "2a_workers")], done.stderr


# ---------------------------------------------------------------- make


@pytest.mark.parametrize(
    ("target", "tests_too"),
    [("demo", False), ("lab", False), ("lessons", False), ("release", False)]
    + [(target, True) for target in ("test", "lint", "measured", "nightly", "site")],
)
def test_a_learner_is_spared_what_only_the_tests_need(target, tests_too, tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    plan = subprocess.run(["make", "-n", target], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert '--editable ".[all]"' in plan
    assert ('--editable ".[all,test]"' in plan) == tests_too


def test_a_clone_that_was_set_up_before_gets_the_rest_and_then_nothing_more(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    for stamp, rest in (("ready", True), ("tested", False)):
        (tmp_path / ".venv" / stamp).touch()
        plan = subprocess.run(["make", "-n", "lint"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        assert '".[all]"' not in plan and ('".[all,test]"' in plan) == rest
