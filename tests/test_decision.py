"""From times to a gain and its points: what must hold for any times."""

import itertools
import math
import random
import statistics
from dataclasses import replace

import numpy
import pytest
from helpers import LAB, loop, warmed_up
from hypothesis import given
from hypothesis import strategies as st

from grader import labs
from grader.checks import throughput
from grader.measure import decision
from grader.measure.blocks import Arm, Plan, Turn, overstated, whole_rounds
from grader.measure.calibration import Near, Spread
from grader.measure.decision import Pair
from grader.result import FAIL, INCONCLUSIVE, PASS
from tests.benchmarks import decision_errors as errors

seconds = st.floats(1e-5, 100.0)
times = st.lists(st.tuples(seconds, seconds), min_size=2, max_size=40)
factors = st.floats(0.01, 100.0)
targets = st.floats(1.01, 100.0)


def gain(pairs, noise_floor=0.0):
    return decision.gain(*zip(*pairs, strict=True), noise_floor=noise_floor)


@given(times, st.floats(0, 0.5))
def test_interval_contains_the_factor(pairs, floor):
    found = gain(pairs, floor)
    assert found.lower <= found.factor * (1 + 1e-9) and found.factor <= found.upper * (1 + 1e-9)
    assert found.pairs == len(pairs)
    assert found.factor == pytest.approx(statistics.geometric_mean([a / b for a, b in pairs]))


@given(times, st.floats(0, 0.5))
def test_exchanging_the_arms_inverts_the_gain(pairs, floor):
    found, turned = gain(pairs, floor), gain([(b, a) for a, b in pairs], floor)
    assert turned.factor == pytest.approx(1 / found.factor)
    assert turned.lower == pytest.approx(1 / found.upper) and turned.upper == pytest.approx(1 / found.lower)
    assert turned.noise == pytest.approx(found.noise, abs=1e-12)


@given(times, st.floats(0.01, 100))
def test_a_slower_machine_changes_nothing(pairs, scale):
    found, slower = gain(pairs), gain([(a * scale, b * scale) for a, b in pairs])
    assert slower.factor == pytest.approx(found.factor)
    assert slower.lower == pytest.approx(found.lower, rel=1e-6)


@given(times, st.randoms())
def test_order_of_pairs_does_not_matter(pairs, order):
    mixed = order.sample(pairs, len(pairs))
    assert gain(mixed).lower == pytest.approx(gain(pairs).lower, rel=1e-6)


@given(seconds, factors, st.integers(2, 40), st.floats(0.001, 0.5))
def test_lucky_agreement_is_not_believed(time, factor, n, floor):
    found = gain([(time * factor, time)] * n, floor)
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert math.log(found.upper / found.lower) >= 2 * 1.64 * floor / math.sqrt(n)  # the normal's quantile at least


@given(seconds, factors, st.floats(0.01, 0.5))
def test_more_pairs_narrow_the_interval(time, factor, noise):
    widths = []
    for n in (2, 4, 8, 16, 32, 64):
        found = gain([(time * factor * math.exp(noise * (-1) ** i), time) for i in range(n)])
        widths.append(math.log(found.upper / found.lower))
    assert widths == sorted(widths, reverse=True)


def test_the_interval_is_a_90_percent_one():
    """Simulated: the true gain lies below the lower bound once in twenty grades."""
    source = random.Random(4)
    for n in (3, 4, 8, 14, 40):
        missed = sum(
            gain([(math.exp(source.gauss(math.log(1.5), 0.1)), 1.0) for _ in range(n)]).lower > 1.5 for _ in range(4000)
        )
        assert 0.035 < missed / 4000 < 0.065, n


@pytest.mark.parametrize("bad", [[], [(1.0, 1.0)], [(1.0, 0.0), (1.0, 1.0)], [(1.0, 1.0), (-1.0, 1.0)]])
def test_times_that_give_no_gain(bad):
    with pytest.raises(ValueError):
        decision.gain([a for a, _ in bad], [b for _, b in bad])


def test_few_runs_of_several_jobs_give_a_90_percent_interval():
    """Two runs as it is and one or two of each of three levers that change nothing: wrong in a tenth of all cases, and far
    narrower than by two runs alone."""
    source, inside, narrower = random.Random(4), 0, 0
    for _ in range(2000):
        base, now, *others = ([math.exp(source.gauss(0, 0.05)) for _ in range(n)] for n in (2, 2, 2, 1))
        found = decision.of_runs(base, now, others)
        inside += found.lower <= 1 <= found.upper
        narrower += found.upper / found.lower < decision.gain(base, now).upper / decision.gain(base, now).lower
    assert 0.88 < inside / 2000 < 0.92
    assert narrower > 1200  # two pairs can agree by luck


