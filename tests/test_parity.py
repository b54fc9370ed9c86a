"""The same training or not: honest forms must be accepted, planted faults rejected, on a real run of both loops."""

import json
import math
import random
import re
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import variants
from helpers import running

from grader import labs
from grader.calibrate import over_seeds
from grader.checks import parity
from grader.frontends import report
from grader.grading.arms import reference_arm, set_up
from grader.grading.evidence import Checkpoint, Findings, Losses, Race, Work
from grader.grading.race import decides
from grader.grading.replay import Reference, same_to_the_end, twins
from grader.grading.verdict import judge
from grader.measure import calibration, decision
from grader.measure.blocks import Plan
from grader.measure.calibration import Near, Spread
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult, Result, read_json, silent
from grader.sandbox import weights
from grader.sandbox.contract import ContractError
from grader.sandbox.parent import Child
from grader.sandbox.setting import Limits
from grader.submission import Submission
from grader.trace.words import told_apart
from grader.workloads import unet

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


def test_what_no_digit_tells_apart():
    """100 times the number just below 0.05 is 5: no digit of the percentages differs."""
    assert told_apart(math.nextafter(0.05, 0), 0.05, "%", 1)[1] == "5%"
    assert told_apart(0.0502, 0.05, "%", 1) == ("5.02%", "5%")


@pytest.mark.parametrize("name", [name for name in HONEST if not name.startswith("compiled")])
def test_honest_form_is_accepted(name, starter):
    assert_accepted(first_steps(HONEST[name], starter))


@pytest.mark.slow
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
    assert result.reason.startswith("This is not the same training. ") and result.hint
    from_the_start = result.evidence["first_loss_difference"] > CPU.parity.loss
    assert ("very first loss" in result.hint) == ("very first loss" in result.reason) == from_the_start


@pytest.mark.parametrize(("name", "from_the_start"), [("half the batch", True), ("learning rate x 0.9", False)])
def test_a_first_loss_that_differs_is_not_the_optimizer_s(name, from_the_start, starter):
    assert ("not the optimizer" in first_steps(FAULTS[name], starter).hint) == from_the_start


# ---------------------------------------------------------------- the rest of the run

TOLERANCES = replace(CPU.parity, drift=0.05, held_out=0.1)
STEPS = 200
REFERENCE = [2.3 * 0.995**i for i in range(STEPS)]
NEAR = Near(norm=0.002, distance=0.01, loss=0.004, held_out=0.02)
SAME = {"norm_ratio": 1.0, "cosine": 1.0, "stretch_cosine": 1.0}


def late(
    losses: list[float], held_out: float | None = 1.0, starter_ran: int = 60, **update: float | None
) -> CheckResult:
    """The verdict on a run that was replayed to its end, where `update` is what differs from the same weights."""
    replay = parity.Replay(REFERENCE, {100: SAME, STEPS: SAME | update}, held_out, 1.0)
    return parity.late(TOLERANCES, REFERENCE[:starter_ran], losses, Spread(((100, NEAR), (STEPS, NEAR))), replay)


def test_rest_of_an_honest_run():
    for losses in (REFERENCE, [loss * 1.005 for loss in REFERENCE]):
        assert late(losses, norm_ratio=0.997, cosine=0.98).status == PASS, late(losses).reason
    assert late(REFERENCE, held_out=1.04).status == PASS
    # nothing was gained: not replayed
    assert parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, Spread()).status == PASS


def test_losses_that_begin_at_zero():
    """As of a job of one's own whose penalty has nothing to do at first: they are compared as they are."""
    zeros, apart = [0.0] * STEPS, [0.0] * 60 + [0.5] * (STEPS - 60)
    replay = parity.Replay(zeros, {STEPS: SAME}, 1.0, 1.0)
    spread = Spread(((100, NEAR), (STEPS, NEAR)))
    assert parity.late(TOLERANCES, zeros, zeros, spread, replay).status == PASS
    assert parity.late(TOLERANCES, zeros, apart, spread).status == FAIL
    assert parity.loss_gaps(zeros, apart, 10)[-1] == 0.5


def test_honest_for_the_first_steps_only():
    for wrong in (REFERENCE[:30] + REFERENCE[29:30] * 170, REFERENCE[:50] + [1.2] * 150):  # stuck; suddenly better
        result = late(wrong)
        assert result.status == FAIL and re.search("losses (in a row )?are", result.reason)


