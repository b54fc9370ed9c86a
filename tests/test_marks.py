"""The marks of a class: one maximum, a table of ours, and what Canvas and Moodle import."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from grader import labs
from grader.classroom import marks, summary
from grader.classroom.marks import Mark
from grader.classroom.store import Store
from grader.classroom.submissions import HandedIn, Job, read_class
from grader.errors import UserError
from grader.frontends import classroom, cli
from grader.grade import grade
from grader.safe_text import as_it_was, no_formula
from grader.sandbox.setting import QUICK_LIMITS, Limits
from grader.submission import Submission

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"
LAB = labs.get(NAME)
RAISES = "def train(job):\n    raise ValueError('on purpose')\n    yield\n"


def result(score: float, measured_max: float, form: str = "cpu", **more) -> dict:
    found = {"disturbed": "", "fatal": "", "quick": False, "score": score, "measured_max": measured_max, "checks": []}
    return {"seconds": 40.0, "machine": "m", "date": "2026-11-28T10:00:00+00:00", "digest": f"{score}"} | {
        "result": found | {"form": form} | more
    }


def test_one_maximum_a_lab_and_machine():
    everyone = [HandedIn(s, NAME, Submission(f"x = {s!r}")) for s in ("ann", "bob", "cyd")]
    everyone.append(HandedIn("dan", NAME, None, "no notebook"))
    everyone.append(HandedIn("eve", "1c_diagnose", None, "no notebook"))
    made = {"ann": result(80, 80), "bob": result(0, 70, fatal="it raised"), "cyd": result(40, 75)}
    rows = summary.rows(everyone, {(s, NAME): record for s, record in made.items()})
    assert {row.student: row.measured_max for row in rows} == {"ann": 80, "bob": 80, "cyd": 80, "dan": 80, "eve": 100}
    for form, most in (("cpu", 80), ("cuda", 100)):
        assert LAB.measurable(form) == most
    nothing = summary.rows(everyone[:1], {("ann", NAME): result(0, 0)})
    assert nothing[0].measured_max == 0, "where nothing can be measured there is no mark"


def test_what_is_shown_while_a_class_is_measured_has_no_maximum_of_its_own(capsys):
    """A prediction that could not be judged made it 95 for one student and 100 for another."""
    progress = classroom.ClassProgress()
    progress.begin(2)
    for name, record in (("ann, 2a_workers", result(5, 95)), ("bob, 2a_workers", result(7.5, 100))):
        progress.done(name, record)
    progress.close()
    said = capsys.readouterr().err
    assert "1/2 ann, 2a_workers: 5 points, 40 s" in said and "bob, 2a_workers: 7.5 points, 40 s" in said


def test_right_answers_of_a_lab_of_questions_are_alike_by_themselves():
    everyone = [HandedIn(s, lab, Submission("answers = 1")) for lab in ("1c_diagnose", NAME) for s in ("ann", "bob")]
    for score in (100, 60):
        records = {(one.student, one.lab): result(score, 100, "traces", digest=score) for one in everyone}
        alike = summary.groups(summary.rows(everyone, records))
        assert [group[0].lab for group in alike] == ([NAME] if score == 100 else ["1c_diagnose", NAME])


def test_answers_to_questions_take_no_time_worth_a_look():
    for lab, found in (("1c_diagnose", 0), (NAME, 1)):
        everyone = [HandedIn(str(n), lab, Submission(f"answers = {n}")) for n in range(8)]
        records = {
            (one.student, lab): result(50, 100, digest=one.student) | {"seconds": 60.0 if at == 7 else 2.0}
            for at, one in enumerate(everyone)
        }
        assert sum(bool(row.outlier) for row in summary.rows(everyone, records)) == found


@pytest.mark.slow
def test_a_quick_look_does_not_wait_four_minutes_for_a_loop_that_hangs(monkeypatch):
    monkeypatch.setattr("grader.sandbox.setting.QUICK_LIMITS", replace(QUICK_LIMITS, first_step=20.0))
    hangs = "import time\ndef train(job):\n    time.sleep(1000)\n    yield\n"
    looked = grade(Submission(hangs), LAB, device="cpu", quick=True)
    assert "20 s" in looked.fatal and QUICK_LIMITS.first_step < Limits().first_step


@pytest.mark.slow
def test_a_submission_that_fails_is_of_as_many_points():
    """On a machine that is not calibrated, too."""
    said = (("cause", "input-bound"), ("device", "cpu"), ("gain", 5))
    failed = grade(Submission(RAISES, prediction=said), LAB, device="cpu", quick=True)
    assert "on purpose" in failed.fatal and failed.measured_max == LAB.measurable("cpu") == 80


@pytest.fixture
def course(tmp_path: Path, gradebook: str) -> Path:
    """ann has 60 of 80 and 8 by hand; bob's explanation nobody has marked; cyd's notebook is none; dan handed nothing in."""
    store = Store(tmp_path / "measured")
    for student in ("ann", "bob"):
        nb = nbformat.read(REPOSITORY / "labs" / NAME / f"{NAME}.ipynb", as_version=4)
        next(c for c in nb.cells if c.id == "submission").source = f"%%submission\nx = {student!r}"
        folder = tmp_path / "submitted" / student / NAME
        folder.mkdir(parents=True)
        nbformat.write(nb, folder / f"{NAME}.ipynb")
    (tmp_path / "submitted" / "cyd" / NAME).mkdir(parents=True)
    (tmp_path / "submitted" / "cyd" / NAME / f"{NAME}.ipynb").write_text("no notebook")
    for one in read_class(REPOSITORY / "labs", tmp_path / "submitted"):
        if one.submission:
            job = Job(NAME, one.submission)
            whole = grade_of(60 if one.student == "ann" else 40)
            store.put(job, {"machine": "a CPU", "version": "v", "seconds": 4.0, "worker": "w", "result": whole})
    with Gradebook(gradebook) as book:
        book.add_assignment(NAME)
        book.add_notebook(NAME, NAME)
        for check in LAB.checks:
            book.add_grade_cell(check.name, NAME, NAME, max_score=check.points, cell_type="code")
        book.add_grade_cell("explanation", NAME, NAME, max_score=10, cell_type="markdown")
        for student, first, last in (("ann", "Ann", "Lee"), ("bob", "Bob", "=Ray"), ("dan", "Dan", "Wu")):
            book.add_student(student, first_name=first, last_name=last, email=f"{student}@x.org")
        for student, manual in (("ann", 8), ("bob", None)):
            book.add_submission(NAME, student)
            for given in book.find_submission_notebook(NAME, NAME, student).grades:
                if given.name == "explanation":
                    given.auto_score, given.manual_score = None, manual
        book.db.commit()
    return tmp_path


def grade_of(score: float) -> dict:
    checks = [
        {
            "name": c.name,
            "title": c.title,
            "status": "FAIL",
            "points": 0,
            "max_points": c.points,
            "reason": "",
            "evidence": {},
        }
        for c in LAB.checks
    ]
    checks[1] |= {"points": score, "evidence": {}}
    for check in checks:
        if check["name"] == "pinned":
            check["status"] = "NOT MEASURED"
    return {
        "lab": NAME,
        "title": "",
        "form": "cpu",
        "checks": checks,
        "machine": {},
        "versions": {},
        "score": score,
        "max_score": 100,
        "measured_max": 80,
        "fatal": "",
        "disturbed": "",
        "quick": False,
    }


def run(course: Path, *arguments: str, capsys) -> tuple[int, str, str]:
    status = cli.main(["class", "marks", str(REPOSITORY / "labs"), str(course / "submitted"), *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.mark.filterwarnings("ignore")
def test_the_table(course, capsys):
    status, _, err = run(course, capsys=capsys)
    assert status == 0 and f"without the explanation, which nobody has marked yet: {NAME}: bob" in err
    found = {row["student"]: row for row in read(course / "measured" / "marks.csv")}
    assert found.keys() == {"ann", "bob", "cyd", "dan"}
    assert {row["measurable maximum"] for row in found.values()} == {"80"}
    ann, bob, cyd, dan = (found[s] for s in ("ann", "bob", "cyd", "dan"))
    assert (ann["lab"], ann["points"], ann["manual points"], ann["percentage"]) == (NAME, "60", "8", "75.56")
    assert (ann["quick or full"], ann["on"]) == ("full", "a CPU") and ann["when"]
    assert (bob["points"], bob["manual points"], bob["percentage"]) == ("40", "", "50")
    assert (cyd["points"], cyd["percentage"]) == ("0", "0") and "JSON" in cyd["note"]
    assert (dan["points"], dan["percentage"], dan["note"]) == ("0", "0", marks.ABSENT)


@pytest.mark.filterwarnings("ignore")
def test_canvas_gets_its_own_gradebook_back(course, capsys):
    export = course / "2026-11-28 Grades-PERF.csv"
    export.write_text(
        "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,2a_workers (4711),Quiz (4712),Current Score\n"
        "    Points Possible,,,,,50,10,(read only)\n"
        '"Lee, Ann",901,,ann,A,,3,\n"Other, Bob",902,,bob,A,,4,\n"Nobody, Else",905,,else,A,,4,\n'
        '"Student, Test",909,,,A,,,\n',
        encoding="utf-8",
    )
    _, _, err = run(course, "--canvas", str(export), capsys=capsys)
    made = course / "measured" / "marks-canvas.csv"
    head = made.read_text().splitlines()[0]
    assert head == "Student,ID,SIS User ID,SIS Login ID,Section,2a_workers (4711)", "nothing else is overwritten"
    possible, *students = read(made)
    assert possible["Student"].strip() == "Points Possible" and possible["2a_workers (4711)"] == "50"
    assert [row["2a_workers (4711)"] for row in students] == ["37.78", "25.0", "", ""]
    assert "cyd" in err and "dan" in err.split("Not in")[1]


@pytest.mark.filterwarnings("ignore")
def test_moodle_gets_its_own_worksheet_back(course, capsys):
    sheet = course / "Grades-PERF-2a.csv"
    sheet.write_text(
        'Identifier,"Full name","Email address",Status,Grade,"Maximum Grade","Grade can be changed","Feedback comments"\n'
        '"Participant 11","Ann Lee",ann@x.org,"Submitted for grading",,20.00,Yes,\n'
        '"Participant 12","B. Ray",bob@x.org,"Submitted for grading",,20.00,Yes,\n'
        '"Participant 13",Nobody,no@x.org,"No submission",,20.00,Yes,\n',
        encoding="utf-8",
    )
    (course / "submitted" / "collected.csv").write_text(
        f"student,lab,system,number,name,late,when,file\ncyd,{NAME},moodle,13,Nobody,,,x\n"
    )
    _, _, err = run(course, "--moodle", str(sheet), capsys=capsys)
    found = read(course / "measured" / "marks-moodle.csv")
    assert [row["Grade"] for row in found] == ["15.11", "10.0", "0.0"]
    assert [row["Identifier"] for row in found] == ["Participant 11", "Participant 12", "Participant 13"]
    assert "Not in" in err and "dan" in err


@pytest.mark.filterwarnings("ignore")
def test_without_a_file_of_theirs(course, capsys):
    assert run(course, "--canvas", "--moodle", capsys=capsys)[0] == 0
    possible, *students = read(course / "measured" / "marks-canvas.csv")
    assert possible[NAME] == "100" and {row["SIS Login ID"]: row[NAME] for row in students}["ann"] == "75.56"
    found = {row["Username"]: row for row in read(course / "measured" / "marks-moodle.csv")}
    assert found["ann"][NAME] == "75.56" and found["bob"]["Email address"] == "bob@x.org"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("option", ["--canvas", "--moodle"])
def test_another_file_is_refused(course, capsys, option):
    other = course / "other.csv"
    other.write_text("a,b\n1,2\n")
    status, _, err = run(course, option, str(other), capsys=capsys)
    assert status == 2 and str(other) in err and "no columns" in err


@pytest.mark.parametrize("text", ["=1", " =1", "x;=cmd()", "x; @a;-1", "\uff1d1", "\t=1", "-1", "a;+1", "\n=1"])
def test_no_cell_is_a_formula(text):
    """Of Excel in German, too, which parts a line at semicolons."""
    marked = no_formula(text)
    assert re.sub(r"(^|;)\s*'", "", marked) != marked and as_it_was(marked) == text == as_it_was(text)
    assert no_formula(marked) == marked


@pytest.mark.parametrize("text", ["a = 1", "3 - 4; 5", "it's; so", "'quoted'", "x, -3%"])
def test_what_is_no_formula_stays(text):
    assert no_formula(text) == text == as_it_was(text)


def test_no_mark_is_no_number():
    open_one = Mark(NAME, "ann", None, None, note="disturbed")
    assert open_one.percentage is None
    (row,) = csv.DictReader(io.StringIO(marks.table([open_one])))
    assert row["points"] == row["percentage"] == "" and row["note"] == "disturbed"
    assert json.dumps(marks.canvas([open_one], {})[0]).count("ann")


def test_what_a_person_changed_counts():
    assert Mark(NAME, "ann", 60, 80, 8, 10, penalty=9).percentage == 65.56
    assert Mark(NAME, "ann", 0, 80, 0, 10, penalty=9).percentage == 0


# ---------------------------------------------------------------- whose mark goes to which row

AL, ALSO_AL = ("Al", "Gray"), ("Al", "Gray")


def mark_of(student: str, points: float, name: tuple[str, str] = ("", ""), email: str = "") -> Mark:
    return Mark(NAME, student, points, 100, 0, 0, first_name=name[0], last_name=name[1], email=email)


MADE = (
    mark_of("0012", 12, ("Leading", "Zeros")),
    mark_of("12", 13, ("No", "Zeros")),
    mark_of('O\'Brien, "Bo"', 14, ("Bo", "O'Brien")),
    mark_of("Ann", 15),
    mark_of("ann", 16),
    mark_of("JD1", 17, ("Jane", "Doe")),
    mark_of("Zoe\u0308", 18, ("Zoe\u0308", "Müller")),
    mark_of("ag1", 19, AL),
    mark_of("ag2", 20, ALSO_AL),
    mark_of("li.wei", 21, ("Wei", "Li"), "li.wei@x.org"),
    mark_of("by-name", 22, ("José", "de la Cruz")),
)
IDS = ("12", "0012", 'O\'Brien, "Bo"', "ANN", "ann", "Ann", "jd1", "Zoë", "ag2", "ag1", "other", "another")
GIVEN = (13, 12, 14, None, 16, 15, 17, 18, 20, 19, 21, 22)


def table_of(path: Path, head: list[str], body: list[list[str]], separator: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([head, *body])
    return path


NAMES = ["x"] * 8 + ["Gray, Al"] * 2 + ["Li, Wei", "De La Cruz, José"]


@pytest.mark.parametrize("order", [1, -1])
def test_each_mark_goes_to_its_own_row_of_canvas(tmp_path, order):
    body = [[n, str(900 + at), i, "A", ""] for at, (n, i) in enumerate(zip(NAMES, IDS, strict=True))]
    head = ["Student", "ID", "SIS Login ID", "Section", f"{NAME} (1)"]
    export = table_of(tmp_path / "grades.csv", head, body[::order], ";")
    text, missing = marks.canvas(MADE[::order], {}, export)
    found = {row["SIS Login ID"]: row[f"{NAME} (1)"] for row in csv.DictReader(io.StringIO(text))}
    assert found == {i: "" if points is None else f"{points:.1f}" for i, points in zip(IDS, GIVEN, strict=True)}
    assert not missing


@pytest.mark.parametrize("order", [1, -1])
def test_each_mark_goes_to_its_own_row_of_moodle(tmp_path, order):
    mails = [f"{at}@x.org" for at in range(10)] + ["Li.Wei@x.org", "jose@x.org"]
    names = [*NAMES[:8], "Al Gray", "Al Gray", "Wei Li", "José De La Cruz"]
    rows = enumerate(zip(names, IDS, mails, strict=True))
    body = [[f"Participant {at}", n, i, m, "", "50,00"] for at, (n, i, m) in rows]
    head = ["Identifier", "Full name", "ID number", "Email address", "Grade", "Maximum Grade"]
    sheet = table_of(tmp_path / "sheet.csv", head, body[::order])
    text, missing = marks.moodle(MADE[::order], {}, sheet)
    found = {row["ID number"]: row["Grade"] for row in csv.DictReader(io.StringIO(text))}
    assert found == {i: "" if points is None else f"{points / 2:.1f}" for i, points in zip(IDS, GIVEN, strict=True)}
    assert not missing


def test_two_of_a_name_get_no_mark_by_it(tmp_path):
    """But by the numbers that their archive had."""
    made = [mark_of("Al_Gray", 30, AL), mark_of("Al_Gray_8", 40, ALSO_AL), mark_of("Bo", 50, ("Bo", "Li"))]
    body = [["Participant 7", "Al Gray", ""], ["Participant 8", "Al Gray", ""], ["Participant 9", "Bo Li", ""]]
    sheet = table_of(tmp_path / "sheet.csv", ["Identifier", "Full name", "Grade"], body)
    text, missing = marks.moodle(made, {}, sheet)
    assert [row["Grade"] for row in csv.DictReader(io.StringIO(text))] == ["", "", "50.0"]
    assert missing == ["Al_Gray", "Al_Gray_8"]
    text, missing = marks.moodle(made, {("Al_Gray", NAME): "7", ("Al_Gray_8", NAME): "8"}, sheet)
    assert [row["Grade"] for row in csv.DictReader(io.StringIO(text))] == ["30.0", "40.0", "50.0"] and not missing
    text, missing = marks.moodle(made[1:], {("Al_Gray_8", NAME): "10", ("Bo", NAME): "9"}, sheet)
    assert missing == ["Al_Gray_8"], "the sheet knows these numbers, and has none of this student"


def test_a_lab_s_column_is_the_one_called_after_it(tmp_path):
    head = ["Student", "ID", f"{NAME} again (5)", f"{NAME} (4)", f"Peer review of {NAME} (6)"]
    export = table_of(tmp_path / "grades.csv", head, [["Li, Bo", "9", "1", "2", "3"]])
    made = [mark_of("Bo", 50, ("Bo", "Li"))]
    (row,) = csv.DictReader(io.StringIO(marks.canvas(made, {}, export)[0]))
    assert row == {"Student": "Li, Bo", "ID": "9", f"{NAME} (4)": "50.0"}
    export = table_of(tmp_path / "grades.csv", head[:3] + head[4:], [["Li, Bo", "9", "1", "3"]])
    with pytest.raises(UserError, match="several columns"):
        marks.canvas(made, {}, export)


@pytest.mark.parametrize("called", ["2a Workers", "2a-workers: feed the loop", "Lab 2a", "2A", LAB.title])
def test_an_assignment_may_be_called_as_people_call_it(tmp_path, called):
    head = ["Student", "ID", f"{called} (4)", "2a Reading quiz (5)", "12a (6)"]
    export = table_of(tmp_path / "grades.csv", head, [["Li, Bo", "9", "1", "2", "3"]])
    (row,) = csv.DictReader(io.StringIO(marks.canvas([mark_of("Bo", 50, ("Bo", "Li"))], {}, export)[0]))
    assert row == {"Student": "Li, Bo", "ID": "9", f"{called} (4)": "50.0"}


@pytest.mark.filterwarnings("ignore")
def test_canvas_gets_a_new_column_only_with_a_word_about_it(course, capsys):
    export = table_of(
        course / "grades.csv", ["Student", "ID", "SIS Login ID", "Week 3 (4)"], [["Lee, Ann", "9", "ann", ""]]
    )
    _, _, err = run(course, "--lab", NAME, "--canvas", str(export), capsys=capsys)
    assert f"no column for {NAME}" in err and "rename" in err
    export = table_of(
        course / "grades.csv", ["Student", "ID", "SIS Login ID", "Lab 2a (4)"], [["Lee, Ann", "9", "ann", ""]]
    )
    _, _, err = run(course, "--lab", NAME, "--canvas", str(export), capsys=capsys)
    assert "no column" not in err


@pytest.mark.filterwarnings("ignore")
def test_who_was_only_measured_quickly_is_told_so(course, capsys):
    nb = nbformat.read(course / "submitted" / "ann" / NAME / f"{NAME}.ipynb", as_version=4)
    next(c for c in nb.cells if c.id == "submission").source = "%%submission\nx = 'eve'"
    (course / "submitted" / "eve" / NAME).mkdir(parents=True)
    nbformat.write(nb, course / "submitted" / "eve" / NAME / f"{NAME}.ipynb")
    eve = next(one for one in read_class(REPOSITORY / "labs", course / "submitted") if one.student == "eve")
    whole = grade_of(50) | {"quick": True}
    job = Job(NAME, eve.submission, quick=True)
    Store(course / "measured").put(
        job, {"machine": "a CPU", "version": "v", "seconds": 4.0, "worker": "w", "result": whole}
    )
    status, _, err = run(course, capsys=capsys)
    assert status == 1 and f"only quickly: {NAME}: eve" in err and "--quick" in err
    status, _, err = run(course, "--quick", capsys=capsys)
    assert status == 0 and "only quickly" not in err
    assert {row["student"]: row["points"] for row in read(course / "measured" / "marks.csv")}["eve"] == "50"


def test_tables_are_read_as_programs_write_them(tmp_path):
    path = tmp_path / "t.csv"
    for text in (
        "id,name\n1,Ü\n",
        "id;name\r\n1;Ü\r\n",
        "id\tname\r1\tÜ\r",
        '"id";"name, first, last"\n1;Ü\n',
        f'id,name\n1,Ü\n2,"{"x" * 100_000}"\n',
    ):
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
            path.write_bytes(text.encode(encoding))
            head, rows = marks.read_table(path)
            assert head[0] == "id" and len(head) == 2 and list(rows[0].values()) == ["1", "Ü"], (text[:30], encoding)
    path.write_text(f'id,name\n1,"{"x" * 200_000}"\n')
    with pytest.raises(UserError, match="cannot be read as a table"):
        marks.read_table(path)


@pytest.mark.filterwarnings("ignore")
def test_an_explanation_that_waits_is_named_beside_what_else_went_wrong(course, capsys):
    store = Store(course / "measured")
    everyone = {one.student: one for one in read_class(REPOSITORY / "labs", course / "submitted")}
    failed = grade_of(0) | {"fatal": "it raised ValueError"}
    store.put(
        Job(NAME, everyone["bob"].submission),
        {"machine": "a CPU", "version": "v", "seconds": 4.0, "worker": "w", "result": failed},
    )
    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        book.find_grade("explanation", NAME, NAME, "ann").needs_manual_grade = True
        book.db.commit()
    _, _, err = run(course, capsys=capsys)
    found = {row["student"]: row["note"] for row in read(course / "measured" / "marks.csv")}
    assert found["bob"] == f"it raised ValueError; {marks.UNMARKED}" and found["ann"] == marks.CHANGED
    assert f"nobody has marked yet: {NAME}: bob" in err and f"changed since they were marked: {NAME}: ann" in err


@pytest.mark.filterwarnings("ignore")
def test_a_penalty_from_before_somebody_marked_is_named(course, capsys):
    """nbgrader's penalty "zero" takes off what there is when it grades: points for the explanation come later."""
    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        notebook = book.find_submission_notebook(NAME, NAME, "ann")
        book.find_grade(LAB.checks[0].name, NAME, NAME, "ann").auto_score = 60
        for penalty, told in ((60, True), (68, False), (30, False), (0, False)):
            notebook.late_submission_penalty = penalty
            book.db.commit()
            _, _, err = run(course, capsys=capsys)
            assert ("run `nbgrader autograde LAB --force`: 2a_workers: ann" in err) == told, penalty