def test_single_runs_decide_nothing():
    found = decision.of_runs([1.0], [0.5], [[0.7]])
    assert found.factor == pytest.approx(2)
    assert (found.lower, found.upper) == (0, math.inf)
    for before, now in (([], [1]), ([1], []), ([1, 0], [1])):
        with pytest.raises(ValueError):
            decision.of_runs(before, now)


def test_arms_of_different_length():
    with pytest.raises(ValueError, match="got 3 and 2"):
        decision.gain([1, 1, 1], [1, 1])


@given(factors, factors, targets)
def test_points_never_fall_as_the_gain_rises(one, other, target):
    low, high = sorted((one, other))
    assert 0 <= decision.fraction(low, target) <= decision.fraction(high, target) <= 1


@given(targets)
def test_points_at_the_marks(target):
    assert decision.fraction(1.0, target) == 0 and decision.fraction(0.5, target) == 0
    assert decision.fraction(target, target) == pytest.approx(1) and decision.fraction(2 * target, target) == 1
    assert decision.fraction(math.sqrt(target), target) == pytest.approx(0.5)  # half the fix, half the points


@pytest.mark.parametrize("target", [1.0, 0.5, 0.0])
def test_target_that_is_none(target):
    with pytest.raises(ValueError, match="above 1"):
        decision.fraction(2.0, target)


@given(targets, st.floats(0.0, 1.0))
def test_target_is_a_share_of_the_reference(reference, share):
    assert decision.fraction(decision.target(reference, share), reference) == pytest.approx(share, abs=1e-9)


def decide(pairs, target, precision=0.05, noise_floor=0.02, **options):
    return decision.decide([Pair(*pair) for pair in pairs], target, noise_floor, precision, **options)


@given(times, targets, st.floats(0.01, 0.3))
def test_settled_points_are_known(pairs, target, precision):
    found = decide(pairs, target, precision)
    low, high = (decision.fraction(end, target) for end in (found.gain.lower, found.gain.upper))
    assert found.certain <= found.gain.lower
    if found.settled:
        assert low >= 1 or (high - low <= 2 * precision and found.gain.factor < target)
        assert found.certain == found.gain.lower


@given(times, targets)
def test_verdict_and_points_agree(pairs, target):
    found = decide(pairs, target)
    verdict = throughput.judge(LAB.throughput, found, target, {})
    assert 0 <= verdict.points <= verdict.max_points
    assert (verdict.status == PASS) == (found.certain >= target * (1 - 1e-12))
    assert verdict.status in (PASS, FAIL) or (verdict.status == INCONCLUSIVE and not found.settled)
    assert bool(verdict.hint) == (verdict.status == FAIL) == (len(verdict.more_hints) == 2)


def test_an_interval_that_does_not_count_is_not_told():
    """Left alone the starter might have been twice as fast: 1.5x is certain, and the pairs' own interval is about 3x."""
    found = decide([(3.0, 1.0, 0.5, 0.0)] * 5, target=9.0)
    verdict = throughput.judge(LAB.throughput, found, 9.0, {})
    assert verdict.status == INCONCLUSIVE and found.certain < 1.6 < 2.8 < found.gain.lower
    assert f"{found.certain:.2f}x is certain, and counts" in verdict.reason and "interval" not in verdict.reason
    assert "as fast as the starter, but other programs took up to 50%" in verdict.reason
    found = decide([(3.0, 1.0, 0.0, 0.5)] * 5, target=9.0)  # the submission might have been
    verdict = throughput.judge(LAB.throughput, found, 9.0, {})
    assert verdict.status == INCONCLUSIVE and f"90% interval {found.gain.lower:.2f} to " in verdict.reason


@pytest.mark.parametrize(
    ("starter_lost", "submission_lost", "settled", "certain"),
    [
        (0.0, 0.0, True, 3.0),
        (0.05, 0.05, True, 3.0),  # too little to matter
        (0.5, 0.0, False, 1.5),  # left alone the starter would have been twice as fast, for all that is known
        (0.0, 0.5, False, 3.0),  # and here the submission
    ],
)
def test_time_that_was_lost_to_others(starter_lost, submission_lost, settled, certain):
    found = decide([(3.0, 1.0, starter_lost, submission_lost)] * 5, target=9.0, noise_floor=0.001)
    assert found.settled == settled and found.certain == pytest.approx(certain, rel=0.01)


