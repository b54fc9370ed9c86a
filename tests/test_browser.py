"""A lab in JupyterLab in a real browser: Run All ends in a report that is on the page, and an edited cell replaces itself."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from helpers import free_port

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
LABS = Path(__file__).parents[1] / "labs"
SOLUTIONS = Path(__file__).parents[1] / "solutions"
TOKEN = "test"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page, also those far down
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
# the notebook's own indicator says "idle" before there is a kernel, and then Run All asks which kernel to select
KERNEL = "#jp-main-statusbar"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1400",
)

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are needed for the test in a browser"
)


def notebook(folder: Path) -> Path:
    """The released lab, its parameters set, with the prediction and the loop of its solution filled in."""
    lab = nbformat.read(LABS / "2a_workers" / "2a_workers.ipynb", as_version=4)
    solution = nbformat.read(SOLUTIONS / "2a_workers" / "2a_workers.ipynb", as_version=4)
    solved = {cell.metadata.nbgrader.grade_id: cell.source for cell in solution.cells if "nbgrader" in cell.metadata}
    for cell in lab.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = 'device = "cpu"\nquick = True'
        elif cell.metadata.get("nbgrader", {}).get("grade_id") in ("predict", "submission"):
            cell.source = solved[cell.metadata.nbgrader.grade_id]
    count = "[c for c in lab._recorder.cells if c.startswith('%%submission')]"
    lab.cells.append(nbformat.v4.new_code_cell(f"print('submissions:', [s[-9:] for s in {count}])"))
    path = folder / "2a_workers.ipynb"
    nbformat.write(lab, path)
    return path


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab with settings, kernels and folders of its own."""
    root = tmp_path / "course"
    root.mkdir(exist_ok=True)  # a test may have put something there
    notebook(root)
    for name, values in SETTINGS.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    port = free_port()
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={TOKEN}"]
    log = tmp_path / "jupyter.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            env=os.environ | {name: str(tmp_path / folder) for name, folder in folders.items()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 240  # a busy machine takes minutes to import it
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5):
                break
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.3)
        yield address
    finally:
        server.terminate()  # ends its kernels, too
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.slow
def test_run_all_ends_in_a_report(jupyter: str, browser, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def wait(what):
        return WebDriverWait(browser, 600, poll_frequency=0.5).until(what)

    def find(css: str, text: str = "") -> list:  # in one call: outputs are replaced while one looks at them
        script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.innerText.toLowerCase().includes(arguments[1].toLowerCase()))"
        return browser.execute_script(script, css, text)

    def scroll(css: str, text: str, number: int = 0) -> None:
        script = """[...document.querySelectorAll(arguments[0])].filter(e => e.innerText.toLowerCase().includes(arguments[1].toLowerCase()))
                    .slice(arguments[2])[0]?.scrollIntoView({block: "start"})"""
        browser.execute_script(script, css, text, number)

    def picture(name: str) -> None:
        browser.save_screenshot(str(tmp_path / f"{name}.png"))

    browser.get(f"{jupyter}/lab/tree/2a_workers.ipynb?token={TOKEN}")
    wait(lambda _: find(".jp-NotebookPanel .jp-CodeCell"))
    wait(lambda _: find(KERNEL, "| Idle"))
    find(".lm-MenuBar-itemLabel", "Run")[0].click()
    wait(lambda _: find("li[data-command='runmenu:run-all']"))[0].click()

    wait(lambda _: find(".speed-report", "Lab 2a_workers"))
    picture("card")
    wait(lambda _: find(".speed-report progress"))
    wait(lambda _: find(".speed-report", "timing pair"))
    scroll(".speed-report", "timing pair")
    picture("progress")
    score = wait(lambda _: find(".sp-score"))[0]
    assert re.fullmatch(r"[\d.]+ of 100 points", score.text)
    wait(lambda _: find(".jp-OutputArea-output", "submissions:"))
    assert not find(".speed-report progress"), "the report stands where the bar was"
    assert not find(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']")
    for element in find(".speed-report"):
        image = element.find_elements(By.CSS_SELECTOR, "img")
        assert all(browser.execute_script("return arguments[0].naturalWidth", i) > 100 for i in image)

    # JupyterLab says which cell it is: running an edited one again does not make a second submission
    cell = next(e for e in find(".jp-CodeCell") if "%%submission" in e.text and "def train" in e.text)
    cell.find_element(By.CSS_SELECTOR, ".cm-content").click()
    keys = ActionChains(browser)
    keys.key_down(Keys.CONTROL).send_keys(Keys.END).key_up(Keys.CONTROL).send_keys("  # edited").perform()
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    find(".jp-CodeCell", "submissions:")[-1].find_element(By.CSS_SELECTOR, ".cm-content").click()
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    wait(lambda _: find(".jp-OutputArea-output", "submissions: [' # edited']"))

    # and in which order they stand: a helper that is inserted above comes before the cell that uses it
    cell.find_element(By.CSS_SELECTOR, ".cm-content").click()
    ActionChains(browser).send_keys(Keys.ESCAPE, "a", Keys.ENTER).perform()
    ActionChains(browser).send_keys("%%submission", Keys.ENTER, "first = 1  # helper1").perform()
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("s").key_up(Keys.CONTROL).perform()
    wait(lambda _: "# helper1" in (tmp_path / "course" / "2a_workers.ipynb").read_text())
    find(".jp-CodeCell", "submissions:")[-1].find_element(By.CSS_SELECTOR, ".cm-content").click()
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    wait(lambda _: find(".jp-OutputArea-output", "submissions: ['# helper1', ' # edited']"))

    for number in range(len(find(".speed-report"))):
        scroll(".speed-report", "", number)
        picture(f"output-{number}")
