"""Keyboard and screen reader in a real browser: what is shown has names, headers and an order, and fits a narrow window."""

import contextlib

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from test_browser import TOKEN, browser, jupyter, pytestmark  # noqa: F401  (fixtures)
from test_explorer_browser import this_checkout  # noqa: F401
from test_report import samples

import grader
from grader.frontends import report
from grader.frontends.notebook.note import Note, Output, ProgressBar

# of all that is named or has a level in the tree that a screen reader gets: its role, name and level
SHOWN = ("heading", "button", "link", "table", "columnheader", "rowheader", "image", "progressbar", "status", "list")


class Kept(Output):
    """What was shown last."""

    def show(self, page: str, text: str) -> None:
        self.page = page


def progress() -> str:
    kept = Kept()
    ProgressBar(kept, "It goes on.")(0.4, "timing pair 3")
    return kept.page


def tree(browser) -> list[tuple[str, str, int | None]]:  # noqa: F811
    """Role, name and level of each node of the accessibility tree that is in SHOWN."""
    found = []
    for node in browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
        role, name = (node.get(key, {}).get("value") or "" for key in ("role", "name"))
        level = next((each["value"]["value"] for each in node.get("properties", []) if each["name"] == "level"), None)
        if not node["ignored"] and role in SHOWN:
            found.append((role, name.strip(), level))
    return found


# without one JupyterLab asks, and its question takes the keyboard
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def show(pages, browser, jupyter, tmp_path):  # noqa: F811
    """Open a notebook with these outputs in JupyterLab, and wait until all are there."""
    from selenium.webdriver.support.ui import WebDriverWait

    cells = [
        nbformat.v4.new_code_cell("lab", outputs=[nbformat.v4.new_output("display_data", {"text/html": page})])
        for page in pages
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = KERNEL
    nbformat.write(notebook, tmp_path / "course" / "shown.ipynb")
    NotebookNotary(data_dir=str(tmp_path / "data")).sign(notebook)
    browser.get(f"{jupyter}/lab/tree/shown.ipynb?token={TOKEN}&reset")
    many = f"return document.querySelectorAll('.speed-report style').length >= {len(pages)}"
    WebDriverWait(browser, 600, poll_frequency=0.5).until(lambda _: browser.execute_script(many))


@pytest.mark.slow
def test_a_screen_reader_gets_names_headers_and_levels(jupyter, browser, tmp_path):  # noqa: F811
    card = grader.lab("2a_workers", device="cpu", quick=True)._repr_html_()
    pages = [card, progress(), Note("A note").html(), *(report.html(result) for result in samples().values())]
    show(pages, browser, jupyter, tmp_path)
    found = tree(browser)
    levels = [level for role, _, level in found if role == "heading"]
    assert {3, 4} == set(levels) and levels[0] == 3, "below the notebook's own headings, and no level is left out"
    assert ("columnheader", "on a CPU", None) in found and ("rowheader", "lab.check()", None) in found
    assert any(role == "progressbar" and name.startswith("Timing pair 3") for role, name, _ in found)
    assert any(role == "status" for role, *_ in found), "progress is said while one waits"
    assert all(name for role, name, _ in found if role == "heading")
    unnamed = """return [...document.querySelectorAll(".speed-report :is(button, a, summary, img, [role=img])")]
                 .filter(e => !(e.textContent || e.alt || e.ariaLabel || "").trim()).map(e => e.outerHTML)"""
    assert not browser.execute_script(unnamed)
    assert browser.execute_script("return document.documentElement.lang")


# of what takes the keyboard in a report: what comes out of the order in which it is read
OUT_OF_ORDER = """
return [...document.querySelectorAll(".speed-report")].flatMap(page => {
  const all = [...page.querySelectorAll("a[href], button, summary, input, select, [tabindex]")].filter(e => e.getClientRects().length);
  const above = (e, other) => e.getBoundingClientRect().bottom < other.getBoundingClientRect().top - 1;
  return all.filter((e, i) => e.tabIndex > 0 || (i && above(e, all[i - 1]))).map(e => e.outerHTML.slice(0, 80)) })
"""


@pytest.mark.slow
def test_a_report_can_be_read_with_the_keyboard_alone(jupyter, browser, tmp_path):  # noqa: F811
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    pages = [report.html(result) for result in samples().values()]
    show(pages, browser, jupyter, tmp_path)
    assert browser.execute_script("return document.querySelectorAll('.speed-report summary').length") > 2
    assert not browser.execute_script(OUT_OF_ORDER)
    browser.execute_script("document.querySelector('.speed-report summary').focus()")
    shown = "return document.activeElement.parentElement.open"
    before = browser.execute_script(shown)
    ActionChains(browser).send_keys(Keys.ENTER).perform()  # JupyterLab takes it where the cell itself has the focus
    assert browser.execute_script(shown) != before
    ring = "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
    style, width = browser.execute_script(ring)
    assert style != "none" and width >= 1, "one sees where one is"


@pytest.mark.slow
@pytest.mark.parametrize("width", [900, 1600])
def test_the_map_fits_and_each_button_has_its_own_name(this_checkout, jupyter, browser, tmp_path, width):  # noqa: F811
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, 600, poll_frequency=0.5)
    cell = nbformat.v4.new_code_cell("from grader.frontends import start\nstart.course_map()")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = KERNEL
    nbformat.write(notebook, tmp_path / "course" / "map.ipynb")
    browser.set_window_size(width, 1400)
    browser.get(f"{jupyter}/lab/tree/map.ipynb?token={TOKEN}&reset")
    ready = "return document.querySelector(\".jp-Notebook-ExecutionIndicator[data-status='idle']\") !== null"
    wait.until(lambda _: browser.execute_script(ready))
    rows = "return document.querySelectorAll('.course-row').length > 60"

    def run(_):
        """Where the page was not ready for the keys, they are pressed again."""
        browser.execute_script("document.querySelector('.jp-CodeCell .cm-content').focus()")
        ActionChains(browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
        with contextlib.suppress(TimeoutException):
            return WebDriverWait(browser, 20).until(lambda _: browser.execute_script(rows))

    wait.until(run)
    hidden = """const right = document.querySelector(".jp-OutputArea-output").getBoundingClientRect().right + 1;
      return [...document.querySelectorAll(".jp-OutputArea-output :is(a, button, .course-row)")]
        .filter(e => e.getBoundingClientRect().right > right).map(e => e.innerText)"""
    assert not browser.execute_script(hidden)
    names = [name for role, name, _ in tree(browser) if role == "button" and name.startswith("Start ")]
    assert len(names) == len(set(names)) > 20
    assert ("list", "Core path", None) in tree(browser)
    # Tab goes through the map in the order in which it is read
    browser.execute_script("document.querySelector('.course-row a').focus()")
    seen = []
    for _ in range(4):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(browser.execute_script("return document.activeElement.innerText.trim()"))
    assert seen[0] in ("Start 1a", "Open 1a") or seen[1] in ("Start 1a", "Open 1a")
    browser.save_screenshot(str(tmp_path / f"map-{width}.png"))