@pytest.mark.parametrize(
    ("left_out", "status", "advice"),
    [(0, FAIL, "Do less before"), (9, INCONCLUSIVE, "Measure again when nothing else")],
)
def test_time_in_pairs_that_do_not_count_is_not_held_against_a_loop(left_out, status, advice):
    """An honest loop beside busy neighbours was told to do less before its first step."""
    found = decide([(1.5, 1.0)] * 5, target=2.0, noise_floor=0.001)
    verdict = throughput.judge(LAB.throughput, found, 2.0, {"worked_ahead": True, "pairs_left_out": left_out})
    assert verdict.status == status and advice in verdict.reason and verdict.points < verdict.max_points


def test_pairs_that_were_disturbed_do_not_count():
    hot = Pair(9.0, 1.0, disturbed="too hot")
    good = [Pair(3.0, 1.0), Pair(3.01, 1.0), Pair(3.0, 1.0), Pair(3.02, 1.0)]
    options = {"target": 9.0, "noise_floor": 0.02, "precision": 0.05, "min_pairs": 4}
    assert decision.decide([hot] * 4, **options) is None
    assert decision.decide([hot, *good[:3]], **options) is None
    found = decision.decide([hot, *good, hot], **options)
    assert found.settled and found.gain.factor == pytest.approx(3, rel=0.01) and len(found.pairs) == 4


def test_pairs_in_which_the_starter_was_slowed_are_left_out():
    """A neighbour came after the second pair, slowed the starter, and left again."""
    quiet, slowed = [(3.0, 1.0)] * 2, [(5.0, 1.0)] * 3
    options = {"target": 9.0, "min_pairs": 4}
    assert not decide(quiet + slowed, **options).settled
    assert decide(quiet + slowed, **options).certain < 3.1
    found = decide(quiet + slowed + quiet, **options)
    assert found.settled and found.gain.factor == pytest.approx(3) and len(found.pairs) == 4


def test_a_loop_without_a_fault_that_a_neighbour_slows():
    def healthy(pairs):
        return throughput.judge_healthy(
            LAB.throughput, decision.decide_healthy([Pair(*pair) for pair in pairs], 0.97, 0.4, 0.01), {}
        )

    assert healthy([(1.0, 1.0)] * 4).status == PASS
    assert healthy([(1.0, 1.5)] * 4).status == FAIL
    assert healthy([(1.0, 1.5, 0.0, 0.4)] * 4).status == INCONCLUSIVE  # it lost 40% of its time to others
    assert healthy([(1.0, 1.0), *[(1.0, 1.5)] * 3]).status == INCONCLUSIVE


def test_a_starter_that_scatters_makes_no_healthy_loop_slower():
    """Pairs in which the starter was fast were chosen, and the loop was slower than the starter was in those."""
    draw, slower = numpy.random.default_rng(0), 0
    for _ in range(300):
        pairs: list[Pair] = []
        found = None
        while len(pairs) < 14 and not (found and found.settled):
            pairs.append(Pair(math.exp(draw.normal(0, 0.05)), math.exp(draw.normal(0, 0.002))))
            found = decision.decide_healthy(pairs, throughput.NOT_SLOWER, 0.45, 0.003, 3)
        slower += found.settled and found.gain.upper < throughput.NOT_SLOWER
    assert slower < 0.03 * 300


# ---------------------------------------------------------------- how often it is wrong


@pytest.mark.parametrize("kind", errors.kinds(), ids=lambda kind: kind.title)
def test_the_simulated_rule_is_the_rule(kind):
    """The benchmark's, for thousands of grades at once, against `decide`, pair by pair as a grade does it."""
    random = numpy.random.default_rng(3)
    for setting, noise, share in itertools.product(errors.settings()[:2], (0.01, 0.1), (0.5, 1.0)):
        a, b, lost = errors.blocks(random, 6, share * setting.worth, noise, kind)
        marks = errors.marks(a, b, lost, setting)
        for i in range(len(a)):
            seconds = zip(numpy.exp(a[i]), numpy.exp(b[i]), lost[0, i], lost[1, i], strict=True)
            pairs = [Pair(*map(float, each)) for each in seconds]
            for n in range(errors.PLAN.min_pairs, errors.PLAN.max_pairs + 1):
                found = decision.decide(
                    pairs[:n], setting.target, setting.floor, errors.PLAN.precision, errors.PLAN.min_pairs
                )
                if found.settled:
                    break
            verdict = throughput.judge(LAB.throughput, found, setting.target, {})
            assert n == marks.pairs[i] and (verdict.status == INCONCLUSIVE) == marks.open[i]
            assert verdict.points == pytest.approx(marks.points[i] * verdict.max_points, abs=0.01)


