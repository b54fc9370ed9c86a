"""nbgrader's own commands on a small class: what they release, the scores they keep, the feedback they write."""

import collections
import copy
import csv
import http.server
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import scripts
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import handlers
from nbgrader.utils import determine_grade
from scripts import nbgrader
from traitlets.config import PyFileConfigLoader

from grader import labs
from grader.classroom.submissions import read_class
from grader.frontends.nbgrader import SubmittedNotebook, grade_outputs
from grader.result import FAIL, NOT_MEASURED, PASS, CheckResult, Result
from grader.submission import MAGIC

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"
LAB = labs.get(NAME)
MESSAGE = "deliberately broken"
EXPLANATION = "The loop waited for its images, 82% of each step.\n<script>harm()</script>"


def notebook(folder: Path) -> nbformat.NotebookNode:
    return nbformat.read(folder / NAME / f"{NAME}.ipynb", as_version=4)


def by_id(nb: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {cell.id: cell for cell in nb.cells}


class Course:
    """A course folder whose class handed in 2a_workers, was graded and got its feedback."""

    def __init__(self, root: Path):
        self.root = root
        self.kernel_ran = root / "a kernel ran"
        shutil.copy(REPOSITORY / "nbgrader_config.py", root)
        shutil.copytree(REPOSITORY / "solutions" / NAME, root / "solutions" / NAME)
        (root / "solutions" / NAME / "report-2a_workers.json").write_text("left by whoever tried the solution")
        nbgrader(root, "generate_assignment", NAME)
        self.released = notebook(root / "labs")
        # graded in alphabetical order: the one that could stop the others comes first
        for student in (self.a_tamperer, self.solver, self.starter, self.typist):
            nb = copy.deepcopy(self.released)
            nb.cells.insert(1, new_code_cell(f"open({str(self.kernel_ran)!r}, 'w').close()"))
            student(nb)
            folder = root / "submitted" / student.__name__ / NAME
            folder.mkdir(parents=True)
            nbformat.write(nb, folder / f"{NAME}.ipynb")
        options = ("--MeasuredGrade.device=cpu", "--MeasuredGrade.quick=True")
        self.log = nbgrader(root, "autograde", NAME, *options)
        nbgrader(root, "generate_feedback", NAME)
        nbgrader(root, "export", "--to", "grades.csv")

    def starter(self, nb: nbformat.NotebookNode) -> None:
        """Hands in what was handed out."""

    def solver(self, nb: nbformat.NotebookNode) -> None:
        solution = by_id(notebook(REPOSITORY / "solutions"))
        for name in ("submission", "explanation"):
            by_id(nb)[name].source = solution[name].source
        by_id(nb)[
            "predict"
        ].source = 'lab.predict(cause="input-bound", gain=7, device="cpu")'  # in the middle of what is seen on a CPU

    def typist(self, nb: nbformat.NotebookNode) -> None:
        """Works in an editor that loses metadata."""
        by_id(nb)["submission"].source += "\n    retrun loss"
        by_id(nb)["explanation"].source = EXPLANATION
        for cell in nb.cells:
            cell.metadata.pop("nbgrader", None)

    def a_tamperer(self, nb: nbformat.NotebookNode) -> None:
        cells = by_id(nb)
        cells["submission"].source = f"{MAGIC}\ndef train(job):\n    raise ValueError('{MESSAGE}')\n    yield"
        cells["predict"].metadata.nbgrader.schema_version = 1
        cells["grade-throughput"].source = "50.0"
        cells["grade-throughput"].metadata.nbgrader.points = 500.0
        cells["grade-reads"].metadata.nbgrader.update(solution=True, grade=False)
        cells["setup"].metadata.nbgrader = {}
        cells["peek"].metadata.nbgrader = ["not", "a", "dict"]
        cells["explanation"].cell_type = "code"
        cells["explanation"].update(outputs=[], execution_count=None)
        for name in ("grade-throughput", "submission"):
            nb.cells.append(copy.deepcopy(cells[name]))
            nb.cells[-1].id = f"copied-{name}"  # as JupyterLab does it
        nb.cells.remove(cells["grade-pinned"])
        nb.cells.remove(cells["grade-prediction"])

    def scores(self, student: str) -> dict[str, float | None]:
        """What the gradebook holds, by check."""
        with Gradebook(f"sqlite:///{self.root}/gradebook.db") as gradebook:
            submission = gradebook.find_submission_notebook(NAME, NAME, student)
            return {grade.name: grade.auto_score for grade in submission.grades}

    def feedback(self, student: str) -> str:
        return (self.root / "feedback" / student / NAME / f"{NAME}.html").read_text(encoding="utf-8")

    def result(self, student: str) -> Result:
        path = self.root / "autograded" / student / NAME / f"{NAME}.result.json"
        return Result.from_dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    yield Course(tmp_path_factory.mktemp("course"))


@pytest.mark.slow
def test_release(course):
    """nbgrader's own command makes the labs of this repository."""
    assert course.released == notebook(REPOSITORY / "labs")
    assert [path.name for path in (course.root / "labs" / NAME).iterdir()] == [f"{NAME}.ipynb"]


@pytest.mark.slow
def test_starter(course):
    scores = course.scores("starter")
    assert scores.keys() == {c.name for c in LAB.checks} | {"explanation"}
    assert sum(scores.values()) <= 0.1 * LAB.max_score
    assert scores["explanation"] == 0  # untouched


@pytest.mark.slow
def test_solution(course):
    scores = course.scores("solver")
    result = course.result("solver")
    assert result.quick and result.form == "cpu" and result.check("parity").status == PASS
    assert scores == {check.name: check.points for check in result.checks if check.max_points} | {"explanation": None}
    assert scores["throughput"] > 0 and scores["prediction"] >= 5
    assert scores["pinned"] == 0  # cannot be measured here
    assert "solver: NOT MEASURED: pinned" in course.log


@pytest.mark.slow
def test_syntax_error(course):
    assert not any(course.scores("typist").values())
    assert "syntax error" in course.feedback("typist")
    assert "<script>harm" not in course.feedback("typist") and "82% of each step" in course.feedback("typist")
    assert "retrun loss" in course.feedback("typist")


@pytest.mark.slow
def test_an_explanation_whose_metadata_got_lost_is_read_by_a_person(course):
    with Gradebook(f"sqlite:///{course.root}/gradebook.db") as gradebook:
        grades = {g.name: g for g in gradebook.find_submission_notebook(NAME, NAME, "typist").grades}
        assert grades["explanation"].needs_manual_grade
    explained = [
        c.source for c in notebook(course.root / "autograded" / "typist").cells if c.get("id") == "explanation"
    ]
    assert explained == [EXPLANATION]


@pytest.mark.slow
def test_tampering(course):
    """Copied, deleted and edited cells are that student's own matter, and gain nothing."""
    scores = course.scores("a_tamperer")
    assert scores.keys() == {c.name for c in LAB.checks} | {"explanation"}
    assert not any(scores.values())
    assert MESSAGE in course.result("a_tamperer").fatal
    graded = [c for c in notebook(course.root / "autograded" / "a_tamperer").cells if c.metadata.get("nbgrader")]
    points = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.get("points") for c in graded}
    assert len(points) == len(graded)
    assert points["throughput"] == LAB.throughput.points


