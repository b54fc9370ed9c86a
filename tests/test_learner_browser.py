"""A learner's first lab in a real browser: from the map to full marks, with what a learner sees and types alone."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import scripts
from test_browser import SOLUTIONS, TOKEN, browser, jupyter, pytestmark  # noqa: F401  (fixtures)
from test_explorer_browser import this_checkout  # noqa: F401

NAME = "2a_workers"
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
FIND = """return [...document.querySelectorAll(arguments[0])].filter(e => e.innerText.includes(arguments[1]))"""
CHECKS = 2  # a learner whose machine was busy checks again


class Learner:
    """What somebody does who sits before JupyterLab."""

    def __init__(self, driver, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def wait(self, what, seconds: int = 600):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, poll_frequency=0.5).until(lambda _: what())

    def find(self, css: str, text: str = "") -> list:
        return self.driver.execute_script(FIND, css, text)

    def keys(self, *down: str, then: str) -> None:
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        for key in down:
            chain.key_down(key)
        chain.send_keys(then)
        for key in down:
            chain.key_up(key)
        chain.perform()

    def cell(self, text: str):
        return self.wait(lambda: self.find(f"{PANEL} .jp-CodeCell .jp-InputArea", text))[0]

    def choose(self, text: str) -> None:
        """Click into the cell that has this text."""
        from selenium.webdriver.common.by import By

        editor = self.cell(text).find_element(By.CSS_SELECTOR, ".cm-content")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", editor)
        editor.click()

    def edit(self, text: str, new: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self.choose(text)
        self.keys(Keys.CONTROL, then="a")
        self.driver.execute_cdp_cmd("Input.insertText", {"text": new})  # as a paste: no bracket is closed twice

    def run(self, text: str, seconds: int = 600) -> None:
        """Shift+Enter in the cell that has this text, and wait until it is done."""
        from selenium.webdriver.common.keys import Keys

        self.choose(text)
        number = "return document.querySelector(arguments[0] + ' .jp-CodeCell.jp-mod-active .jp-InputPrompt').innerText"
        before = self.driver.execute_script(number, PANEL)
        self.keys(Keys.CONTROL, then=Keys.ENTER)  # runs it, and stays there
        self.wait(
            lambda: re.fullmatch(r"\[\d+\]:", now := self.driver.execute_script(number, PANEL)) and now != before,
            seconds,
        )

    def run_all(self) -> None:
        self.wait(lambda: self.find("#jp-main-statusbar", "| Idle"))
        self.find(".lm-MenuBar-itemLabel", "Run")[0].click()
        self.wait(lambda: self.find("li[data-command='runmenu:run-all']"))[0].click()

    def picture(self, name: str) -> None:
        self.driver.save_screenshot(str(self.folder / f"{name}.png"))


@pytest.mark.slow
def test_from_the_map_to_full_marks(this_checkout, request, browser, tmp_path):  # noqa: F811
    course = tmp_path / "course"
    laid = [sys.executable, "-m", "grader", "course", str(course)]
    subprocess.run(laid, env=scripts.environment(), check=True, capture_output=True)
    address = request.getfixturevalue("jupyter")
    learner = Learner(browser, tmp_path)
    browser.get(f"{address}/lab/tree/notebooks/00_start_here.ipynb?token={TOKEN}")
    learner.run_all()
    learner.wait(lambda: learner.find("button", "Start 2a"))[0].click()
    learner.picture("map")
    learner.wait(lambda: learner.find("a", "Open 2a"))[0].click()
    learner.wait(lambda: learner.find(f"{PANEL} h1", "A loop at its defaults"))
    learner.wait(lambda: learner.find("#jp-main-statusbar", "| Idle"))

    learner.edit("quick = False", 'device = "cpu"\nquick = True')
    learner.run("quick = True")
    learner.run(f'grader.lab("{NAME}"')
    learner.run("def train(job)")
    learner.edit("lab.predict(cause=", 'lab.predict(cause="input-bound", gain=4.5, device="cpu")')
    learner.run("lab.predict(cause=")
    assert learner.wait(lambda: learner.find(f"{PANEL} .speed-report", "Your prediction is locked"))
    learner.run("lab.peek()")
    solution = nbformat.read(SOLUTIONS / NAME / f"{NAME}.ipynb", as_version=4)
    learner.edit("def train(job)", next(cell.source for cell in solution.cells if "def train(job)" in cell.source))
    learner.run("def train(job)")
    learner.run("lab.peek()")
    best, undecided = 0.0, False
    for _ in range(CHECKS):
        learner.run("lab.check()")
        report = learner.find(f"{PANEL} .speed-report", "of 100 points")[0].text
        best = max(best, float(re.search(r"([\d.]+) of 100 points", report)[1]))
        undecided = "points are undecided" in report
        learner.picture("report")
        if not undecided:
            break
    # 20 need a GPU, and 5 a gain near the predicted one, which hangs on the machine
    assert undecided or re.search("(75|80) of 100 points", report), report
    learner.run('lab.grade("throughput")')

    learner.find(".lm-TabBar-tab", "00_start_here")[0].click()
    learner.run_all()
    (row,) = learner.wait(lambda: learner.find(f"{PANEL} .course-row", f"{best:g} of"))[:1]
    assert NAME in row.text, "the map shows the best of all checks"
    learner.picture("progress")
    if undecided:
        pytest.skip(f"other programs keep this machine too busy for a verdict: {best:g} points are certain")