@pytest.mark.parametrize("kind", errors.kinds(), ids=lambda kind: kind.title)
def test_wrong_marks_are_rare(kind):
    """With as much noise as a lab may have. Fewer than one grade in a hundred, over thousands (data/measured/decision.md);
    of these 600, chance can make it two."""
    random, grades = numpy.random.default_rng(7), 600
    for setting, share in itertools.product(errors.settings(), errors.GAINS.values()):
        a, b, lost = errors.blocks(random, grades, share * setting.worth, kind.most * setting.worth, kind)
        found = errors.rates(errors.marks(a, b, lost, setting), share)
        assert max(found.too_high, found.too_low) <= 0.02, (setting, share, found)


def test_the_interval_alone_is_fooled_by_a_neighbour():
    """What the demand that each arm agrees with itself is for."""
    kind = errors.Kind("comes", (1, 0))
    setting = errors.settings()[1]
    a, b, lost = errors.blocks(numpy.random.default_rng(1), 500, 0.0, 0.02, kind)
    assert errors.rates(errors.marks(a, b, lost, setting, agree=False), 0.0).too_high > 0.2
    assert errors.rates(errors.marks(a, b, lost, setting), 0.0).too_high < 0.01


def test_measured_grades_keep_their_marks():
    rows = errors.replayed()
    assert len(rows) >= 20
    for row in rows:
        if row in errors.few(rows):
            continue  # it would go on
        assert (row["now_status"], row["now"]) == (row["status"], pytest.approx(row["points"], abs=0.01)), row


# ---------------------------------------------------------------- how far honest trainings end from each other

SPREAD = Spread(((20, Near(1e-4, 0.0, 1e-3, 0.0)), (80, Near(4e-4, 0.01, 1e-2, 0.1))))


@given(st.integers(1, 10_000))
def test_spread_grows_with_the_steps(step):
    for less, more in zip(SPREAD.at(step), SPREAD.at(step + 1), strict=True):
        assert 0 <= less <= more * (1 + 1e-9)


def test_spread_at_its_steps_between_and_beyond():
    for step, near in SPREAD.rows:
        assert SPREAD.at(step) == near
    assert SPREAD.at(21) == SPREAD.at(80) and SPREAD.at(1) == SPREAD.at(20)
    assert SPREAD.at(160) == pytest.approx([2 * value for value in SPREAD.at(80)])
    lucky = Spread((*SPREAD.rows, (100, Near(0.0, 0.0, 0.0, 0.0))))
    assert lucky.at(100) == SPREAD.at(80)  # seeds that came close again by luck
    assert set(Spread().at(100)) == {0.0}  # nothing was calibrated


# ---------------------------------------------------------------- blocks


@given(st.floats(0.01, 10), st.floats(1e-4, 10))
def test_whole_rounds(length, step_s):
    steps = whole_rounds(length, step_s)
    assert steps >= 1 and steps * step_s >= length * (1 - 1e-9)
    assert steps == 1 or steps % (2 if steps < 7 else 12) == 0
    assert steps < length / step_s + 13


@given(st.floats(0.01, 10), st.floats(1e-4, 10), st.integers(1, 8))
def test_whole_rounds_of_batches_of_several_lengths(length, step_s, round_of):
    steps = whole_rounds(length, step_s, round_of)
    assert steps % round_of == 0 and steps * step_s >= length * (1 - 1e-9)
    form = replace(labs.get("3e_compile").forms["cuda"], options={"lengths": range(round_of)})
    assert form.round == round_of and form.recorded(2) % round_of == 0 and 2 <= form.recorded(2) < 2 + round_of


times_s = st.lists(st.floats(0.9, 1.1), min_size=2, max_size=8)


@given(times_s, st.lists(st.floats(0.9, 1.1), min_size=1, max_size=2), st.floats(2.0, 50.0))
def test_how_much_a_loop_was_slowed(beside, alone, slower):
    assert decision.slowed(beside, alone) == 1 or max(beside) > decision.SLOWER_BESIDE * max(alone)
    found = decision.slowed([slower * each for each in beside], alone)
    assert found == 1 or 0.75 * slower < found < 1.25 * slower
    if max(beside) < 1.02 * min(beside):
        assert found > 1
    assert decision.slowed(beside, [*alone, slower * 1.2]) == 1  # slow alone as well


