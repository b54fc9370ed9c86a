"""Held-out data after a real run, against the band of long runs: the arithmetic, and a band made and used for real."""

import math
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import variants
from helpers import GPT, grade_cells
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import calibrate, labs
from grader.checks import outcome
from grader.errors import UserError
from grader.labs.lab import Lab, Outcome
from grader.measure import calibration
from grader.measure.blocks import Plan
from grader.measure.calibration import Band, Usual, band
from grader.result import FAIL, NOT_MEASURED, PASS, read_json
from grader.sandbox.setting import Limits

# ---------------------------------------------------------------- the arithmetic

figures = st.floats(0.01, 10)
runs = st.integers(3, 6).flatmap(
    lambda seeds: st.lists(st.integers(1, 5000), min_size=2, max_size=12, unique=True).flatmap(
        lambda steps: st.lists(
            st.fixed_dictionaries(
                {step: st.fixed_dictionaries({"loss": figures, "accuracy": st.floats(0, 1)}) for step in steps}
            ),
            min_size=seeds,
            max_size=seeds,
        )
    )
)


@settings(max_examples=40)
@given(runs)
def test_band_is_what_was_stored_at_the_stored_steps(made):
    found = band(made)
    assert [step for step, _ in found.rows] == sorted(made[0]) and found.seeds == len(made)
    for step in made[0]:
        losses = [run[step]["loss"] for run in made]
        mean, sd = found.at(step)["loss"]
        assert mean == pytest.approx(sum(losses) / len(losses))
        assert sd == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in losses) / (len(losses) - 1)), abs=1e-9)


@settings(max_examples=40)
@given(runs, st.floats(0, 1))
def test_between_two_stored_steps_it_lies_between_them(made, share):
    found = band(made)
    first, last = found.steps
    step = round(first + share * (last - first))
    rows = dict(found.rows)
    low, high = max(s for s in rows if s <= step), min(s for s in rows if s >= step)
    for name, usual in found.at(step).items():
        ends = rows[low][name], rows[high][name]
        assert min(ends).mean - 1e-9 <= usual.mean <= max(ends).mean + 1e-9
        assert usual.sd in (ends[0].sd, ends[1].sd), "the larger of its neighbours'"
        assert usual.sd == max(each.sd for each in ends) or step in rows


@given(st.integers(1, 50), st.integers(60, 5000), st.floats(0.5, 5), st.floats(-2, -0.01))
def test_a_curve_straight_in_the_logarithm_is_met_exactly(first, last, at_first, slope):
    curve = lambda step: at_first + slope * math.log(step / first)  # noqa: E731
    found = band([{step: {"loss": curve(step) + off} for step in (first, last)} for off in (0, 0.1, -0.1)])
    for step in {first, first + 1, (first + last) // 2, last}:
        assert found.at(step)["loss"].mean == pytest.approx(curve(step))


@settings(max_examples=40)
@given(runs)
def test_nothing_is_said_outside_of_the_stored_steps(made):
    found = band(made)
    for step in (found.steps[0] - 1, found.steps[1] + 1):
        with pytest.raises(ValueError, match="outside"):
            found.at(step)
        verdict = outcome.judge(Outcome(), found, step, {"loss": 1.0, "accuracy": 0.5})
        assert verdict.status == NOT_MEASURED and ("end at" in verdict.reason or "begin at" in verdict.reason)


def test_a_band_of_unequal_runs_keeps_what_they_share():
    made = [{10: {"loss": 2.0}, 20: {"loss": 1.0}}, {10: {"loss": 2.2, "accuracy": 0.1}}, {10: {"loss": 2.1}}]
    assert band(made).rows == ((10, {"loss": Usual(pytest.approx(2.1), pytest.approx(0.1))}),)
    for useless in ([], made[:1], [{10: {"loss": 1.0}}, {20: {"loss": 1.0}}]):
        with pytest.raises(ValueError, match="two or more runs"):
            band(useless)


@given(st.floats(0.001, 1), st.integers(3, 9))
def test_more_seeds_make_a_narrower_band(sd, seeds):
    few, many = (Band(((1, {"loss": Usual(1.0, sd)}),), n) for n in (seeds, seeds + 1))
    assert many.half_width(sd) < few.half_width(sd)


def test_grid_is_logarithmic_and_has_both_ends():
    grid = calibrate.outcome_grid(24, 3000)
    assert grid[0] == 24 and grid[-1] == 3000 and all(1.3 < b / a < 1.5 for a, b in pairwise(grid))


STORED = band([{10: {"loss": 2.0 + off, "accuracy": 0.3 + off}, 40: {"loss": 1.0 + off, "accuracy": 0.6 + off}} for off in (-0.01, 0, 0.01)])  # fmt: skip


@pytest.mark.parametrize(
    "held_out, says",
    [
        ({"loss": 1.02, "accuracy": 0.58}, ""),
        ({"loss": 1.5, "accuracy": 0.6}, "the loss is 1.5, worse than"),
        ({"loss": 0.5, "accuracy": 0.6}, "the loss is 0.5, better than"),
        ({"loss": 1.0, "accuracy": 0.95}, "the accuracy is 0.95, better than"),
        ({"loss": 1.0, "accuracy": 0.2}, "the accuracy is 0.2, worse than"),
        ({"loss": None, "accuracy": 0.6}, "the loss is not finite"),
        ({"loss": math.inf, "accuracy": None}, "the accuracy is not finite"),
        ({}, "the loss is not finite"),
    ],
)
def test_worse_and_better_are_both_suspicious(held_out, says):
    verdict = outcome.judge(Outcome(), STORED, 40, held_out)
    assert verdict.status == (FAIL if says else PASS) and says in verdict.reason
    assert bool(verdict.hint) == bool(says) and verdict.max_points == 0


def test_a_reference_that_is_not_finite_says_nothing():
    first = outcome.judge(Outcome(), STORED, 40, {"loss": 1.5, "accuracy": 0.6})
    assert outcome.beside(Outcome(), first, {"loss": None, "accuracy": 0.6}) is first
    assert outcome.beside(Outcome(), first, {}) is first
    assert outcome.beside(Outcome(), first, {"loss": 1.49, "accuracy": 0.61}).status == PASS
    assert outcome.beside(Outcome(), first, {"loss": 1.4, "accuracy": 0.6}).status == FAIL
    assert (
        outcome.beside(
            Outcome(), outcome.judge(Outcome(), STORED, 40, {"loss": None}), {"loss": 1.5, "accuracy": 0.6}
        ).status
        == FAIL
    )


# ---------------------------------------------------------------- a band for real

TINY = replace(
    GPT,
    options={"layers": 1, "width": 32, "heads": 2, "length": 32, "batch_size": 8, "lr": 3e-3},
    minimum_gain=None,
    # so wide that only held-out data can tell
    parity=replace(GPT.parity, steps=20, loss=0.5, norm=2.0, cosine=-1.0, drift=9.0),
)
# every second step trains nothing
HALF = variants.edit(
    variants.starter("3a_precision"),
    [
        ("    for tokens, targets in loader:", "    for step, (tokens, targets) in enumerate(loader):"),
        ("        optimizer.step()\n", "        if step % 2 == 0:\n            optimizer.step()\n"),
    ],
)


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Lab):
    """A lab whose folder is another."""

    at: Path

    @property
    def folder(self) -> Path:
        return self.at