@pytest.mark.filterwarnings("ignore")
def test_who_was_not_measured_stands_in_one_line(course, capsys):
    """After an update of the grader that is the whole class."""
    for student in ("eve", "fay"):
        nb = nbformat.read(course / "submitted" / "ann" / NAME / f"{NAME}.ipynb", as_version=4)
        next(c for c in nb.cells if c.id == "submission").source = f"%%submission\nx = {student!r}"
        (course / "submitted" / student / NAME).mkdir(parents=True)
        nbformat.write(nb, course / "submitted" / student / NAME / f"{NAME}.ipynb")
    status, _, err = run(course, capsys=capsys)
    assert status == 1 and f"Not measured by this version of the grader: {NAME}: eve, fay. Run `grader class" in err
    assert "eve" not in err.partition("eve, fay")[2].partition("without the explanation")[0]


def test_the_page_s_rule_for_late_work_takes_off_a_tenth_per_day():
    page = (REPOSITORY / "docs" / "instructors.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    late = names["TenthPerDay"]().late_submission_penalty
    day = 86400
    assert [late("ann", 80.0, seconds) for seconds in (1, day, day + 1, 20 * day)] == [8, 8, 16, 80]


@pytest.mark.filterwarnings("ignore")
def test_points_by_hand_of_an_older_notebook_are_named(course, capsys):
    """Who handed in anew has the points of the new notebook, and those that a person gave for the old one."""
    for there, told in ((0, True), (60, False)):
        with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
            book.find_grade(LAB.checks[0].name, NAME, NAME, "ann").auto_score = there
            book.db.commit()
        _, _, err = run(course, capsys=capsys)
        again = f"ann, {NAME}: {there} in the gradebook, 60 measured. Run `nbgrader autograde {NAME} --student ann"
        assert (again in err) == told, there


@pytest.mark.filterwarnings("ignore")
def test_a_lab_that_was_never_set_costs_nobody_anything(course, capsys):
    """ann handed in one by mistake: who did not has no mark of it, and is not missed."""
    other = "1c_diagnose"
    (course / "submitted" / "ann" / other).mkdir()
    (course / "submitted" / "ann" / other / f"{other}.ipynb").write_text("no notebook")
    run(course, capsys=capsys)
    found = {(row["student"], row["lab"]): row for row in read(course / "measured" / "marks.csv")}
    assert {student for student, lab in found if lab == other} == {"ann"}
    assert f"generate_assignment {other} --force" in found["ann", other]["note"]
    rows = summary.rows(read_class(REPOSITORY / "labs", course / "submitted"), {})
    assert summary.absent(course / "gradebook.db", rows) == [f"{NAME}: dan"]


@pytest.mark.filterwarnings("ignore")
def test_a_mark_of_which_only_a_part_is_certain_says_so(course, capsys):
    everyone = {one.student: one for one in read_class(REPOSITORY / "labs", course / "submitted")}
    open_one = grade_of(40)
    open_one["checks"][1] |= {"status": "INCONCLUSIVE", "title": "Throughput"}
    Store(course / "measured").put(
        Job(NAME, everyone["bob"].submission),
        {"machine": "a CPU", "version": "v", "seconds": 4.0, "worker": "w", "result": open_one},
    )
    _, _, err = run(course, capsys=capsys)
    found = {row["student"]: row["note"] for row in read(course / "measured" / "marks.csv")}
    assert found["bob"] == f"inconclusive: Throughput; {marks.UNMARKED}"
    assert "Inconclusive" in err and f"{NAME}: bob" in err.split("Inconclusive")[1] and "--again" in err


def test_what_canvas_has_stays_where_there_is_no_mark(tmp_path):
    """Its importer, lib/gradebook_importer.rb, takes an empty cell for a grade that was deleted. It exports EX and N/A."""
    head = ["Student", "ID", "SIS Login ID", "Section", "Lab 2a (7)"]
    had = {
        "Lee, Ann": "1",
        "Ex, Ed": "EX",
        "Old, Olga": "17,50",
        "None, Nina": "N/A",
        "Open, Otto": "8",
        "Li, Bo": "",
        "Nil, Nora": "7",
    }
    body = [
        ["    Points Possible", "", "", "", "20,00"],
        *([n, str(at), "", "A", v] for at, (n, v) in enumerate(had.items())),
    ]
    made = [mark_of("Ann", 50, ("Ann", "Lee")), mark_of("Ed", 0, ("Ed", "Ex")), mark_of("Nora", 0, ("Nora", "Nil"))]
    made.append(Mark(NAME, "Otto", None, None, first_name="Otto", last_name="Open"))
    text, missing = marks.canvas(made, {}, table_of(tmp_path / "g.csv", head, body, ";"))
    found = {row["Student"]: row["Lab 2a (7)"] for row in csv.DictReader(io.StringIO(text))}
    assert found == {"    Points Possible": "20,00"} | had | {"Lee, Ann": "10.0", "Nil, Nora": "0.0"} and not missing


def test_canvas_may_write_names_in_two_columns(tmp_path):
    """LastName and FirstName of lib/gradebook_exporter.rb. Its importer wants each of the columns about a student in place."""
    about = ["LastName", "FirstName", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account", "Section"]
    head = [
        *about,
        "Notes",
        "Lab 2a (7)",
        "Lab 2a Current Score",
        "Lab 2a Unposted Final Score (Autumn)",
        "Override Score",
    ]
    points = ["    Points Possible", *[""] * 8, "50", "(read only)", "(read only)", ""]
    body = [points, ["de la Cruz", "José", "9", "s9", "jc", "i9", "x.org", "A", "", "", "", "", ""]]
    text, missing = marks.canvas(
        [mark_of("José", 50, ("José", "de la Cruz"))], {}, table_of(tmp_path / "g.csv", head, body)
    )
    possible, row = csv.DictReader(io.StringIO(text))
    assert list(row) == [*about, "Lab 2a (7)"] and row["Lab 2a (7)"] == "25.0" and not missing
    assert possible["LastName"] == points[0] and possible["Lab 2a (7)"] == "50" and row["Integration ID"] == "i9"
    without = table_of(tmp_path / "g.csv", [*about, *head[10:]], [row[:8] + row[9:] for row in body])
    assert marks.column_of(NAME, marks.read_table(without)[0], without) == "", "a group's score is no assignment"
