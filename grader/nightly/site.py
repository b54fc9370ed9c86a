"""The executed lessons as a web site: `python -m grader.nightly.site [NOTEBOOKS] [--out DIR]`, with Jupyter Book, offline.

NOTEBOOKS holds executed lessons, PHASE/LESSON.ipynb: those of the course (`make lessons`, the default) or of a night
(NIGHT/notebooks/lessons). The labs are shown as they are released. Needs `pip install "pytorch-speed-course[site]"`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grader.course import outline
from grader.course.outline import lessons
from grader.errors import UserError
from grader.paths import REPOSITORY

TITLE = "Make PyTorch training fast"

# JSON is YAML. No cell is executed: what is shown is what was measured. Nothing is loaded from elsewhere: so no page may
# hold a formula, whose typesetting comes from a network.
CONFIG: dict[str, Any] = {
    "title": TITLE,
    "author": "",
    "copyright": "",
    "execute": {"execute_notebooks": "off"},
    "only_build_toc_files": True,
    "html": {"use_repository_button": False, "use_issues_button": False, "use_edit_page_button": False},
    "launch_buttons": {"thebe": False, "notebook_interface": "classic"},
    "parse": {"myst_enable_extensions": ["html_image"]},
    "sphinx": {
        "config": {
            "html_theme_options": {"show_navbar_depth": 2},
            "mathjax_path": "mathjax.js",
            "myst_heading_anchors": 3,  # lessons link to the glossary's terms
            "nb_merge_streams": True,
            "suppress_warnings": ["myst.header", "mystnb.unknown_mime_type"],
        }
    },
}

FRONT = (
    "These are the lessons of the course, as they were executed. Each one names its machine. The labs are shown "
    "as they\nare handed out. To do one, get the course and run `make lab`."
)

STYLES = Path("_static", "course.css")  # what every site holds

# Long names in the text break on a phone; the search field of the side bar is enough.
CSS = """code.literal, code.literal .pre { white-space: normal; overflow-wrap: anywhere; }
@media (min-width: 992px) { .bd-header { display: none; } }
"""


def contents() -> dict[str, Any]:
    """The table of contents: the phases of the course with their lessons and labs; a lesson that the map does not have comes
    at the end of its phase."""
    listed = [stop.path for phase in outline.PHASES for stop in phase.stops if isinstance(stop, outline.Lesson)]
    every = [f"{path.parent.name}/{path.stem}" for path in lessons()]
    chapters = []
    for number, phase in enumerate(outline.PHASES, 1):
        names = []
        for stop in phase.stops:
            if isinstance(stop, outline.Lesson):
                names.append(f"notebooks/{stop.path}")
            else:
                names.append(f"labs/{stop.name}/{stop.name}")
        names += [f"notebooks/{name}" for name in every if name not in listed and name.startswith(f"{number}_")]
        chapters.append({"caption": phase.title, "chapters": [{"file": name} for name in names]})
    chapters.append({"caption": "Words", "chapters": [{"file": "notebooks/glossary"}]})
    return {"format": "jb-book", "root": "index", "parts": chapters}


def book() -> str | None:
    """The command of Jupyter Book: of this environment, else on the PATH; None where it is not installed."""
    return shutil.which("jupyter-book", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def build(notebooks: Path, out: Path) -> Path:
    """Build the site into `out`, which is replaced when the new one is there; returns its first page. Raises UserError where
    Jupyter Book or the notebooks are missing, a page cannot be built, or `out` holds something else than a site."""
    out = out.resolve()
    if out.exists() and not (out.is_dir() and ((out / STYLES).exists() or not any(out.iterdir()))):
        raise UserError(
            f"{out} exists and is not a site of this course, so it was not replaced. Name a new folder with --out."
        )
    command = book()
    if command is None:
        raise UserError('Jupyter Book is missing: pip install "pytorch-speed-course[site]".')
    if not any(notebooks.glob("[0-9]_*/*.ipynb")):
        raise UserError(f"{notebooks} holds no lessons. A lesson lies at PHASE/LESSON.ipynb.")
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        source = Path(folder) / "book"
        _pages(notebooks, source)
        (source / "_config.yml").write_text(json.dumps(CONFIG), encoding="utf-8")
        (source / "_toc.yml").write_text(json.dumps(contents()), encoding="utf-8")
        done = subprocess.run(
            [command, "build", "--all", "--keep-going", str(source)], capture_output=True, text=True, cwd=folder
        )
        made = source / "_build" / "html"
        if done.returncode or not (made / "index.html").exists():
            raise UserError(f"Jupyter Book failed:\n{(done.stderr + done.stdout)[-3000:]}")
        for line in done.stderr.splitlines():
            if "WARNING" in line or "ERROR" in line:
                print(line.replace(f"{source}/", ""), file=sys.stderr)
        beside = out.with_name(f".{out.name}.partial")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(made, beside, ignore=shutil.ignore_patterns("*.map"))
        shutil.rmtree(out, ignore_errors=True)
        beside.rename(out)
    return out / "index.html"


def _pages(notebooks: Path, target: Path) -> None:
    """Lay the pages out as the course is, so that the links between them hold."""
    for path in lessons():
        executed = notebooks / path.parent.name / path.name
        _copy(executed if executed.exists() else path, target, "notebooks", path.parent.name, path.name)
    _copy(outline.GLOSSARY, target, "notebooks", outline.GLOSSARY.name)
    shutil.copytree(outline.FIGURES, target / "notebooks" / outline.FIGURES.name)
    for path in sorted((REPOSITORY / "labs").glob("*/*.ipynb")):
        _copy(path, target, "labs", path.parent.name, path.name)
    (target / "index.md").write_text(_front(), encoding="utf-8")
    (target / "_static").mkdir()
    (target / STYLES).write_text(CSS, encoding="utf-8")


def _copy(source: Path, root: Path, *place: str) -> None:
    """Copy a notebook to `place` below `root`, with the links of a site."""
    target = root.joinpath(*place)
    notebook = json.loads(source.read_text(encoding="utf-8"))
    depth = len(place) - 1
    for cell in notebook["cells"]:
        # the start notebook is an application; on the site the front page is the start
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            text = re.sub(r"(\.\./)*00_start_here\.ipynb", f"{'../' * depth}index.md", text)
            text = re.sub(r"(?<=glossary\.ipynb#)[^)\s\"]+", _anchor, text)
            cell["source"] = re.sub(r'(href="[^":]+)\.ipynb', r"\1.html", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(notebook), encoding="utf-8")


def _anchor(jupyters: re.Match[str]) -> str:
    """The site's name of a heading: JupyterLab's, in lower case and without points."""
    return re.sub(r"[^\w-]", "", jupyters.group().lower())


def _front() -> str:
    lines = [f"# {TITLE}", "", FRONT, ""]
    for phase in outline.PHASES:
        lines += [f"## {phase.title}", "", phase.milestone, ""]
        for stop in phase.stops:
            if isinstance(stop, outline.Lesson):
                lines.append(f"- [{stop.title}](notebooks/{stop.path}.ipynb)")
            else:
                lab = stop.declared
                lines.append(f"- Lab [{lab.name}](labs/{lab.name}/{lab.name}.ipynb): {lab.title}")
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m grader.nightly.site", description=__doc__.partition(":")[0])
    parser.add_argument("notebooks", nargs="?", type=Path, default=REPOSITORY / "notebooks", metavar="NOTEBOOKS")
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