def test_losses_off_the_starter_s_are_for_the_reference_to_judge():
    """From some seeds an honest loop leaves the starter's curve; the reference, which rounds likewise, goes along."""
    starter = [loss * (1 + 2 * TOLERANCES.drift) for loss in REFERENCE[:60]]
    spread, replay = Spread(((100, NEAR), (STEPS, NEAR))), parity.Replay(REFERENCE, {STEPS: SAME}, 1.0, 1.0)
    alone = parity.late(TOLERANCES, starter, REFERENCE, spread)
    assert alone.status == INCONCLUSIVE and parity.rounding_may_explain(alone) and "Ten losses in a row" in alone.reason
    assert parity.late(TOLERANCES, starter, REFERENCE, spread, replay).status == PASS
    far = [loss * (1 + 2 * parity.GROSS * TOLERANCES.drift) for loss in REFERENCE[:60]]
    for given in (None, replay):
        assert parity.late(TOLERANCES, far, REFERENCE, spread, given).status == FAIL


@pytest.mark.parametrize(("shrunk", "certain"), [((0.0, 0.0), 0.0), ((0.01, 0.01), 0.01), ((0.03, -0.01), 0.0)])
def test_weight_decay_is_what_all_tensors_agree_about(shrunk, certain):
    decay = weights.Decay(rate=1.0)
    for by in 8 * shrunk:
        decay.add(2 * torch.ones(64), -by * torch.ones(64))
    assert decay.certain() == pytest.approx(certain)
    assert weights.Decay(rate=0.0).certain() == 0.0


FIRST = {"matrix": torch.ones(64, 64), "bias": torch.zeros(64)}
MOVED = {name: tensor + torch.linspace(0.01, 0.02, tensor.numel()).view_as(tensor) for name, tensor in FIRST.items()}


def compared(given: dict[str, torch.Tensor], *others: dict[str, torch.Tensor]):
    samples = [{name: weights.sampled(tensor) for name, tensor in other.items()} for other in others]
    return weights.Comparison((), FIRST, FIRST, set(FIRST)).compare(MOVED, given, True, 0.01, samples)


def test_few_weights_are_looked_at_beside_the_many():
    """A bias that has stayed, or got noise, is the sixtieth part of all weights."""
    noise = 0.02 * torch.tensor([1.0, -1.0]).repeat(32)
    update = compared({"matrix": MOVED["matrix"], "bias": noise})
    assert update["cosine"] > 0.97 and abs(update["vectors_stretch"]) < 0.5 and abs(update["vectors_cosine"]) < 0.5
    assert compared(MOVED)["vectors_stretch"] == pytest.approx(1)


def test_weights_that_lack_the_last_step_are_told():
    """A gradient that is applied a step late is in no loss, and turns the whole update by next to nothing."""
    draw = torch.Generator().manual_seed(1)
    first = {str(n): torch.zeros(64, 8) for n in range(12)}
    steps = [{name: torch.randn(64, 8, generator=draw) for name in first} for _ in range(40)]
    after = [{name: sum(step[name] for step in steps[:n]) for name in first} for n in (39, 40)]

    def ahead(given: dict[str, torch.Tensor]) -> float:
        comparison = weights.Comparison((), first, first, set(first), previous=after[0])
        return comparison.compare(after[1], given, True, 0.0)["ahead"]

    noise = {name: 0.1 * torch.randn(64, 8, generator=draw) for name in first}
    rounded = {name: 0.99 * tensor + noise[name] for name, tensor in after[1].items()}
    assert ahead(after[0]) == pytest.approx(-1, abs=0.05) and abs(ahead(rounded)) < 0.05
    assert weights.Comparison((), first, first, set(first)).compare(after[1], after[0], True, 0.0)["ahead"] == 0


def test_running_statistics_are_compared_since_the_last_time():
    """No step of a training needs them, so nothing else tells whether they are kept up."""
    draw = torch.Generator().manual_seed(1)
    made = [torch.randn(8, generator=draw) for _ in range(3)]
    own = [{"mean": sum(made[: n + 1]), "var": 100 * sum(made[: n + 1])} for n in range(3)]

    def apart(*given: dict[str, torch.Tensor]) -> list[float | None]:
        statistics = weights.Statistics(dict(own[0]), dict(own[0]))
        return [statistics.apart(mine, theirs) for mine, theirs in zip(own[1:], given, strict=True)]

    assert apart(*own[1:]) == [0, 0]
    assert apart(own[1], own[1]) == [0, 1]
    assert apart(own[1], {"mean": own[2]["mean"], "var": own[1]["var"]}) == [0, 1]  # half of them
    assert apart(own[1], {name: tensor * float("nan") for name, tensor in own[1].items()}) == [0, 2]
    assert weights.Statistics(dict(own[0]), dict(own[0])).apart(own[0], own[1]) is None


