"""What JupyterLab's themes make of cards and reports: every text can be read, in light, dark and high contrast."""

import json
from pathlib import Path

import nbformat
import pytest
import readable
from nbformat.sign import NotebookNotary
from test_browser import TOKEN, browser, jupyter, pytestmark  # noqa: F401  (fixtures)
from test_report import samples

import grader
from grader.frontends import report
from grader.frontends.notebook.note import Note

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")


@pytest.mark.slow
def test_every_text_can_be_read_in_every_theme(jupyter: str, browser, tmp_path: Path) -> None:  # noqa: F811
    from selenium.webdriver.support.ui import WebDriverWait

    card = grader.lab("2a_workers", device="cpu", quick=True)._repr_html_()
    pages = [card, Note("A note with `code`", ["Run `lab.check()` first."], printed="Traceback\n").html()]
    pages += [report.html(result) for result in samples().values()]
    outputs = [nbformat.v4.new_output("display_data", {"text/html": page}) for page in pages]
    cells = [nbformat.v4.new_code_cell("lab", outputs=[each]) for each in outputs]
    cells.append(nbformat.v4.new_markdown_cell("text with `code`"))
    nb = nbformat.v4.new_notebook(cells=cells)
    nbformat.write(nb, tmp_path / "course" / "shown.ipynb")
    notary = NotebookNotary(data_dir=str(tmp_path / "data"))
    notary.sign(nb)
    poor: dict[tuple[str, str, str], float] = {}
    for theme in THEMES:
        file = tmp_path / "settings" / "@jupyterlab" / "apputils-extension" / "themes.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"theme": theme}))
        browser.get(f"{jupyter}/lab/tree/shown.ipynb?token={TOKEN}&reset")
        wait = WebDriverWait(browser, 600, poll_frequency=0.5)
        many = f"return document.querySelectorAll('.speed-report style').length >= {len(pages)}"
        wait.until(lambda _, many=many: browser.execute_script(many))
        wait.until(lambda _, theme=theme: browser.execute_script("return document.body.dataset.jpThemeName") == theme)
        found = browser.execute_script(readable.CONTRASTS, ".speed-report")
        browser.save_screenshot(str(tmp_path / f"{theme}.png"))
        assert any(tag == "CODE" for _, tag, _ in found) and len(found) > 100
        poor |= {(theme, words, tag): round(contrast, 2) for words, tag, contrast in found if contrast < readable.LEAST}
    assert not poor


@pytest.mark.slow
def test_make_lab_hides_the_instructor_s_tools(monkeypatch, request, browser) -> None:  # noqa: F811
    from selenium.webdriver.support.ui import WebDriverWait

    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(Path(grader.__file__).parent / "frontends" / "learner"))
    address = request.getfixturevalue("jupyter")
    browser.get(f"{address}/lab?token={TOKEN}")
    WebDriverWait(browser, 600).until(
        lambda _: browser.execute_script("return document.body.innerText.includes('Nbgrader')")
    )
    menu = "return [...document.querySelectorAll('.lm-MenuBar-itemLabel')].find(e => e.innerText === 'Nbgrader')"
    browser.execute_script(menu).click()
    items = "return [...document.querySelectorAll('.lm-Menu-itemLabel')].map(e => e.innerText).filter(Boolean)"
    WebDriverWait(browser, 600).until(lambda _: browser.execute_script(items))
    assert not {"Formgrader", "Courses", "Create Assignment"} & set(browser.execute_script(items))
    assert "Create Assignment" not in browser.execute_script("return document.body.innerText")
