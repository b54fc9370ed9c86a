"""Drawings, and pages that the grader writes, in a real browser: all words can be read, and nothing is wider than the window."""

import math
import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import readable
from test_browser import browser, pytestmark  # noqa: F401  (a fixture)
from test_report import samples

from grader.course import outline
from grader.frontends import attempts, board, cli, report, try_levers
from grader.frontends.attempts import Attempt
from grader.measure import decision
from grader.own import trying
from grader.own.trying import Rung, Tried
from grader.paths import REPOSITORY

LABS = Path(__file__).parents[1] / "labs"
WITHIN = re.compile(r'src="data:image/svg\+xml,([^"]*)"')


def drawings(folder: Path) -> list[Path]:
    """Those of lessons, and those within the labs' text as files of `folder`."""
    found = sorted(outline.FIGURES.glob("*.svg"))
    for lab in sorted(LABS.glob("*/*.ipynb")):
        text = "\n".join(cell.source for cell in nbformat.read(lab, as_version=4).cells)
        for number, drawing in enumerate(WITHIN.findall(text)):
            found.append(folder / f"{lab.stem}-{number}.svg")
            found[-1].write_text(unquote(drawing).strip(), encoding="utf-8")
    return found


@pytest.mark.slow
def test_every_word_of_a_drawing_can_be_read(browser, tmp_path):  # noqa: F811
    found, paths = {}, drawings(tmp_path)
    assert any(path.parent == tmp_path for path in paths)
    for path in paths:
        browser.get(path.as_uri())
        if bad := [*readable.poor(browser, "svg").items(), *browser.execute_script(readable.CLASHES)]:
            found[path.name] = bad
    assert not found


def tried() -> Tried:
    """Levers of each kind: faster, slower, of one run, with other losses, not measured; and a ladder."""
    known = {lever.name: lever for lever in trying.levers(16)}

    def rung(names: str, ms: float, factor: float, said: str, runs: int = 3, apart: float | None = None) -> Rung:
        spread = 0.01 if runs > 1 else math.nan
        gain = decision.Gain(factor, factor - 0.02, factor + 0.02, spread, runs)
        levers, step_s = tuple(known[name] for name in names.split()), [ms / 1e3] * runs
        return Rung(levers, step_s, [0.0] * runs, 11e9, gain=gain, said=said, apart=apart)

    alone = [
        Rung((known["attention"],), why_not="no softmax chain was written out in the model, " * 3),
        rung("autocast", 29.1, 1.41, decision.FASTER, apart=0.013),
        rung("compile", 33.1, 1.25, decision.FASTER),
        rung("channels_last", 45.1, 0.91, decision.SLOWER),
        rung("benchmark", 41, 1.0, decision.UNKNOWN, runs=1),
    ]
    ladder = [alone[1], rung("autocast compile", 25.3, 1.15, decision.FASTER)]
    return Tried(Rung((), [0.0411] * 4, [0.04] * 4, 11e9), alone, ladder, comparable=False, seconds=312, complete=False)


def board_rows() -> list[Attempt]:
    base = {"lab": "3a_precision", "when": "2026-11-21T10:00:00+00:00", "machine": "NVIDIA H200, 16 cores", "torch": "2.11.0",
            "points": 50.0, "max_points": 100.0, "gain": 2.0, "gain_lower": 1.9, "gain_upper": 2.1, "rate": 118200.4,
            "unit": "tokens/s", "counts": True, "target": 5.3}  # fmt: skip
    changes = [{}, {"quick": True}, {"note": "a long note " * 8}, {"counts": False, "said": "not the same training"}]
    return [attempts.usable(base | change) for change in changes]


def pages(folder: Path) -> dict[str, Path]:
    """One page of each kind that the grader writes to a file."""
    made = {name: report.html(result, standalone=True) for name, result in samples().items()}
    made["try"] = try_levers.page(["python", "train.py", "--data", "/data/" + "long/" * 30], tried())
    made["board"] = board.page(board_rows())
    found = {}
    for name, page in made.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page, encoding="utf-8")
    traces = REPOSITORY / "data" / "traces"
    recorded = [traces / "gpt_launch.json.gz", traces / "gpt_launch_fixed.json.gz"], [REPOSITORY / "tests/data/dlrm8"]
    for name, files in zip(("two traces", "a job"), recorded, strict=True):
        found[name] = folder / f"{name}.html"
        assert cli.main(["diagnose", *map(str, files), "--html", str(found[name])]) == 0
    return found


@pytest.mark.slow
def test_a_page_fits_a_phone_and_all_its_words_can_be_read(browser, tmp_path, capsys):  # noqa: F811
    wide, bad = {}, {}
    for name, path in pages(tmp_path).items():
        for width in (390, 900):
            size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(path.as_uri())
            if (needs := browser.execute_script("return document.documentElement.scrollWidth")) > width:
                wide[name, width] = needs
        bad |= {(name, *words): contrast for words, contrast in readable.poor(browser, ".speed-report").items()}
        unnamed = "return [...document.querySelectorAll('img')].filter(e => e.alt.trim().split(' ').length < 3).length"
        assert not browser.execute_script(unnamed), f"a picture of {name} has no words"
    assert (wide, bad) == ({}, {})