def test_biases_that_stay_are_found_where_honest_runs_part_far():
    """2a on a CPU: so much is allowed there that biases and norms which were frozen after the first steps passed."""
    wide, still = Spread(((STEPS, NEAR._replace(stretch=0.02)),)), SAME | {"vectors_stretch": 0.0}
    result = parity.late(
        TOLERANCES, REFERENCE[:60], REFERENCE, wide, parity.Replay(REFERENCE, {STEPS: still}, 1.0, 1.0)
    )
    assert result.status == FAIL and "biases and norms" in result.reason and not parity.rounding_may_explain(result)
    off = [loss * 1.012 for loss in REFERENCE]  # a little, as rounding may lead there: it explains no weights that stay
    twins = {STEPS: NEAR._replace(loss=0.0045, stretch=0.001)}
    for update in (still, SAME):
        result = parity.late(
            TOLERANCES, REFERENCE[:60], off, wide, parity.Replay(REFERENCE, {STEPS: update}, 1.0, 1.0, twins)
        )
        assert result.status == FAIL and parity.rounding_may_explain(result) == (update is SAME)


def test_ranks_must_hold_the_same_weights():
    other = MOVED | {"bias": 1.3 * MOVED["bias"]}
    assert compared(MOVED, other)["apart"] == ["bias"]
    assert not compared(MOVED, MOVED | {"bias": MOVED["bias"] * (1 + 1e-6)})["apart"]
    assert compared(MOVED, MOVED | {"bias": MOVED["bias"] * float("nan")})["apart"] == ["bias"]
    assert compared(MOVED, {"bias": MOVED["bias"]})["missing"] == ["matrix (rank 1)"]
    assert compared(MOVED, MOVED | {"matrix": MOVED["matrix"][:1]})["missing"] == ["matrix (rank 1)"]  # a shard


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("kind", ["F8_E8M0", "F8_E4M3", "U16", "U64", "BOOL", "C64", "F4"])
def test_weights_of_any_type_are_the_submission_s_affair(kind, tmp_path):
    """What fails in the trusted process would be taken for the machine's fault, and graded again and again."""
    size = 64 * {"F4": 0.5, "U16": 2, "U64": 8, "C64": 8}.get(kind, 1)
    about = {"dtype": kind, "shape": [64], "data_offsets": [0, int(size)]}
    head = json.dumps({"bias": about}).encode()
    (tmp_path / "odd").write_bytes(struct.pack("<Q", len(head)) + head + bytes(int(size)))
    try:
        given = weights.received(tmp_path / "odd")
    except ContractError as error:
        assert error.kind == "weights" and kind == "F4"
        return
    assert compared(MOVED | given)["types"] and compared(MOVED, MOVED | given)["apart"] == ["bias"]
    assert weights.Statistics({"bias": FIRST["bias"]}, {"bias": FIRST["bias"]}).apart(MOVED, given) == 1


def test_losses_that_only_look_right():
    """Losses along the reference's curve, which anybody can foretell, with noise: the noise is not that of the batches."""
    draw = random.Random(1)
    made_up = REFERENCE[:60] + [loss * (1 + draw.gauss(0, 0.03)) for loss in REFERENCE[60:]]
    result = late(made_up)
    assert result.status == FAIL and "Up to step 100 the losses are" in result.reason


@pytest.mark.parametrize(
    "update, says",
    [
        ({"norm_ratio": 0.97}, "have moved 0.970 times as far"),
        ({"cosine": 0.9}, "in a different direction than the reference solution's. The cosine is 0.9000"),
        ({"norm_ratio": None, "cosine": None}, "the returned weights are not finite"),
        ({"stretch_cosine": 0.9}, "In the last part"),
        ({"stretch_cosine": None}, "The cosine is unknown."),
        ({"vectors_stretch": 0.1}, "biases and norms have moved in a different direction"),
        ({"ahead": -1.1, "stretch_cosine": 0.999}, "the weights are 1.1 steps behind the reference solution's"),
        ({"statistics": 1.0}, "running statistics are not the reference solution's"),
        ({"statistics": 0.8}, "running statistics are not the reference solution's"),
        ({"apart": ["embedding"]}, "the ranks hold different weights: embedding"),
        ({"decay": -0.0095}, "a weight decay that is 0.009 less than the reference solution's"),
    ],
)
def test_weights_that_are_not_the_trained_ones(update, says):
    result = late(REFERENCE, **update)
    assert result.status == FAIL and f"{STEPS} steps" in result.reason and says in result.reason