NO_FILES = {  # what may lie at a notebook's place, and what is said of it
    "ida": (os.mkfifo, "is not a plain file"),  # to open one waits until something writes to it
    "ivy": (Path.mkdir, "Is a directory"),
    "jay": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "joe": (lambda path: path.symlink_to("nowhere"), "a link to another file"),
    "kim": (lambda path: path.symlink_to("/dev/zero"), "a link to another file"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_cannot_be_graded_is_said_in_a_line(tmp_path):
    """Among two hundred students a traceback for each hides what is to be done. What cannot be read gets no points and the
    reason, as by `grader class`; only who could still be measured is left out."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    shutil.copytree(REPOSITORY / "solutions" / NAME, tmp_path / "solutions" / NAME)
    nbgrader(tmp_path, "generate_assignment", NAME)
    released = (tmp_path / "labs" / NAME / f"{NAME}.ipynb").read_text()
    old = json.loads(released)
    odd = json.loads(released)
    for cell in odd["cells"]:
        cell |= {"metadata": None, "attachments": 5} if cell["cell_type"] == "markdown" else {}
    odd["cells"].append({"cell_type": "markdown", "source": "![pasted](attachment:lost.png) and half a \ud83d"})
    half = json.loads(released)
    half["cells"].append({"cell_type": "code", "source": f"{MAGIC}\nx = '\ud83d'"})
    no_notebook = "The file is not a notebook, because"
    unreadable = {
        "abe": (json.dumps(half), "The notebook cannot be read as Python"),
        "ann": ("no notebook", f"{no_notebook} its JSON is broken"),
        "bea": (released[: len(released) // 2], f"{no_notebook} its JSON is broken"),
        "cyd": ("{}", f"{no_notebook} it has no list of cells"),
        "dan": (json.dumps({"nbformat": 3, "worksheets": 5}), f"{no_notebook} it has no list of cells"),
        "eve": (json.dumps(old | {"cells": 5}), f"{no_notebook} it has no list of cells"),
        "fay": ("[" * 100_000, f"{no_notebook} its JSON is broken"),
        "z" * 245: ("{}", f"{no_notebook} it has no list of cells"),  # as long as a folder's name may be, nearly
    }
    texts = {student: text for student, (text, _) in unreadable.items()} | {"gus": json.dumps(odd), "hal": released}
    for student, text in texts.items():
        folder = tmp_path / "submitted" / student / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_bytes(text if isinstance(text, bytes) else text.encode())
    for student, (make, why) in NO_FILES.items():
        (tmp_path / "submitted" / student / NAME).mkdir(parents=True)
        make(tmp_path / "submitted" / student / NAME / f"{NAME}.ipynb")
        unreadable[student] = "", why
    command = [sys.executable, "-m", "nbgrader", "autograde", NAME, "--MeasuredGrade.only_measured=True"]
    done = subprocess.run(command, cwd=tmp_path, env=scripts.environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "SAWarning" not in done.stderr
    said = [line for line in done.stderr.splitlines() if "| ERROR]" in line]
    assert len(said) == 7, said  # two for each, and nbgrader's list at the end
    for first, student in ((0, "gus"), (2, "hal")):
        assert f"submitted/{student}" in said[first] and "Not graded: " in said[first + 1]
        assert "Run `grader class`" in said[first + 1]
    nbgrader(tmp_path, "generate_feedback", NAME)
    for student, (_, why) in unreadable.items():
        page = (tmp_path / "feedback" / student / NAME / f"{NAME}.html").read_text()
        assert why in page and str(tmp_path) not in page
        assert page.index(why) < page.index("see above")  # grade cells that were lost come in the order of their names
    for one in read_class(tmp_path / "labs", tmp_path / "submitted"):
        assert bool(one.submission) == (one.student not in unreadable), one


@pytest.mark.parametrize("app", ["AutogradeApp", "GenerateFeedbackApp"])
def test_a_student_s_name_cannot_command_the_terminal(app):
    log = logging.getLogger(app)
    record = log.makeRecord(app, logging.INFO, "", 1, "100%% of %s\n%s", ("a\x1b[2J\x1b]0;title\x07b", "50%"), None)
    assert log.filter(record) and record.getMessage() == "100% of ab\n50%"


@pytest.mark.slow
def test_a_lab_that_was_never_released_is_said_in_a_line(tmp_path):
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    for student in ("ann", "bob"):
        shutil.copytree(REPOSITORY / "labs" / NAME, tmp_path / "submitted" / student / NAME)
    command = [sys.executable, "-m", "nbgrader", "autograde", NAME]
    done = subprocess.run(command, cwd=tmp_path, env=scripts.environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count(f"`nbgrader generate_assignment {NAME} --force`") == 2


@pytest.mark.slow
def test_no_kernel(course):
    assert not course.kernel_ran.exists()
    for student in ("starter", "solver"):
        nb = notebook(course.root / "autograded" / student)
        assert not any(cell.get("outputs") for cell in nb.cells if "nbgrader" not in cell.metadata)


@pytest.mark.slow
def test_feedback(course):
    page = course.feedback("solver")
    links = re.findall(r'<a href="#([\w-]+)">(.+?)</a> \(Score', page)
    titles = [(check.name, check.title) for check in labs.get(NAME).checks]
    assert sorted(links) == sorted([*titles, ("explanation", "Explanation")]), "each has its own name"
    assert page.count('class="speed-report') == len(LAB.checks)
    assert page.count("data:image/") >= 2  # the gain and the timelines
    assert (course.root / "feedback" / "solver" / NAME / f"{NAME}.result.json").exists()


def formgrader_page(nb: nbformat.NotebookNode) -> str:
    """What Formgrader shows of a notebook, with this course's configuration."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(REPOSITORY)).load_config()
    config.HTMLExporter.update(template_name="formgrade", extra_template_basedirs=[handlers.template_path])
    return HTMLExporter(config=config).from_notebook_node(nb, resources={"index": 0, "total": 1})[0]


@pytest.mark.parametrize(
    "text",
    [
        "<script>harm()</script>",
        "<img src=x onerror=harm()>",
        "<b onmouseover=harm()>bold</b>",
        "[a link](javascript:harm())",
        "[a link](data:text/html,harm())",
        "[a link](files/javascript:harm())",
        "<a href='files/javascript&colon;harm()'>a link</a>",
        "<a href='java&#10;script:harm()'>a link</a>",
        "![a picture](attachment:a)",
        "![a picture that is not there](attachment:b)",
        "<iframe srcdoc='<script>harm()</script>'></iframe>",
        "<svg><style><img src=x onerror=harm()></style></svg>",
        "<div id=throughput class=navbar-fixed-top>over Formgrader's own</div>",
    ],
)
def test_what_a_student_wrote_does_nothing_in_the_instructor_s_browser(text):
    cell = new_markdown_cell(text, attachments={"a": {"image/png": "' onerror=harm() '"}})
    raw = new_raw_cell(text)
    plain, page = (elements(formgrader_page(new_notebook(cells=c))) for c in ([new_markdown_cell("text")], [cell, raw]))
    for tag, attributes in page - plain:
        assert tag in ("p", "b", "a", "img"), tag
        for name, value in attributes:
            assert name in ("alt", "src", "href") and "script:" not in value and "text/html" not in value


LOADS = (  # what has a browser ask {0} for something, as soon as the page is looked at
    "![a picture]({0})",
    "![a picture][there]\n\n[there]: {0}",
    "<img src='{0}'>",
    "<img src='//{1}'>",
    "<IMG SRC=' {0}' srcset='{0} 2x' sizes=1px>",
    "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' srcset='{0} 1x' longdesc='{0}' lowsrc='{0}' style='background: url({0})'>",
    "<image src='{0}' href='{0}'>",
    "<picture><source srcset='{0}'><img alt=there></picture>",
    "<svg><image href='{0}' xlink:href='{0}'/><use href='{0}#a'/><feImage href='{0}'/></svg>",
    "<math><mglyph src='{0}'/><mtext><img src='{0}'></mtext></math>",
    "<link rel=stylesheet href='{0}'>",
    "<link rel=prefetch href='{0}'>",
    "<style>@import '{0}'; p {{ background: url({0}) }}</style>",
    "<p style='background: url({0})'>text</p>",
    "<table background='{0}'><tr><td background='{0}'>text</td></tr></table>",
    "<body background='{0}'>",
    "<video poster='{0}' src='{0}'></video>",
    "<audio src='{0}' autoplay></audio>",
    "<video><source src='{0}'><track src='{0}' default></video>",
    "<input type=image src='{0}'>",
    "<object data='{0}'></object>",
    "<embed src='{0}'>",
    "<iframe src='{0}'></iframe>",
    "<frameset><frame src='{0}'></frameset>",
    "<meta http-equiv=refresh content='0; url={0}'>",
    "<base href='http://{1}/'>",
    "<a href='https://pytorch.org' ping='{0}'>there</a>",
    "<details open ontoggle=\"fetch('{0}')\">text</details>",
    "<noscript><p title='</noscript><img src={0}>'></noscript>",
    "<textarea><img src='{0}'></textarea><xmp><img src='{0}'></xmp><plaintext><img src='{0}'>",
    "<!--><img src='{0}'>-->",
)


@pytest.mark.slow
def test_no_text_cell_loads_anything():
    sources = [new_markdown_cell(text.format("http://127.0.0.1:9/seen", "127.0.0.1:9/seen")) for text in LOADS]
    raw = [new_raw_cell(cell.source) for cell in sources]
    plain = elements(formgrader_page(new_notebook(cells=[new_markdown_cell("text")])))
    for cell in [*sources, *raw]:
        for tag, attributes in elements(formgrader_page(new_notebook(cells=[cell]))) - plain:
            for name, value in attributes:
                shown = (name == "src" and value.startswith("data:image/")) or name in (
                    "alt",
                    "title",
                    "width",
                    "height",
                )
                assert shown or (tag, name, value) == ("a", "href", "https://pytorch.org"), (cell.source, tag, name)


def test_a_picture_is_shown_only_where_the_notebook_holds_it():
    cell = new_markdown_cell("![mine](attachment:a)", attachments={"a": {"image/png": "iVBORw0KGgo="}})
    shown = elements(formgrader_page(new_notebook(cells=[cell])))
    assert shown["img", (("alt", "mine"), ("src", "data:image/png;base64,iVBORw0KGgo="))] == 1
    for text in ("![theirs](https://pytorch.org/a.png)", "<img src=a.png alt=theirs>"):
        page = formgrader_page(new_notebook(cells=[new_markdown_cell(text)]))
        assert "[theirs: not shown, as it is no part of the notebook]" in page


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is needed")
def test_a_browser_that_shows_them_asks_nobody(tmp_path):
    asked = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        log_message = do_POST = lambda *_: None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"127.0.0.1:{server.server_port}"
        texts = [text.format(f"http://{there}/{number}", f"{there}/{number}") for number, text in enumerate(LOADS)]
        page = formgrader_page(new_notebook(cells=[new_markdown_cell(text) for text in texts]))
        folder = f"--user-data-dir={tmp_path / 'profile'}"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        for name, written in (("page", page), ("control", f"{page}<img src='http://{there}/control'>")):
            (tmp_path / f"{name}.html").write_text(written)
            command = ["chromium", *flags, folder, "--dump-dom", f"file://{tmp_path / name}.html"]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
            assert asked == ([] if name == "page" else ["/control"])
        server.shutdown()


def elements(page: str) -> collections.Counter:
    """The elements of a page, each with its attributes."""
    found = collections.Counter()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.update([(tag, tuple(attributes))])
    parser.feed(page)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "cell",
    [new_markdown_cell(r"\begin{a}" * 90_000), new_code_cell("a." * 200_000), new_code_cell(" \n" * 200_000)],
)
def test_a_cell_without_an_end_holds_nobody_up(cell):
    """These, shown whole, take minutes, and feedback goes from one student to the next."""
    assert "more in the notebook itself" in formgrader_page(new_notebook(cells=[cell]))


@pytest.mark.parametrize(
    "cells",
    [
        [new_markdown_cell("<ul><li>" * 2500)] * 100,
        [new_code_cell("a." * 10_000)] * 100,
        [new_markdown_cell("a")] * 50_000,
    ],
)
def test_many_cells_hold_nobody_up(cells, tmp_path):
    """Each is short enough, and a notebook could have three thousand of them, or a million of a word."""
    path = tmp_path / "many.ipynb"
    path.write_text(
        json.dumps(
            {
                "cells": [*map(dict, cells), new_markdown_cell("the end")],
                "metadata": {},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    text, _ = SubmittedNotebook().from_filename(str(path))
    nb = nbformat.reads(text, as_version=4)
    assert len(nb.cells) <= 2000 and sum(min(len(cell.source), 20_000) for cell in nb.cells) < 600_000


def test_code_is_shown_as_python_reads_it():
    """A sign that turns the rest of a line around makes a comment of what runs, for whoever reads it."""
    source = "allowed = True  # \u202e\u2066 if cheats \u2069\u2066\r\nx = 'a\u200bb\x1b[2J\x08'\n\ty = 'Ü 例'"
    page = formgrader_page(new_notebook(cells=[new_code_cell(source)]))
    assert not set(page) & {*"\u202e\u2066\u2069\u200b\x1b\x08"}
    for sign in (r"\u202e\u2066", r"\u200b", r"\x1b", "Ü 例"):
        assert sign in page
    assert r"\r" not in page[page.index("allowed") :]


def test_text_is_shown_as_it_was():
    page = formgrader_page(notebook(REPOSITORY / "labs"))
    for kept in ("<details>", "<summary>", "<table>", "<img alt=", "data:image/svg+xml", "<strong>"):
        assert kept in page
    math = formgrader_page(new_notebook(cells=[new_markdown_cell("$a < b$, [there](https://pytorch.org), `<b>`")]))
    for kept in ("$a &lt; b$", '<a href="https://pytorch.org">there</a>', "<code>&lt;b&gt;</code>"):
        assert kept in math


@pytest.mark.slow
def test_export(course):
    with open(course.root / "grades.csv", encoding="utf-8") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"a_tamperer", "solver", "starter", "typist"}
    assert float(rows["solver"]["score"]) == 80
    assert {float(row["max_score"]) for row in rows.values()} == {LAB.max_score + 10}


def test_what_an_error_of_one_s_own_left_unmeasured_is_not_the_machine_s_fault():
    checks = [
        CheckResult("throughput", "Throughput", FAIL, 0, 50, ""),
        CheckResult("prediction", "Prediction", NOT_MEASURED, 0, 10, ""),
    ]
    result = Result(NAME, "", "cpu", checks, {}, {}, fatal="submission cell 1 raised a ValueError")
    for name, most in (("throughput", 50), ("prediction", 10)):
        shown = grade_outputs(result, name, most)[0].data["text/plain"]
        assert "ended early" in shown and "on this machine" not in shown and "no points" not in shown
    assert "ValueError" in grade_outputs(result, "throughput", 50)[0].data["text/html"]


@pytest.mark.parametrize(
    ("points", "kept"), [(12.5, 12.5), (0.0, 0.0), (-1.0, 0.0), (1e9, 50.0), (float("nan"), 0.0), (1e-9, 0.0)]
)
def test_points(points, kept):
    """nbgrader gives all points for a cell without a result, or with one that is no number or negative."""
    check = CheckResult("throughput", "Throughput", PASS, points, 50, "")
    result = Result(NAME, "", "cpu", [check], {}, {})
    metadata = {"nbgrader": {"grade": True, "solution": False, "points": 50}}
    for name, expected in (("throughput", kept), ("no such check", 0.0)):
        cell = new_code_cell(outputs=grade_outputs(result, name, 50), metadata=metadata)
        assert determine_grade(cell) == (expected, 50)
