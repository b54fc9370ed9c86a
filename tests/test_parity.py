"""The same training or not: honest forms must be accepted, planted faults rejected, on a real run of both loops."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import variants
from helpers import running

from grader import labs
from grader.checks import parity
from grader.measure.calibration import Curve, reference_curves
from grader.result import FAIL, PASS, CheckResult
from grader.sandbox.parent import Child, Limits

LAB = "2a_workers"
CPU = labs.get(LAB).forms["cpu"]
FORM = replace(CPU, options={**CPU.options, "read_s": 0.0})  # without the waits: the same training, only quicker
SEED = 7

HONEST = variants.honest(LAB)
FAULTS = variants.faults(LAB) | {
    # the cast hidden behind weights that look as they should
    "model cast to bf16, weights cast back": variants.edit(
        variants.faults(LAB)["model cast to bf16"],
        [
            (
                "    loader =",
                "    job.weights = lambda: {n: p.float() for n, p in model.named_parameters()}\n    loader =",
            )
        ],
    ),
    "initial weights returned": variants.edit(
        variants.starter(LAB),
        [
            (
                "    model = ",
                "    first = {n: p.detach().clone() for n, p in job.model.named_parameters()}\n    model = ",
            ),
            ("    loader =", "    job.weights = lambda: first\n    loader ="),
        ],
    ),
}


def without_workers(source: str) -> str:
    """Starting eight workers takes longer than training here; what they do to the training is not in question."""
    return source.replace(variants._WORKERS, variants.LOADER)


@pytest.fixture(scope="module")
def starter(own_temporary):
    """A starter that has run its first steps: ask it to compare."""
    with running(variants.starter(LAB), form=FORM, limits=Limits()) as child:
        child.load()
        child.start(SEED, keep_initial=True)
        yield child, child.run(CPU.parity.steps)[1]


def first_steps(source: str, starter, then: Callable[[Child], None] = lambda child: None) -> CheckResult:
    """The verdict on the first steps; `then` looks at the child that took them."""
    trusted, losses = starter
    with running(without_workers(source), form=FORM, limits=Limits()) as child:
        child.load()
        child.start(SEED)
        theirs = child.run(CPU.parity.steps)[1]
        child.weights("first.safetensors")
        then(child)
        trusted.give("first.safetensors", child.fetch("first.safetensors", 1 << 30))
    return parity.early(CPU.parity, losses, theirs, trusted.ask("compare", file="first.safetensors"))


def test_what_is_told_apart_differs():
    assert len({without_workers(source) for source in (*HONEST.values(), *FAULTS.values())}) == len(HONEST) + len(
        FAULTS
    )


@pytest.mark.parametrize("name", [name for name in HONEST if not name.startswith("compiled")])
def test_honest_form_is_accepted(name, starter):
    assert_accepted(first_steps(HONEST[name], starter))


@pytest.mark.skipif(not shutil.which("gcc") and not shutil.which("g++"), reason="Inductor needs a C++ compiler")
def test_compiled_form_is_accepted(starter):
    def compiled_in_its_own_cache(child: Child) -> None:
        assert any((child.workspace.folder / "cache/inductor").rglob("*.so"))

    assert_accepted(first_steps(HONEST["compiled, tf32, bf16"], starter, compiled_in_its_own_cache))


def assert_accepted(result: CheckResult) -> None:
    assert result.status == PASS, result.reason
    evidence = result.evidence
    assert evidence["loss_difference"] < CPU.parity.loss / 3  # with room to spare
    assert abs(evidence["update_norm_ratio"] - 1) < CPU.parity.norm / 2
    assert 1 - evidence["update_cosine"] < 0.6 * (1 - CPU.parity.cosine)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_rejected(name, starter):
    result = first_steps(FAULTS[name], starter)
    assert result.status == FAIL, result.evidence
    assert result.reason.startswith("This is not the same training: ") and result.hint


# ---------------------------------------------------------------- the rest of the run

STARTER = [2.3 - 0.01 * i for i in range(60)]
CURVES = {
    "train": Curve((10, 100, 1000), (2.2, 1.5, 0.8), (0.01, 0.01, 0.01)),
    "held_out": Curve((10, 100, 1000), (2.2, 1.6, 1.0), (0.01, 0.01, 0.01)),
}
TOLERANCES = replace(CPU.parity, drift=0.05, held_out=0.1)


def curve(steps: int) -> list[float]:
    """Losses that follow the starter's, then the reference's."""
    return STARTER[:steps] + [CURVES["train"].at(i + 5)[0] for i in range(len(STARTER) + 1, steps + 1)]


def late(losses: list[float], held_out: float | None = None, curves=CURVES, again=(), update=None) -> CheckResult:
    if held_out is None:
        held_out = CURVES["held_out"].at(len(losses))[0]
    return parity.late(TOLERANCES, STARTER, losses, held_out, curves, again, update)


def test_rest_of_an_honest_run():
    for steps in (12, 60, 61, 500):
        assert late(curve(steps)).status == PASS, late(curve(steps)).reason
    assert late([loss * 1.02 for loss in curve(60)]).status == PASS
    assert late(curve(60), curves={}).status == PASS  # a lab without reference curves: the starter's must do


def test_honest_for_the_first_steps_only():
    losses = curve(60)
    for wrong in (losses[:30] + losses[29:30] * 30, losses[:50] + [1.2] * 10):  # stuck; suddenly better
        result = late(wrong)
        assert result.status == FAIL and "ten losses in a row are" in result.reason


def test_off_the_reference_after_the_starter_stopped():
    losses = curve(500)
    result = late(losses[:200] + losses[199:200] * 300)
    assert result.status == FAIL and "where the reference's is" in result.reason


def test_seeds_of_the_reference_that_agreed_by_luck():
    """Seen on an H200: after 612 steps of the very training that the starter does, 1.463 on held-out data. The reference's
    four seeds differ by 7 to 9% at 400 to 500 steps, and by only 2% at 640."""
    lab = labs.get(LAB)
    curves, tolerances = reference_curves(lab, "cuda"), lab.forms["cuda"].parity
    losses = [curves["train"].at(i + 5)[0] for i in range(1, 613)]
    for held_out, status in ((1.125, PASS), (1.463, PASS), (2.3, FAIL)):  # 2.3: of weights that were never trained
        result = parity.late(tolerances, losses[:88], losses, held_out, curves)
        assert result.status == status, result.evidence
    assert abs(1.463 - result.evidence["reference_held_out_loss"]) < 0.6 * result.evidence["held_out_tolerance"]


def test_losses_that_were_not_computed():
    """Losses along the reference's curve, from weights that are on it: only the batches themselves tell."""
    draw = random.Random(1)
    hard = [draw.gauss(0, 0.1) for _ in range(parity.LAST)]  # how much harder each batch is
    base = curve(200)
    true = base[: -parity.LAST] + [a + b for a, b in zip(base[-parity.LAST :], hard, strict=True)]
    coming = true[-parity.LAST :]
    again = [loss - 0.05 + draw.gauss(0, 0.05) for loss in true[-parity.LAST :]] + coming  # just trained on, so lower
    assert late(true, again=again).status == PASS, late(true, again=again).reason
    made_up = base[: -parity.LAST] + [a + draw.gauss(0, 0.1) for a in base[-parity.LAST :]]
    result = late(made_up, again=again)
    assert result.status == FAIL and "are not those of their batches" in result.reason
    by_heart = [0.5 * loss for loss in base[-parity.LAST :]] + coming  # nothing is left of which batch was hard
    assert late(true, again=by_heart).status == PASS
    result = late(true, again=[loss + 0.2 for loss in again])
    assert result.status == FAIL and "above the one that was yielded" in result.reason
    for nothing in (None, float("nan")):
        assert late(true, again=[nothing, *again[1:]]).status == FAIL


def test_fewer_steps_than_losses_in_a_short_run():
    for ratio, status in ((1.005, PASS), (0.7, FAIL), (None, FAIL)):
        assert late(curve(40), update={"norm_ratio": ratio}).status == status


@pytest.mark.parametrize("held_out", [5.0, 0.5])
def test_weights_that_do_not_generalise_as_the_reference_s(held_out):
    result = late(curve(60), held_out)
    assert result.status == FAIL and "on held-out data the weights after 60 steps" in result.reason


def test_held_out_loss_that_is_no_number():
    """None is what the trusted side answers for NaN weights; a lab without reference curves refuses it as well."""
    for value in (None, float("nan"), float("inf")):
        for curves in (CURVES, {}):
            result = parity.late(TOLERANCES, STARTER, curve(60), value, curves)
            assert result.status == FAIL and "have no finite loss" in result.reason
