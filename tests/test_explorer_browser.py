"""The explorer in JupyterLab in a real browser: run a cell, choose a gap and a kernel, read what proves them."""

import json
from pathlib import Path

import nbformat
import pytest
import test_browser
from test_browser import KERNEL, TOKEN, browser, jupyter  # noqa: F401
from test_diagnosis import GEMM, US, Loop

pytestmark = test_browser.pytestmark
CELL = """from grader import trace
slow, fast = (trace.analyse(trace.read(name)) for name in ("slow.json", "fast.json"))
trace.explore(slow, fast)"""


@pytest.fixture
def this_checkout(monkeypatch):
    """The notebook's kernel imports the grader that is tested."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))


@pytest.mark.slow
def test_a_gap_is_chosen_and_its_evidence_read(this_checkout, jupyter, browser, tmp_path):  # noqa: F811
    from selenium.webdriver.support.ui import WebDriverWait

    course = tmp_path / "course"
    loops = {"slow": Loop([200 * US] * 30, data=20_000 * US, copy=1500 * US), "fast": Loop([200 * US] * 30)}
    for name, loop in loops.items():
        (course / f"{name}.json").write_text(json.dumps(loop.record()[0].document()))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, course / "explore.ipynb")

    def find(css: str, text: str = "") -> list:
        script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.textContent.includes(arguments[1]))"
        return browser.execute_script(script, css, text)

    def wait(css: str, text: str = "") -> list:
        return WebDriverWait(browser, 600, poll_frequency=0.3).until(lambda _: find(css, text))

    def choose(number: int) -> None:
        script = """const s = document.querySelector('.trace-choice select'); s.selectedIndex = arguments[0];
                    s.dispatchEvent(new Event('change', {bubbles: true}))"""
        browser.execute_script(script, number)

    browser.get(f"{jupyter}/lab/tree/explore.ipynb?token={TOKEN}")
    wait(".jp-NotebookPanel .jp-CodeCell")
    wait(KERNEL, "| Idle")
    find(".lm-MenuBar-itemLabel", "Run")[0].click()
    wait("li[data-command='runmenu:run-all']")[0].click()

    shown = ".trace-choice + .widget-html, .widget-html"
    wait(f"{shown} .trace-evidence", "while the host waited for data")  # the kernel starts, and imports anew
    static = wait("[class*='trace-']:not(.trace-choice):not(.trace-evidence):not(rect)", "input-bound")
    assert not any(element.is_displayed() for element in static), "what stands in for the widgets is hidden"
    assert find("svg rect title", "enumerate(DataLoader)") or find("svg rect title", "waited for data")
    assert find("svg .trace-marked")
    browser.save_screenshot(str(tmp_path / "gap.png"))
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {(n.get("role", {}).get("value"), n.get("name", {}).get("value")) for n in nodes if not n["ignored"]}
    assert ("listbox", "show") in named and (
        "image",
        "Timeline of the chosen steps. The list has its parts in words",
    ) in named
    choose(2)
    wait(f"{shown} .trace-evidence", "idle: ")
    WebDriverWait(browser, 600).until(lambda _: not find(f"{shown} .trace-evidence", "14.2 ms"))
    find("button.widget-toggle-button", "kernels")[0].click()
    wait(f"{shown} .trace-evidence", GEMM)
    wait(f"{shown} .trace-evidence", "60 calls")
    browser.save_screenshot(str(tmp_path / "kernel.png"))
    find("button.widget-toggle-button", "after")[0].click()
    wait(f"{shown} .trace-evidence", "60 calls")
    find("button.widget-toggle-button", "operations")[0].click()
    wait(f"{shown} .trace-evidence", "aten::mm")
    browser.save_screenshot(str(tmp_path / "operation.png"))
    assert not find(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']")
