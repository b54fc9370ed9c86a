"""Formgrader in a real browser, with a class of five: it lists what needs a person, shows the report, and takes points."""

import pytest
import readable
from nbgrader.api import Gradebook
from test_browser import TOKEN, browser, jupyter, pytestmark  # noqa: F401  (fixtures)
from test_explanations import (
    NAME,
    TEXT,
    as_it_was,
    autograded,
    in_a_new_cell,
    in_its_cell,
    in_place_of_the_cell,
    nbgrader,
    over_a_locked_cell,
)

STUDENTS = (as_it_was, in_a_new_cell, in_its_cell, in_place_of_the_cell, over_a_locked_cell)
# of the table of submissions, who needs a person: the seventh column has a tick
TICKED = """const rows = [...document.querySelectorAll("tbody tr")].filter(row => row.querySelectorAll("td").length > 6);
  return rows.length === 5 && rows.filter(row => row.querySelectorAll("td")[6].querySelector(".glyphicon-ok")).length"""
LOOKS = """const style = what => getComputedStyle(document.querySelector(".text_cell_render " + what));
  return [style("td").paddingRight, style("summary").display]"""
GIVE_7 = """const field = document.querySelector("#explanation.score");
  field.scrollIntoView(); field.focus(); field.value = "7"; field.dispatchEvent(new Event("change", {bubbles: true}))"""


@pytest.mark.slow
def test_who_marks_sees_what_needs_a_person(monkeypatch, request, browser, tmp_path):  # noqa: F811
    from selenium.webdriver.support.ui import WebDriverWait

    root = tmp_path / "course" / "class"  # below the folder that Jupyter serves
    root.mkdir(parents=True)
    autograded(root, STUDENTS)
    monkeypatch.chdir(root)  # where nbgrader looks for its settings
    address = request.getfixturevalue("jupyter")

    def wait(script: str):
        return WebDriverWait(browser, 600, poll_frequency=0.5).until(lambda _: browser.execute_script(script))

    def submission(student) -> str:
        with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
            return gradebook.find_submission_notebook(NAME, NAME, student.__name__).id

    browser.get(f"{address}/lab?token={TOKEN}")  # signs in, as whoever opens JupyterLab does
    wait("return document.querySelector('.jp-LabShell') !== null")
    browser.get(f"{address}/formgrader/gradebook/{NAME}/{NAME}")
    assert wait(TICKED) == 4, "all but who wrote nothing"
    browser.save_screenshot(str(tmp_path / "list.png"))
    for student in (in_a_new_cell, in_its_cell):
        browser.get(f"{address}/formgrader/submissions/{submission(student)}/")
        assert wait("return document.querySelector('.speed-report') !== null"), (
            "the report stands beside the grade cells"
        )
        wait("return document.querySelector('#explanation.score') !== null")
        assert TEXT in browser.execute_script("return document.body.innerText")
        assert browser.execute_script(LOOKS) == ["14px", "list-item"], (
            "numbers of a table stand apart, and one sees what opens"
        )
    poor = readable.poor(browser, "body")
    browser.execute_script(GIVE_7)

    def marked(_) -> bool:
        with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
            grade = gradebook.find_grade("explanation", NAME, NAME, in_its_cell.__name__)
            return (grade.manual_score, grade.needs_manual_grade) == (7, False)

    WebDriverWait(browser, 600).until(marked)
    browser.save_screenshot(str(tmp_path / "submission.png"))
    nbgrader(root, "generate_feedback", NAME, "--force")
    for student in (in_a_new_cell, as_it_was):
        browser.get(f"file://{root}/feedback/{student.__name__}/{NAME}/{NAME}.html")
        poor |= readable.poor(browser, "body")
    browser.save_screenshot(str(tmp_path / "feedback.png"))
    assert poor == {}