@pytest.mark.parametrize(
    ("off", "says"),
    [
        ({"cosine": 0.99949}, "The cosine is 0.99949, and must be at least 0.9995."),
        (
            {"norm_ratio": 0.99496},
            "moved 0.995 times as far as the starter's. That is 0.504% off. They may be at most 0.5% off.",
        ),
        ({"loss": 0.002504}, "losses are 0.2504% off on average. At most 0.25% is allowed."),
    ],
)
def test_a_number_that_misses_its_limit_is_never_shown_as_the_limit(off, says):
    limits = replace(CPU.parity, steps=4, loss=0.0025, norm=0.005, cosine=0.9995)
    losses = [2.0 * (1 + off.pop("loss", 0.0))] * 4
    update = {"missing": [], "shapes": [], "types": [], "still": [], "norm_ratio": 1.0, "cosine": 1.0} | off
    assert says in parity.early(limits, [2.0] * 4, losses, update).reason


@pytest.mark.parametrize("held_out", [5.0, 0.5])
def test_weights_that_do_not_generalise_as_the_reference_s(held_out):
    result = late(REFERENCE, held_out)
    assert result.status == FAIL and "On held-out data the returned weights have a loss" in result.reason


def test_held_out_loss_that_is_no_number():
    """None is what the trusted side answers for NaN weights."""
    for value in (None, float("nan"), float("inf")):
        result = late(REFERENCE, value)
        assert result.status == FAIL and "have no finite loss" in result.reason


def test_weights_that_lack_a_parameter():
    replay = parity.Replay(REFERENCE, {STEPS: {"missing": ["fc.weight"], "shapes": [], "types": []}}, 1.0, 1.0)
    assert parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, Spread(), replay).status == FAIL


@pytest.mark.slow
def test_a_stretch_tells_what_the_whole_way_hides(own_temporary):
    """Real processes: a loop that learns from half of each batch once it was compared, and one that does not."""
    half = "[: len(labels) // 2 if step >= 12 else None]"
    lazy = variants.edit(
        variants.starter(LAB),
        [
            ("for images, labels in loader:", "for step, (images, labels) in enumerate(loader):"),
            ("F.cross_entropy(model(images), labels)", f"F.cross_entropy(model(images){half}, labels{half})"),
        ],
    )
    found = []
    for source in (variants.starter(LAB), lazy):
        with (
            running(variants.starter(LAB), form=FORM, limits=Limits()) as trusted,
            running(source, form=FORM, limits=Limits()) as theirs,
        ):
            for each in (trusted, theirs):
                each.load()
                each.start(SEED, keep_initial=True)
            for _ in range(2):
                for each in (trusted, theirs):
                    each.run(12)
                theirs.weights("weights.safetensors")
                trusted.give("weights.safetensors", theirs.fetch("weights.safetensors", 1 << 30))
                update = trusted.ask("compare", file="weights.safetensors", stretch=True)
        found.append(parity.distances([], [], update, 0, 0, 1.0))
    honest, half_of_it = found
    assert honest.stretch < 1e-4 and half_of_it.stretch > 2 * half_of_it.distance > 0.01, found


# ---------------------------------------------------------------- seeds that make much of rounding

CLOSE = Spread(((60, Near(5e-5, 3e-4, 1e-4, 1e-4)), (90, Near(5e-4, 3.5e-3, 3.7e-4, 1e-3)), (STEPS, NEAR)))


def replayed(
    norm: float, cosine: float, loss: float, twin: Near | None = None, step: int = 78, stretch: float = 0.0
) -> CheckResult:
    """The verdict on a run that is so far from the reference at `step`."""
    losses = REFERENCE[: TOLERANCES.steps] + [each * (1 + loss) for each in REFERENCE[TOLERANCES.steps :]]
    update = {"norm_ratio": 1 + norm, "cosine": cosine, "stretch_cosine": 1 - stretch}
    replay = parity.Replay(REFERENCE, {step: update}, 1.0, 1.0, {step: twin} if twin else {})
    return parity.late(TOLERANCES, REFERENCE[:60], losses, CLOSE, replay)