steps_made = st.integers(1, 500)
paces = st.floats(1e-3, 1.0)


@given(steps_made, steps_made, st.integers(0, 400), paces, st.floats(1.0, 20.0))
def test_how_much_steps_made_ahead_may_hide(warm, timed, ahead, honest_s, shown):
    """A loop that makes `ahead` steps before it is timed, and hands those over with `timed` others, at an even pace."""
    starter = Arm(None, step_s=honest_s, warm_steps=warm, untimed_s=warm * honest_s, ran_s=1.0, ran_steps=1)
    starter.ran_busy_s = 0.5 * honest_s
    pace = honest_s * timed / (timed + ahead)
    submission = Arm(None, step_s=pace, warm_steps=warm, untimed_s=(warm + ahead) * honest_s)
    submission.ran_s, submission.ran_steps = timed * honest_s, timed + ahead
    submission.untimed_busy_s, submission.ran_busy_s = 0.5 * submission.untimed_s, 0.5 * submission.ran_s
    claimed = honest_s / pace
    assert overstated(submission, starter, by_gpu=False) >= claimed * (1 - 1e-9)
    assert overstated(submission, starter, by_gpu=True) >= claimed * (1 - 1e-6)
    # more work a step, to make the steps ahead seem fewer, is of no use: the starter's counts
    submission.ran_busy_s *= shown
    assert overstated(submission, starter, by_gpu=True) >= claimed * (1 - 1e-6)


@given(steps_made, st.integers(0, 400), paces, st.integers(1, 20))
def test_how_much_steps_made_around_timed_turns_may_hide(timed, around, honest_s, turns):
    """A loop that trains while its turns begin and end, and hands over what it made there in the timed steps."""
    starter = Arm(None, step_s=honest_s, ran_s=1.0, ran_steps=1, ran_busy_s=0.5 * honest_s)
    pace = honest_s * timed / (timed + around)
    submission = Arm(None, step_s=pace, ran_s=timed * honest_s, ran_steps=timed + around)
    submission.ran_busy_s = 0.5 * (timed + around) * honest_s
    starter.turns = [Turn(1.0, 1, 0.5, around_s=0.01)] * turns
    submission.turns = [Turn(1.0, 1, 0.5, around_s=0.01 + around * honest_s / turns)] * turns
    for by_gpu in (False, True):
        assert overstated(submission, starter, by_gpu) >= honest_s / pace * (1 - 1e-6)


def test_all_time_in_which_a_loop_may_run_is_counted():
    """Its other process is stopped last and goes on first, in a crowd in which that takes long."""
    source = loop(
        "yield torch.ones(())",
        """
import os

for _ in range(500):
    os.posix_spawn("/usr/bin/true", ["true"], {})
if os.fork() == 0:
    while True:
        pass
""",
    )
    with warmed_up(source) as arm:
        arm.child.freeze()
        before, seconds = arm.child.processes.cpu_seconds(), arm.seconds
        for _ in range(3):
            with arm.timed():
                arm.step_s = arm.run(3)
        did = arm.child.processes.cpu_seconds() - before
    assert sum(turn.around_s for turn in arm.turns) + arm.seconds - seconds > 0.9 * did


@given(steps_made, steps_made, paces, st.floats(0.1, 1.0))
def test_an_honest_loop_hides_nothing(warm, timed, honest_s, busy):
    starter = Arm(None, step_s=honest_s, warm_steps=warm, untimed_s=warm * honest_s + 1.0, ran_s=timed * honest_s)
    submission = Arm(None, step_s=honest_s / 4, warm_steps=warm, untimed_s=warm * honest_s / 4 + 1.0)
    submission.ran_s = timed * submission.step_s
    for each in (starter, submission):
        each.ran_steps, each.ran_busy_s, each.untimed_busy_s = timed, busy * timed, busy * warm
    assert overstated(submission, starter, by_gpu=False) == pytest.approx(1)
    assert overstated(submission, starter, by_gpu=True) == pytest.approx(1)
    submission.untimed_s += 60  # it compiled meanwhile, and the GPU had nothing to do
    assert overstated(submission, starter, by_gpu=True) == pytest.approx(1)