def tiny_lab(folder: Path, **changes) -> Elsewhere:
    lab = labs.get("3a_precision")
    shutil.copy(lab.folder / "starter.py", folder)
    return Elsewhere(**{**vars(lab), "forms": {"cpu": TINY}, "outcome": Outcome(), "at": folder} | changes)


def test_no_band_is_no_pass(tmp_path):
    lab = tiny_lab(tmp_path, forms={"cpu": replace(TINY, parity=replace(TINY.parity, steps=4))})
    found = grade_cells(lab.starter, lab=lab).check("outcome")
    assert found.status == NOT_MEASURED and found.max_points == 0
    assert "No long runs are stored" in found.reason and "grader calibrate 3a_precision --outcome" in found.reason


@pytest.mark.parametrize("name", [name for name in labs.loops() if labs.get(name).outcome])
def test_a_learner_is_offered_no_command_of_the_maintainers(name):
    band, why = calibration.outcome_band(labs.get(name), "cpu")
    assert band is None and why == "Long runs are compared on a GPU only. You don't have to do anything."
    assert calibration.outcome_band(labs.get(name), "cuda")[0]


@pytest.mark.slow
def test_a_band_is_made_goes_on_and_judges(tmp_path):
    lab = tiny_lab(tmp_path)
    shares = []
    lines = calibrate.measure_outcome(lab, "cpu", 40, progress=lambda share, what: shares.append((share, what)))
    assert shares == sorted(shares, key=lambda each: each[0]) and "solution, seed 3, step 40 of 40" in dict(
        (what, share) for share, what in shares
    )
    stored = read_json(tmp_path / "outcome.json")["cpu"]
    assert len(stored["runs"]) == 4 and stored["band"][0]["step"] == 20 and stored["band"][-1]["step"] == 40
    assert stored["versions"]["torch"] and "torch" in stored["made_on"] and stored["band"][0]["loss_sd"] > 0
    assert any("The starter: PASS" in line for line in lines), lines

    # stopped after two runs: those are kept as they are, the others are made
    kept = {name: stored["runs"][name] for name in ("solution, seed 1", "solution, seed 2")}
    calibration.write_json(tmp_path / "outcome.json", {"cpu": stored | {"runs": kept}})
    assert "Only 2 of 3 long runs" in calibration.outcome_band(lab, "cpu")[1]
    made = []
    calibrate.measure_outcome(lab, "cpu", 40, progress=lambda share, what: made.append(what))
    assert not any(what.startswith(("solution, seed 1", "solution, seed 2")) for what in made)
    assert read_json(tmp_path / "outcome.json")["cpu"]["runs"].keys() == stored["runs"].keys()

    honest = grade_cells(lab.starter, lab=lab)
    assert honest.check("outcome").status == PASS, honest.check("outcome").reason
    half = grade_cells(HALF, lab=lab)
    found = half.check("outcome")
    assert half.check("parity").status == PASS and found.status == FAIL and "worse than" in found.reason
    assert half.score == 0

    other = replace(lab, forms={"cpu": replace(TINY, options=TINY.options | {"lr": 1e-3})})
    assert "different options" in calibration.outcome_band(other, "cpu")[1]