@pytest.mark.parametrize(
    ("seen", "doubtful"), [((0.000841, 1 - 0.002034, 0.001322), 78), ((0.001602, 1 - 0.000682, 0.000352), None)]
)
def test_honest_runs_that_were_further_away_than_any_calibrated(seen, doubtful):
    """Seen on an H200: half a fix and a solution, in two grades of 22. The first is looked into, and may be as far away as
    trainings from rounded weights allow."""
    assert replayed(*seen).status == (FAIL if doubtful else PASS) and parity.doubtful(replayed(*seen)) == doubtful
    assert replayed(*seen, twin=Near(0.0005, 0.001, 0.0006, 0.0)).status == PASS


@pytest.mark.parametrize(
    ("step", "seen", "stretch", "twin"),
    [
        (54, (0.00171, 1 - 0.00045, 0.00323), 0.00419, Near(6.9e-5, 2.6e-4, 1.4e-4, 0.0, 2.1e-4)),
        (34, (0.00025, 1 - 0.00027, 0.00181), 0.00027, Near(1.4e-4, 2.9e-4, 2.0e-4, 0.0, 2.9e-4)),
        (44, (0.0002, 1 - 0.00036, 0.00095), 0.00367, Near(1.0e-4, 2.9e-4, 1.2e-4, 0.0, 2.9e-4)),
    ],
)
def test_half_of_each_batch_left_out_after_the_first_steps(step, seen, stretch, twin):
    """Seen on an H200, where it had 10 points: no further away in all than honest runs are, but by the losses, and on the
    last stretch (the third with losses that would not have told). The seeds were calm: the starter's training was as near."""
    assert replayed(*seen, step=step, stretch=stretch, twin=twin).status == FAIL
    assert replayed(seen[0], seen[1], 0.0002, step=step, stretch=0.0003).status == PASS


def test_a_seed_that_makes_much_of_rounding():
    """Trainings from rounded weights are as far away then; where they are not, the distance stands."""
    far = (0.015, 1 - 0.02, 0.01)
    doubtful = replayed(*far)
    assert doubtful.status == FAIL and parity.doubtful(doubtful) == 78
    assert replayed(*far, twin=Near(0.007, 0.012, 0.005, 0.0)).status == PASS
    less = replayed(*far, twin=Near(0.004, 0.005, 0.002, 0.0))
    assert less.status == FAIL and parity.rounding_may_explain(less)  # rounding may have led there
    assert not parity.rounding_may_explain(replayed(*far, twin=Near(1e-4, 3e-4, 1e-4, 0.0)))


def test_from_a_seed_whose_trainings_part_nothing_is_told():
    """4d's was such a seed, seen on an H200. Three quarters of each batch, as simulated, would have passed there."""
    wild = Near(0.0051, 0.0229, 0.0253, 0.0)
    result = replayed(0.006, 1 - 0.05, 0.019, twin=wild)
    assert result.status == FAIL and parity.rounding_may_explain(result)
    near = replayed(0.006, 1 - 0.03, 0.01, twin=wild)
    assert near.status == PASS and not parity.rounding_may_explain(near)
    # a calm one
    assert not parity.rounding_may_explain(replayed(0.006, 1 - 0.05, 0.019, twin=Near(1e-4, 3e-4, 1e-4, 0.0)))
    assert not parity.rounding_may_explain(replayed(0.06, 1 - 0.05, 0.019, twin=wild))  # no rounding leads there


@pytest.mark.parametrize(
    ("step", "seen", "stretch", "twin"),
    [  # 4b with bf16 autocast and fused attention, 4d with bf16: a bump in their losses; twins' norm and distance are left out
        (22, (0.00037, 1 - 0.00528, 0.01185), 0.03394, Near(0.0, 1e-4, 0.0032, 0.0, 0.0032)),
        (16, (0.00281, 1 - 0.00168, 0.00455), 0.00168, Near(0.0, 1e-4, 0.0005, 0.0, 1e-4)),
        (22, (0.00189, 1 - 0.00218, 0.00553), 0.00847, Near(0.0, 1e-4, 0.0007, 0.0, 2e-4)),
        (28, (0.00377, 1 - 0.003, 0.01054), 0.01879, Near(0.0, 1e-4, 0.0015, 0.0, 5e-4)),
        (28, (0.00218, 1 - 0.00769, 0.0138), 0.04612, Near(0.0, 1e-4, 0.0044, 0.0, 0.0047)),
    ],
)
def test_distances_go_with_the_square_of_what_rounding_has_grown_to(step, seen, stretch, twin):
    """Honest loops, seen on an H200, that were not the same training: by their losses they were 3 to 9 times as far from the
    reference as three twins, by the direction of their weights up to 42 times."""
    assert parity.doubtful(replayed(*seen, step=step, stretch=stretch)) == step
    honest = replayed(*seen, twin=twin, step=step, stretch=stretch)
    assert honest.status == FAIL and parity.rounding_may_explain(honest)
    norm, cosine, loss = seen
    assert not parity.rounding_may_explain(replayed(norm, cosine, 4 * loss, twin=twin, step=step, stretch=stretch))


