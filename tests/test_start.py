"""The start notebook: the map holds all of the course, its links lead somewhere, and it knows how far one is."""

import json
import re

import ipywidgets
import nbformat
import pytest

from grader import labs, paths
from grader.course import outline
from grader.frontends import start
from grader.trace.causes import CAUSES

NOTEBOOK = outline.NOTEBOOKS / "00_start_here.ipynb"
LESSONS = [stop for phase in outline.PHASES for stop in phase.stops if isinstance(stop, outline.Lesson)]


def markdown() -> list[str]:
    return [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "markdown"]


def links(text: str) -> list[str]:
    found = re.findall(r'\]\(([^)#]+)|href="([^"#]+)', text)
    return [target for pair in found for target in pair if target and not target.startswith("http")]


def test_every_lab_and_lesson_is_on_the_map():
    names = [stop.name for stop in outline.lab_stops()]
    assert sorted(names) == sorted(labs.NAMES), "a lab is one line of PHASES in grader/course/outline.py"
    files = [stop.file for stop in LESSONS]
    assert sorted(files) == outline.lessons(), "a lesson is one line of PHASES in grader/course/outline.py"
    for number, phase in enumerate(outline.PHASES, 1):
        assert [s.declared.phase for s in phase.stops if isinstance(s, outline.LabStop)] == [number] * sum(
            isinstance(s, outline.LabStop) for s in phase.stops
        )
        assert sum(getattr(stop, "core", False) for stop in phase.stops) == 2, "the core path is two labs a phase"


def test_links_lead_somewhere():
    targets = links("\n".join(markdown()))
    assert targets
    for target in targets:
        assert (outline.NOTEBOOKS / target).is_file(), target
    for stop in LESSONS:
        assert stop.title.endswith("?") and stop.title in start.text()


def test_the_map_says_how_long_each_stop_takes():
    """As the stop's own page says, where it does."""
    for stop in LESSONS:
        assert 10 <= stop.minutes <= 90, stop.path
    for lab in outline.lab_stops():
        page = (outline.NOTEBOOKS.parent / f"solutions/{lab.name}/{lab.name}.ipynb").read_text(encoding="utf-8")
        said = re.search(r"(?:Time for this lab:\*\* about|You need about|Take about) (\d+) minutes", page)
        assert not said or int(said.group(1)) == lab.minutes, lab.name
    text = start.text()
    assert text.count(" min  ") == len(LESSONS) + len(labs.NAMES) and text.count(" hours)") == len(outline.PHASES)


def test_the_map_shows_code_as_code_and_no_sign_twice():
    assert any("`" in stop.declared.goal for stop in outline.lab_stops())
    page = start.as_html()
    assert "`" not in page and "<code>grader run</code>" in page
    assert not re.search(r"[?!.][.,]", re.sub("<.*?>", "", page) + start.text())


def test_this_machine_is_one_line_with_details_folded(monkeypatch):
    shown = []
    monkeypatch.setattr(start, "display", lambda bundle, raw: shown.append(bundle))
    start.this_machine()
    (bundle,) = shown
    assert re.fullmatch(r"This machine: .+: \d+ of \d+ labs can be graded here\.", bundle["text/plain"])
    assert "<details>" in bundle["text/html"] and "1a_stopwatch" in bundle["text/html"].partition("<details>")[2]
    assert "word-break: normal" in bundle["text/html"], "JupyterLab's own style breaks lines within words"


def test_the_page_begins_with_the_machine_and_the_map():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    before = " ".join(cell.source for cell in cells[: [c.source for c in cells].index("start.course_map()")])
    assert "start.this_machine()" in sources[1] and len(before.split()) < 100


@pytest.mark.parametrize("cause", [cause for cause, about in CAUSES.items() if about.offered])
def test_what_a_diagnosis_leads_to_is_in_the_chart(cause):
    lesson, lab = CAUSES[cause].lesson, CAUSES[cause].lab
    chart = next(text for text in markdown() if "<table>" in text)
    (row,) = (row for row in chart.split("<tr>") if f"{cause}-bound" in row)
    assert f'href="{lesson}.ipynb"' in row
    assert lab in labs.NAMES


def test_the_chart_gives_no_lab_s_cause_away():
    chart = next(text for text in markdown() if "<table>" in text)
    assert not [name for name in labs.NAMES if name in chart]


@pytest.fixture
def learner(tmp_path, monkeypatch):
    """A course whose working copies are elsewhere, with one released lab."""
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    released = tmp_path / "labs" / "2a_workers"
    released.mkdir(parents=True)
    (released / "2a_workers.ipynb").write_text("{}")
    return tmp_path


def row(lab: str) -> str:
    return next(line for line in start.text().splitlines() if lab in line)