@pytest.mark.slow
def test_a_seed_that_leads_elsewhere_is_no_fault_of_the_loop(tmp_path):
    """Three seeds do not know every course that a training takes. Outside of their band, the reference from the grade's own seed
    decides: also about a loop that is outside of both."""
    lab = tiny_lab(tmp_path)
    calibrate.measure_outcome(lab, "cpu", 40)
    stored = read_json(tmp_path / "outcome.json")
    for run in stored["cpu"]["runs"].values():
        for held_out in run.values():
            held_out["loss"] *= 0.5
    calibration.write_json(tmp_path / "outcome.json", stored)
    honest = grade_cells(lab.starter, lab=lab).check("outcome")
    assert honest.status == PASS and "from this grade's seed" in honest.reason, honest.reason
    assert honest.evidence["loss_of_this_seed"] == pytest.approx(honest.evidence["loss"], rel=0.02)
    half = grade_cells(HALF, lab=lab).check("outcome")
    assert half.status == FAIL and "worse than the reference's from this grade's seed" in half.reason, half.reason
    # three seeds alone reject nobody
    alone = grade_cells(lab.starter, lab=replace(lab, name="without_a_solution")).check("outcome")
    assert alone.status == NOT_MEASURED, alone.reason
    assert "worse than in any of the reference's runs" in alone.reason and "not part of this copy" in alone.reason


@pytest.mark.slow
def test_how_far_honest_forms_end_is_measured(tmp_path, monkeypatch):
    """A slow form as far as it is affordable, and what the others are off by later is not less than what it was before."""
    lab = tiny_lab(tmp_path)
    whole = calibrate.measure_spread(lab, "cpu", seeds=1, steps=90)
    assert [row["step"] for row in whole["spread"]] == [40, 60, 90] and {"starter, TF32", "starter, bf16"} <= {
        *whole["forms"]
    }
    monkeypatch.setattr(calibrate, "AFFORDABLE_S", 0.0)
    short = calibrate.measure_spread(lab, "cpu", seeds=1, steps=90)
    assert short["forms"] == whole["forms"]
    assert 0 < short["spread"][0]["norm"] == short["spread"][-1]["norm"]
    for name in calibration.Near._fields:
        column = [row[name] for row in whole["spread"]]
        assert column == sorted(column) and column[-1] > 0


def test_what_cannot_be_calibrated_says_so(tmp_path):
    lab = tiny_lab(tmp_path)
    with pytest.raises(UserError, match="from 40 to"):
        calibrate.measure_outcome(lab, "cpu", 10)
    with pytest.raises(UserError, match="from 3 to 10"):
        calibrate.measure_outcome(lab, "cpu", 40, seeds=2)
    with pytest.raises(UserError, match="needs no --outcome"):
        calibrate.measure_outcome(replace(lab, outcome=None), "cpu", 200)


@pytest.mark.slow
def test_the_last_timed_step_is_judged(tmp_path):
    """A whole grade: the loop is honest for the first steps and trains on every second batch only from then on."""
    wide = replace(GPT.parity, loss=0.5, norm=2.0, cosine=-1.0, drift=9.0, held_out=9.0)
    lab = tiny_lab(tmp_path, forms={"cpu": replace(GPT, parity=wide)})
    rest = lambda source: source.replace("        yield", "        time.sleep(0.04)\n        yield").replace("import torch\n", "import time\nimport torch\n", 1)  # noqa: E731 # fmt: skip
    (tmp_path / "starter.py").write_text(rest(lab.starter))  # so that no machine makes more steps than the band has
    calibrate.measure_outcome(lab, "cpu", 150, seeds=5)
    plan = Plan(block_s=0.3, block_steps=6, min_pairs=2, max_pairs=2, profile_steps=2)
    later = rest(HALF.replace("step % 2 == 0", "step < 8 or step % 2 == 0"))
    honest, half = (grade_cells(source, lab=lab, plan=plan, limits=Limits()).check("outcome") for source in (lab.starter, later))  # fmt: skip
    assert honest.status == PASS and honest.evidence["steps"] > 20, honest
    assert half.status == FAIL and "worse than" in half.reason, half