def test_a_gain_that_may_be_all_made_up_is_a_number_all_the_same():
    """Results are JSON, which has no infinity, and points are a logarithm."""
    starter = Arm(None, step_s=0.1, warm_steps=8, untimed_s=1.0, ran_s=4.0, ran_steps=40, ran_busy_s=4.0)
    submission = Arm(None, step_s=0.01, warm_steps=8, untimed_s=1e9, untimed_busy_s=240.0, ran_s=1e-3, ran_steps=100)
    submission.ran_busy_s = 1.0
    for by_gpu in (False, True):
        most = overstated(submission, starter, by_gpu)
        assert most == 1000
        assert decision.fraction(10 / most, 3.0) == 0


@given(st.integers(1, 50), steps_made, st.integers(0, 400), paces)
def test_steps_made_in_a_turn_that_does_not_count_hide_nothing(handed, timed, ahead, honest_s):
    """`ahead` steps more than it hands over are made in a turn that is left out, as if others had slowed it; the others hand
    those over as well, at an even pace."""
    starter = Arm(None, step_s=honest_s, ran_s=1.0, ran_steps=1, ran_busy_s=0.5 * honest_s)
    pace = honest_s * timed / (timed + ahead)
    slow, counted = ((handed + ahead) * honest_s, handed), (timed * honest_s, timed + ahead)
    submission = Arm(None, step_s=pace)
    for seconds, steps in (slow, counted):
        submission.turns.append(Turn(seconds, steps, 0.5 * seconds))
        submission.ran_s, submission.ran_steps = submission.ran_s + seconds, submission.ran_steps + steps
        submission.ran_busy_s += 0.5 * seconds
    submission.discount(submission.turns[0], pace, 0.5 * pace)
    claimed = honest_s / pace
    for by_gpu in (False, True):
        assert overstated(submission, starter, by_gpu) >= claimed * (1 - 1e-6)


def test_a_loop_of_unequal_steps_has_nothing_in_store():
    """Turns that decided nothing were now slower, now faster; the slower ones were taken for time to work ahead (2i's half fix)."""
    submission = Arm(None, step_s=0.01, ran_s=5.0, ran_steps=500)
    for seconds in (1.3, 0.7, 1.2, 0.8):
        submission.discount(Turn(seconds, 100, seconds / 2), 0.01, 0.005)
    assert (submission.ran_s, submission.untimed_s) == pytest.approx((5.0, 0.0))
    assert submission.untimed_busy_s == pytest.approx(0.0)


def test_burn_until_the_rate_is_steady():
    """A loop whose first steps come from a full queue: 1 ms each, later ones 10 ms."""
    source = loop(
        "import time\nfor i in range(10**6):\n    time.sleep(0.001 if i < 14 else 0.01)\n    yield torch.ones(())"
    )
    with warmed_up(source) as arm:
        measured = arm.block(Plan(block_s=0.05))
    assert measured > 0.0099


def test_a_burn_that_was_a_little_slower_counts_with_its_block():
    """Else some steps made ahead in it, and handed over in the block, would gain as much: a third of the points where 1.3x earns all."""
    warm, burnt = 3, 48
    source = loop(
        f"import time\nfor i in range(10**6):\n    time.sleep(0.0226 if i < {warm + burnt} else 0.02)\n    yield torch.ones(())"
    )
    with warmed_up(source, warm) as arm:
        seconds, done = arm.seconds, len(arm.losses)
        measured = arm.block(Plan(block_s=0.4))
        whole = (arm.seconds - seconds) / (len(arm.losses) - done)
    assert measured >= whole > 0.02


@pytest.mark.slow
def test_a_slow_turn_counts_at_the_pace_that_was_timed():
    """Steps take 50 ms at first, then 200 ms: what the later ones take longer is time in which others could be made."""
    source = loop(
        "import time\nfor i in range(10**6):\n    time.sleep(0.05 if i < 20 else 0.2)\n    yield torch.ones(())"
    )
    with warmed_up(source) as arm:
        arm.child.freeze()
        with arm.timed():
            arm.step_s = arm.run(18)
        steps, untimed_s = arm.ran_steps, arm.untimed_s
        arm.run_on(arm.step_s, 0.0)
    made = arm.ran_steps - steps
    assert arm.ran_s / arm.ran_steps == pytest.approx(arm.step_s, rel=1e-3)
    assert arm.untimed_s - untimed_s > made * arm.step_s  # three times as much, on an idle machine


def test_compile_time_is_told_apart():
    with warmed_up(loop("import time\ntime.sleep(2)"), 3) as arm:
        pass
    assert arm.compile_s > 1 > arm.step_s
    assert arm.losses == [1.0] * 3