def test_what_comes_later_tells():
    """A run that rounding may have led a little way off, and that is far off at the next look, or on held-out data."""
    update = {"norm_ratio": 1.0, "stretch_cosine": 1.0}
    twins = {at: Near(0.0, 0.001, 0.0005, 0.0, 0.0) for at in (40, 80)}

    def late(after: float, held_out: float) -> CheckResult:
        updates = {40: update | {"cosine": 1 - 0.02}, 80: update | {"cosine": after}}
        replay = parity.Replay(REFERENCE, updates, held_out, 1.0, twins)
        return parity.late(TOLERANCES, REFERENCE[:60], REFERENCE[:80], CLOSE, replay)

    assert parity.rounding_may_explain(late(1 - 0.02, 1.0)) and late(1 - 0.02, 1.0).status == FAIL
    assert not parity.rounding_may_explain(late(0.6, 1.0))
    assert not parity.rounding_may_explain(late(1 - 0.02, 9.0)) and not parity.rounding_may_explain(
        late(1 - 0.02, float("nan"))
    )


def judged(source: str, folder: Path, rate: float, steps: int) -> Findings:
    """What a grade finds of so many more steps at this learning rate, whatever their speed. Both make trainings part."""
    form = replace(FORM, options=FORM.options | {"lr": rate})
    lab, setup, losses = replace(labs.get(LAB), forms={"cpu": form}), set_up(form, "cpu"), {}
    stop = form.parity.steps + steps
    for name, text in (("starter", variants.starter(LAB)), ("submission", source)):
        with reference_arm(text, setup, SEED) as one:
            one.run(stop - len(one.losses))
            one.child.weights("weights.safetensors")
            weights = one.child.fetch("weights.safetensors", 1 << 30)
            losses[name] = list(one.losses)
    (folder / "weights").write_bytes(weights)
    pairs, decide = (decision.Pair(2.0, 1.0),) * 4, decides(False, 2.0, form, Plan())
    known = Race(pairs, decide(pairs), (Checkpoint(stop, folder / "weights", 4),))
    early = CheckResult("parity", "", PASS, 0, 0, "")
    found = Findings(lab, "cpu", seed=SEED, work=Work(early), losses=Losses(**losses), race=known)
    same_to_the_end(found, Reference(lab, setup, SEED, time.monotonic()), decide, silent)
    return found


@pytest.mark.slow
def test_an_honest_training_that_rounding_has_led_away(tmp_path):
    """It is further off than any of the calibration, and no further than trainings from rounded weights."""
    found = judged(HONEST["bf16 autocast"], tmp_path, rate=4e-3, steps=20)
    judged_late = found.work.parity
    assert judged_late.status == PASS and not found.disturbed, judged_late
    (replayed,) = judged_late.evidence["replayed"].values()
    always = parity.SPREAD * calibration.honest_spread(labs.get(LAB), "cpu").at(32).distance
    assert always < replayed["found"]["distance"] < replayed["allowed"]["distance"], replayed


@pytest.mark.slow
def test_a_grade_from_a_seed_that_tells_nothing_is_undecided(tmp_path):
    # so late rounding alone leads far, seen at rates of 6e-3, 8e-3 and 10e-3
    found = judged(variants.starter(LAB).replace("lr=job.lr", "lr=1.05 * job.lr"), tmp_path, rate=8e-3, steps=60)
    assert found.work.parity.status == INCONCLUSIVE and "rounding alone" in found.disturbed, found.work
    checks = {check.name: check for check in judge(found, Submission(""))}
    assert checks["throughput"].status == INCONCLUSIVE and sum(check.points for check in checks.values()) == 0
    assert checks["throughput"].reason.endswith("Check again. A new seed will be drawn.")
    graded = Result(LAB, "", "cpu", [*checks.values()], {}, {}, disturbed=found.disturbed)
    assert any("this grade's seed can't tell" in note for note in report.headline(graded)[1])


