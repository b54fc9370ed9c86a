"""The executed lessons as a web site: `python -m grader.nightly.site [NOTEBOOKS] [--out DIR]`, with Sphinx, offline.

NOTEBOOKS holds executed lessons, PHASE/LESSON.ipynb: those of the course (`make lessons`, the default) or of a night
(NIGHT/notebooks/lessons). The labs are shown as they are released. `site_style/` says how the pages look. Needs
`pip install "pytorch-speed-course[site]"`."""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grader import paths
from grader.course import outline
from grader.errors import UserError

STYLE = Path(__file__).parent / "site_style"  # Sphinx's conf.py
PACKAGES = ("sphinx", "myst_nb", "pydata_sphinx_theme")
MARK = Path("_static", "course.css")  # what every site holds, and nothing else
GUIDES = (
    *(f"docs/{name}" for name in ("your_own_jobs", "how_a_gain_is_decided", "install", "machines", "instructors")),
    "grader/classroom/README",
    "docs/maintainers",
)

FIGURES = ("notebooks", outline.FIGURES.name)

FRONT = """# Make PyTorch training fast

These are the lessons of the course, as they were executed. Each one names its machine. The labs are shown as they are
handed out. To do one, get the course and run `make lab`.
"""


def missing() -> list[str]:
    """The packages that a site needs and that are not installed."""
    return [name for name in PACKAGES if not importlib.util.find_spec(name)]


def build(notebooks: Path, out: Path) -> Path:
    """Build the site into `out`, which is replaced when the new one is there; returns its first page. Raises UserError where
    a package or the notebooks are missing, a link leads nowhere, or `out` holds something else than a site."""
    if paths.installed():
        raise UserError("The site is made from a copy of the repository. Go to one, and run `make site` there.")
    out = out.resolve()
    if out.exists() and not (out.is_dir() and ((out / MARK).exists() or not any(out.iterdir()))):
        raise UserError(
            f"{out} exists and is not a site of this course, so it was not replaced. Name a new folder with --out."
        )
    if lacking := missing():
        raise UserError(f'These packages are missing: {", ".join(lacking)}. pip install "pytorch-speed-course[site]"')
    if not any(notebooks.glob("[0-9]_*/*.ipynb")):
        raise UserError(f"{notebooks} holds no lessons. A lesson lies at PHASE/LESSON.ipynb.")
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        source, made = Path(folder) / "source", Path(folder) / "html"
        _pages(notebooks, source)
        render(source, made)
        beside = out.with_name(f".{out.name}.partial")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(made, beside, ignore=shutil.ignore_patterns("*.map", ".buildinfo*", ".doctrees"))
        shutil.rmtree(out, ignore_errors=True)
        beside.rename(out)
    return out / "index.html"


def render(source: Path, made: Path) -> None:
    """Make the pages in the folder `source`, of which the first is index.md. Raises UserError with all that Sphinx warns of."""
    options = ["--builder", "html", "--jobs", "auto", "--quiet", "--no-color", "--fail-on-warning"]
    command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", str(STYLE), str(source), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=source, env=os.environ | {"PYTHONUTF8": "1"})
    if done.returncode:
        said = (done.stdout + done.stderr).replace(f"{source}{os.sep}", "")
        raise UserError(f"The site was not made. Sphinx said:\n{said[-3000:].strip()}")


def _pages(notebooks: Path, target: Path) -> None:
    """Lay the pages out as the course is, so that the links between them hold."""
    for path in outline.lessons():
        executed = notebooks / path.parent.name / path.name
        _copy(executed if executed.exists() else path, target, "notebooks", path.parent.name, path.name)
    _copy(outline.GLOSSARY, target, "notebooks", outline.GLOSSARY.name)
    shutil.copytree(outline.FIGURES, target / "notebooks" / outline.FIGURES.name)
    for stop in outline.lab_stops():
        name = f"{stop.name}.ipynb"
        _copy(paths.course() / "labs" / stop.name / name, target, "labs", stop.name, name)
    for guide in GUIDES:
        page = target / f"{guide}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        text = (paths.REPOSITORY / page.relative_to(target)).read_text(encoding="utf-8")
        page.write_text(_LINK.sub(partial(_guided, page, target), text), encoding="utf-8")
    (target / "index.md").write_text(_front(), encoding="utf-8")