@pytest.mark.parametrize(
    "content, title",
    [
        ({"cells": [{"cell_type": "markdown", "source": "no title\n# `One` line\nmore"}]}, "One line"),
        ({"cells": [{"cell_type": "markdown", "source": ["## below\n"]}]}, "2_data/1_disk_to_gpu"),
        ({"cells": [{"cell_type": "markdown"}]}, "2_data/1_disk_to_gpu"),
        ([], "2_data/1_disk_to_gpu"),
        (None, "2_data/1_disk_to_gpu"),
    ],
)
def test_a_lesson_that_somebody_changed_is_on_the_map(tmp_path, monkeypatch, content, title):
    monkeypatch.setattr(outline, "NOTEBOOKS", tmp_path)
    lesson = outline.Lesson("2_data/1_disk_to_gpu")
    if content is not None:
        lesson.file.parent.mkdir()
        lesson.file.write_text(json.dumps(content))
    assert lesson.title == title


def test_progress_comes_from_the_last_report(learner):
    assert "not begun" in row("2a_workers") and "(core path)" in row("2a_workers")
    copy = outline.start("2a_workers")
    assert "; begun" in row("2a_workers")
    report = copy.with_name("report-2a_workers.json")
    report.write_text(json.dumps({"score": 61.5, "max_score": 100, "measured_max": 80, "quick": False}))
    assert "61.5 of 100 points (80 can be measured here)" in row("2a_workers")
    assert "Next on the core path: 1c_diagnose" in start.text().splitlines()[-2]
    assert "How fast does this loop train? (40 min)" in start.text().splitlines()[-2], "and the lessons before it"
    path = start._path(start.grades_here())
    assert path.count("✓") == 1 and path.count("next, 30 min") == 1
    assert "1 of" in start.text().splitlines()[-1] and "61.5 points" in start.text().splitlines()[-1]
    report.write_text(json.dumps({"score": 61.5, "max_score": 100, "measured_max": 100, "quick": True}))
    assert "61.5 of 100 points, quick: not for marks" in row("2a_workers")
    report.write_text(json.dumps({"score": 0, "max_score": 100, "measured_max": 0, "quick": False}))
    assert "graded: no points on this machine" in row("2a_workers")


@pytest.mark.parametrize(
    ("last", "attempts", "says"),
    [
        ((0, False), [(100, False), (0, False)], "best 100 of 100 points (last 0)"),
        ((60, False), [(60, False)], "60 of 100 points"),
        ((60, False), [(60, False), (100, True)], "60 of 100 points"),
        ((90, True), [(60, False), (90, True)], "best 60 of 100 points (last 90, quick: not for marks)"),
        ((10, True), [(80, True), (10, True)], "best 80 of 100 points (last 10), quick: not for marks"),
        ((60, False), [], "60 of 100 points"),
    ],
)
def test_the_best_grade_stays_on_the_map(learner, last, attempts, says):
    copy = outline.start("2a_workers")
    score, quick = last
    found = {"score": score, "max_score": 100, "measured_max": 100, "quick": quick}
    copy.with_name("report-2a_workers.json").write_text(json.dumps(found))
    rows = [{"lab": "2a_workers", "points": points, "quick": quick} for points, quick in attempts]
    copy.with_name("attempts-2a_workers.json").write_text(json.dumps(rows))
    assert row("2a_workers").endswith(f"; {says}")


@pytest.mark.parametrize("repository", ["", "owner/name"])
def test_one_display_reads_each_lab_s_grades_once(monkeypatch, repository):
    shown, read = [], []
    monkeypatch.setattr(start, "display", lambda bundle, raw: shown.append(bundle))
    monkeypatch.setattr(start, "grades_of", lambda stop: read.append(stop.name))
    start.course_map(repository)
    (bundle,) = shown
    assert sorted(read) == sorted(labs.NAMES)
    assert bundle["text/html"].count("<style>") == 1 and bundle["text/html"].count('class="course-row"') > 60


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        "null",
        '{"score": "x"}',
        '{"score": null, "max_score": 1}',
        f'{{"score": {10**400}, "max_score": 1}}',
        "[" * 9999,
    ],
)
def test_a_report_that_cannot_be_read_is_none(learner, damaged):
    outline.start("2a_workers").with_name("report-2a_workers.json").write_text(damaged)
    assert "; begun" in row("2a_workers")


def test_the_button_makes_a_copy_and_the_row_becomes_a_link(learner):
    def rows(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from rows(child)

    boxes = [w for w in rows(start._map(start.grades_here())) if isinstance(w, ipywidgets.HBox)]
    box = next(box for box in boxes if "2a_workers" in box.children[0].value)
    shown, button = box.children
    assert "<a " not in shown.value and button.description == "Start 2a", "a screen reader lists 31 of them"
    button.click()
    assert (learner / "work/2a_workers/2a_workers.ipynb").is_file()
    shown, link = box.children
    assert 'href="../work/2a_workers/2a_workers.ipynb"' in shown.value
    assert 'href="../work/2a_workers/2a_workers.ipynb"' in link.value and ">Open 2a</a>" in link.value
    assert "_blank" not in link.value, "it opens in the same window"
    box = next(box for box in boxes if "3a_precision" in box.children[0].value)
    box.children[1].click()
    assert "is missing" in box.children[0].value and isinstance(box.children[1], ipywidgets.Button)