@pytest.mark.slow
def test_how_far_trainings_from_rounded_weights_are():
    reference, first = Reference(labs.get(LAB), set_up(CPU, "cpu").untimed, SEED, time.monotonic()), CPU.parity.steps
    checkpoints = [Checkpoint(step, Path(), 0) for step in (first + 2, first + 5, first + 7, 10_000_000)]
    found = twins(reference, checkpoints, first + 5, silent)
    assert list(found) == [first + 5, first + 7]  # training to the last one would take hours
    assert all(
        1e-7 < size < 0.01 for near in found.values() for size in (near.norm, near.distance, near.loss, near.stretch)
    )
    # where a doubt first comes there, the last that can be reached says how calm the seed is; nothing did
    assert list(twins(reference, checkpoints, 10_000_000, silent)) == [first + 7]


def test_rounded_weights():
    """Others for each number, off by up to 2**-9 of themselves; and no part of what a training has moved."""
    setup = set_up(FORM, "cpu")
    barely = variants.starter(LAB).replace("lr=job.lr", "lr=1e-3 * job.lr")
    seen, files = [], []
    for nudge in (0, 1, 1, 2):
        with reference_arm(barely, setup, SEED, nudge=nudge) as one:
            one.child.weights("weights.safetensors")
            files.append(one.child.fetch("weights.safetensors", 1 << 30))
            one.child.give("weights.safetensors", files[0])
            near = one.child.ask("compare", file="weights.safetensors", stretch=True)
            assert min(near["cosine"], near["stretch_cosine"]) > 0.98 and abs(near["norm_ratio"] - 1) < 0.05, near
        tensors = safetensors.torch.load(files[-1])
        seen.append(torch.cat([tensors[name].flatten() for name in sorted(tensors) if name.endswith("weight")]))
    plain, some, same, others = seen
    off = ((some - plain) / plain).abs().quantile(0.9)  # of each weight; all have moved a little since
    assert 2**-10 < off < 2**-9 and torch.equal(some, same) and not torch.equal(some, others)


def test_an_average_that_begins_as_a_copy_is_one_of_rounded_weights_too():
    model = unet.Model(labs.get("4c_unet").forms["cpu"].options["widths"])
    before = torch.cat([weight.flatten() for weight in model.net.parameters()])
    weights.add_round_off(model, 1)
    net, average = (torch.cat([each.flatten() for each in part.parameters()]) for part in (model.net, model.average))
    assert torch.equal(net, average) and not torch.equal(net, before)


def test_one_seed_whose_trainings_part_widens_no_spread():
    """4d's only seed was one: half of each batch would have passed from then on."""
    near = lambda size: Near(size, size, size, size, size)  # noqa: E731
    calm, wild = {20: near(1e-4), 40: near(3e-4), 60: near(2e-4)}, dict.fromkeys((20, 40, 60), near(0.02))
    assert over_seeds([calm, wild, calm]) == [near(1e-4), near(3e-4), near(3e-4)]
    assert over_seeds([wild]) == [near(0.02)] * 3


def test_what_rounding_has_grown_to_stays():
    """An honest training from an unstable seed was excused at the step where that showed first, and failed at the next."""
    update = {"norm_ratio": 1.0, "stretch_cosine": 1.0}
    updates = {20: update | {"cosine": 0.9999}, 40: update | {"cosine": 0.99}, 80: update | {"cosine": 0.98}}

    def late(*twins: tuple[int, float]) -> CheckResult:
        replay = parity.Replay(REFERENCE, updates, 1.0, 1.0, {at: Near(0.0, away, 0.0, 0.0) for at, away in twins})
        return parity.late(TOLERANCES, REFERENCE[:60], REFERENCE[:80], CLOSE, replay)

    assert parity.doubtful(late()) == 40
    assert late((40, 0.009), (80, 0.012)).status == late((40, 0.009)).status == PASS
    assert late((40, 1e-4), (80, 0.012)).status == FAIL  # a calm seed until then is no excuse
    assert late((80, 0.012)).status == FAIL


@pytest.mark.parametrize("form", ["cuda", "cpu"])
def test_where_no_spread_was_calibrated_the_widest_holds(form):
    for lab in map(labs.get, labs.loops()):
        stored = read_json(lab.folder / "reference.json").get(form, {}).get("spread")
        spread = calibration.honest_spread(lab, form)
        assert (spread is calibration.WIDEST[form]) is not bool(stored), lab.name
        assert all(a <= b for a, b in zip(spread.at(300), calibration.WIDEST[form].at(300), strict=True)), lab.name