def _copy(source: Path, root: Path, *place: str) -> None:
    """Copy a notebook to `place` below `root`, with the links of a site."""
    target = root.joinpath(*place)
    notebook = json.loads(source.read_text(encoding="utf-8"))
    depth = len(place) - 1
    for number, cell in enumerate(notebook["cells"]):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", ())):
            cell["metadata"]["mystnb"] = {"image": {"alt": _seen(notebook["cells"], number)}}
        # the start notebook is an application; on the site the front page is the start, and has no headings of it
        if cell["cell_type"] == "markdown":
            text = _LINK.sub(partial(_guided, target, root), "".join(cell["source"]))
            text = re.sub(r"(\.\./)*00_start_here\.ipynb(#[^)\s\"]*)?", f"{'../' * depth}index.md", text)
            # the site's names of headings are JupyterLab's, in lower case and without points
            text = re.sub(r"(?<=glossary\.ipynb#)[^)\s\"]+", lambda name: re.sub(r"[^\w-]", "", name[0].lower()), text)
            cell["source"] = re.sub(r'(href="[^":]+)\.ipynb', r"\1.html", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(notebook), encoding="utf-8")


def _seen(cells: list[dict[str, Any]], number: int) -> str:
    """Of a cell's chart, for who does not see it: what the text below says that one sees, else the title above."""
    texts = ["".join(cell["source"]) if cell["cell_type"] == "markdown" else "" for cell in cells]
    said = re.search(r"\*\*What you see\.\*\*\s*(.+?)(\n\n|$)", next(filter(None, texts[number:]), ""), re.DOTALL)
    titles = re.findall(r"(?m)^#+ (.+)", "\n".join(texts[:number]))
    words = re.sub(r"\[([^]]*)\]\([^)]*\)|<[^>]*>|[*`]", r"\1", said[1] if said else titles[-1])
    return f"Chart. {' '.join(words.split())}"


_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!\w+:|#)([^)#\s]+)[^)\s]*\)")


def _guided(page: Path, target: Path, link: re.Match[str]) -> str:
    """A link of a page: its words alone where it leads to a file of the repository that is no page of the site."""
    place = Path(os.path.normpath(page.parent / link[2])).relative_to(target)
    is_page = place.suffix == ".ipynb" or place.parts[:2] == FIGURES or str(place.with_suffix("")) in GUIDES
    return link[0] if is_page else link[1]


def _plain(title: str) -> str:
    """For Markdown, to which __getitem__ is a bold word."""
    return re.sub(r"([_*])", r"\\\1", title)


def _front() -> str:
    """The front page: the table of contents with times. A lesson that the map lacks comes at the end of its phase."""
    lines, every = [FRONT], {f"{path.parent.name}/{path.stem}" for path in outline.lessons()}
    for number, phase in enumerate(outline.PHASES, 1):
        lines += [f"## {phase.title}", phase.milestone, "| | | minutes |\n|---|---|---|"]
        names = []
        for stop in phase.stops:
            if isinstance(stop, outline.Lesson):
                names.append(f"notebooks/{stop.path}")
                row = f"lesson | [{_plain(stop.title)}]({names[-1]}.ipynb)"
            else:
                lab = stop.declared
                names.append(f"labs/{lab.name}/{lab.name}")
                title = _plain(f"{lab.name.partition('_')[0]} · {lab.title}")
                row = f"{'core lab' if stop.core else 'lab'} | [{title}]({names[-1]}.ipynb)"
            lines[-1] += f"\n| {row} | {stop.minutes or ''} |"
        more = sorted(name for name in every if name.startswith(f"{number}_"))
        names += [f"notebooks/{name}" for name in more if f"notebooks/{name}" not in names]
        lines.append(_contents(phase.title, names))
    lines.append(_contents("Words", ["notebooks/glossary"]))
    lines.append(_contents("Guides", GUIDES))
    return "\n\n".join(lines) + "\n"


def _contents(caption: str, names: Sequence[str]) -> str:
    """A part of the map at the side of every page."""
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"])


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m grader.nightly.site", description=__doc__.partition(":")[0])
    parser.add_argument("notebooks", nargs="?", type=Path, default=outline.NOTEBOOKS, metavar="NOTEBOOKS")
    parser.add_argument("--out", type=Path, default=Path("work/site"), help="folder of the site (default: work/site)")
    options = parser.parse_args(arguments)
    try:
        print(f"The site: {build(options.notebooks, options.out)}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
