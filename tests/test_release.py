"""labs/ is what `make release` makes of solutions/."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from grader import labs
from grader.errors import UserError
from grader.frontends import lab_page, sizes
from grader.frontends.release import release
from grader.submission import MAGIC

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "labs", tmp_path / "labs"))


def test_labs_are_up_to_date(released):
    assert release(released) == [], "labs/ is not what solutions/ makes: run `make release`"
    assert not list(REPOSITORY.glob("gradebook.db*"))


def test_generated_cells_are_up_to_date_and_each_lab_has_them(tmp_path):
    solutions = Path(shutil.copytree(REPOSITORY / "solutions", tmp_path / "solutions"))
    assert lab_page.refresh(solutions) == [], "solutions/ hold old words: run `make release`"
    for name in labs.NAMES:
        notebook = nbformat.read(solutions / name / f"{name}.ipynb", as_version=4)
        found = [made for cell in notebook.cells if (made := lab_page.generated(cell))]
        expected = list(lab_page.CELLS) if name in labs.loops() else ["sizes"] * bool(sizes.sizes(labs.get(name)))
        assert found == expected, name


def test_a_generated_cell_follows_the_declaration(tmp_path):
    file = Path(shutil.copy(REPOSITORY / "solutions" / "2a_workers" / "2a_workers.ipynb", tmp_path))
    lab = labs.get("2a_workers")
    cuda = lab.forms["cuda"]
    larger = replace(lab, forms={"cuda": replace(cuda, options=cuda.options | {"batch_size": 96})})
    assert lab_page.fill(file, larger) and not lab_page.fill(file, larger)
    text = file.read_text(encoding="utf-8")
    assert "| batch | 96 images |" in text and "This lab needs an NVIDIA GPU" in text and "on a CPU" not in text
    assert lab_page.fill(file, lab)
    assert file.read_bytes() == (REPOSITORY / "solutions" / "2a_workers" / "2a_workers.ipynb").read_bytes()


def test_no_shared_words_tell_the_gain_before_it_is_predicted():
    for name in labs.loops():
        lab = labs.get(name)
        targets = {f"{form.minimum_gain:g}x" for form in lab.forms.values() if form and form.minimum_gain} - {
            "3x",
            "9x",
        }
        words = " ".join(made(lab) for made in lab_page.CELLS.values()).split()
        assert not targets & {word.strip(".,;()") for word in words}, name


@pytest.mark.parametrize("name", labs.loops())
def test_no_sentence_of_the_shared_words_is_long(name):
    for made in lab_page.CELLS.values():
        blocks = re.sub(r"</?[a-z]+>|\]\([^)]*\)|[*`\[]", "", made(labs.get(name))).splitlines()
        prose = " ".join("." if not line or line.startswith(("|", "- ", "#")) else line for line in blocks)
        for sentence in re.split(r"(?<=[.?!]) ", prose):
            assert len(sentence.split()) <= 25, sentence


def test_a_healthy_loop_s_page_asks_for_no_change():
    for name in labs.loops():
        words = " ".join(lab_page.CELLS["fix"](labs.get(name)).split())
        assert "If you see something to improve, change that one thing" in words, name


def test_a_page_says_when_a_smaller_form_is_graded():
    for name in labs.loops():
        text = lab_page.CELLS["sizes"](labs.get(name))
        assert ("small form |" in text) == ("too little free memory" in text), name


def test_release_repairs(released):
    edited = released / "2a_workers" / "2a_workers.ipynb"
    edited.write_text("{}")
    stale = released / "2a_workers" / "stale.png"
    stale.touch()
    kept = released / "2a_workers" / ".ipynb_checkpoints" / "edit.ipynb"
    kept.parent.mkdir()
    kept.touch()
    assert release(released) == [edited, stale]
    assert edited.read_bytes() == (REPOSITORY / "labs" / "2a_workers" / "2a_workers.ipynb").read_bytes()
    assert not stale.exists() and kept.exists()


def test_what_a_lab_keeps_is_neither_released_nor_removed(tmp_path):
    """Whoever tries a solution in its folder leaves its report there, and a learner theirs beside the lab."""
    kept = (
        "prediction.json",
        "mystery.json",
        "report-1e_retest.json",
        "report-1e_retest.html",
        "attempts-1e_retest.json",
    )
    course, target = tmp_path / "course", tmp_path / "labs"
    shutil.copytree(REPOSITORY / "solutions" / "1e_retest", course / "solutions" / "1e_retest")
    shutil.copy(REPOSITORY / "nbgrader_config.py", course)
    (target / "1e_retest").mkdir(parents=True)
    (course / "solutions" / ".ipynb_checkpoints").mkdir()  # Jupyter's, and no lab
    for name in kept:
        (course / "solutions" / "1e_retest" / name).write_text("the solution's")
        (target / "1e_retest" / name).write_text("a learner's")
    assert release(target, course) == [target / "1e_retest" / "1e_retest.ipynb"]
    assert {(target / "1e_retest" / name).read_text() for name in kept} == {"a learner's"}


def test_a_folder_without_its_notebook_is_named(tmp_path):
    (tmp_path / "solutions" / "9z_new").mkdir(parents=True)
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    with pytest.raises(UserError, match=r"solutions/9z_new lacks 9z_new\.ipynb"):
        release(tmp_path / "labs", tmp_path)


@pytest.mark.parametrize("name", labs.NAMES)
def test_what_learners_get(name):
    notebook = nbformat.read(REPOSITORY / "labs" / name / f"{name}.ipynb", as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    assert cells["submission"] == f"{MAGIC}\n{labs.get(name).starter.rstrip()}"
    assert name not in labs.loops() or cells["predict"] == "lab.predict(cause=..., gain=...)"
    assert cells["explanation"].endswith("YOUR ANSWER HERE")
    assert "SOLUTION" not in cells["explanation"]
    assert not any("solution-only" in cell.metadata.get("tags", []) for cell in notebook.cells)