def test_a_gain_on_a_cpu_is_judged_by_the_lab_s_own_spread():
    """By the widest a loop that leaves half of each batch out of the backward pass is the same training."""
    found = Near(
        norm=0.0249, distance=0.0423, loss=0.0201, held_out=0.0, stretch=0.224
    )  # after 208 steps of 2j, on a CPU
    own = calibration.honest_spread(labs.get("2j_checkpoint"), "cpu")
    for spread, is_same in ((calibration.WIDEST["cpu"], True), (own, False)):
        allowed = [max(least, parity.SPREAD * each) for least, each in zip(parity.LEAST, spread.at(208), strict=True)]
        assert all(a <= b for a, b in zip(found, allowed, strict=True)) == is_same
    lacking = {
        lab.name
        for lab in map(labs.get, labs.loops())
        if (form := lab.forms.get("cpu")) and form.minimum_gain and not lab.throughput.healthy and not lab.serves
        if calibration.honest_spread(lab, "cpu") is calibration.WIDEST["cpu"]
    }
    assert lacking == {"3o_sharded"}  # where each rank can train alone (docs/instructors.md)


@pytest.mark.parametrize("form", ["cuda", "cpu"])
def test_a_loop_that_trains_no_longer_is_found_without_a_calibration(form):
    """It stops after a third of its steps: its weights stay behind the reference's, and do not move in the last part."""
    update = {"norm_ratio": 0.58, "cosine": 0.97, "stretch_cosine": None}
    stopped = parity.Replay(REFERENCE, {78: update}, 1.0, 1.0)
    assert parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, calibration.WIDEST[form], stopped).status == FAIL
    honest = parity.Replay(REFERENCE, {78: {"norm_ratio": 1.001, "cosine": 0.999, "stretch_cosine": 0.99}}, 1.0, 1.0)
    assert parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, calibration.WIDEST[form], honest).status == PASS


def test_the_reference_does_not_wait_for_a_compiler():
    """It trains the same without one."""
    form = labs.get("3e_compile").forms["cpu"]
    setup = set_up(form, "cpu")
    source = variants.starter("3e_compile").replace(
        "def train(job):\n",
        "def train(job):\n    torch.compile(lambda x: x.sin().sum(), fullgraph=True)(torch.ones(8))\n    job.model.compile()\n",
    )
    with reference_arm(source, setup, SEED) as one:
        one.run(4)
        assert one.compiled == 0
    with reference_arm(variants.starter("3e_compile"), setup, SEED) as plain:
        plain.run(4)
    assert one.losses == plain.losses


def test_what_is_far_away_is_no_matter_of_rounding():
    assert parity.doubtful(replayed(0.0, 0.8, 0.0)) is None
    assert parity.doubtful(replayed(float("nan"), 1.0, 0.0)) is None
    assert parity.doubtful(replayed(0.0, 1.0, 0.0)) is None  # nothing is wrong with it
    assert parity.doubtful(late(REFERENCE, held_out=5.0)) is None


def test_more_steps_than_anything_could_make():
    replay = parity.Replay(REFERENCE[:20], {}, None, float("nan"))
    result = parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, Spread(), replay)
    assert result.status == FAIL and "could not follow even to the end of the first timed block" in result.reason


def test_steps_that_drift_where_nothing_was_timed():
    """There are no weights on the way to compare with the reference solution's: this ended in a traceback."""
    lab = labs.get("2b_transfers")
    drift = lab.forms["cpu"].parity.drift
    findings = Findings(lab, "cpu", work=Work(parity=CheckResult("parity", "", "PASS", 0, 0, "")))
    findings.losses = Losses([1.0] * 20, [1.0 + 1.5 * drift] * 20)
    reference = Reference(lab, set_up(lab.forms["cpu"], "cpu").untimed, seed=1, began=time.monotonic())
    same_to_the_end(findings, reference, lambda pairs: None, silent)
    assert findings.work.parity.status == "PASS"


@pytest.mark.parametrize(("statistics", "status"), [(1.0, FAIL), (0.99, PASS), (1.2, PASS)])
def test_where_trainings_part_so_do_running_statistics(statistics, status):
    """As rounding leads there. Then only those that stay exactly as they are tell."""
    wide = Spread(((STEPS, NEAR._replace(stretch=0.02)),))
    parted = SAME | {"statistics": statistics, "stretch_cosine": 0.98}
    replay = parity.Replay(REFERENCE, {STEPS: parted}, 1.0, 1.0)
    assert parity.late(TOLERANCES, REFERENCE[:60], REFERENCE, wide, replay).status == status
