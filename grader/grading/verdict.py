"""From what a grade has found to its checks: gates in order, then each check alone, then caps."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from grader import trace
from grader.checks import plausible
from grader.checks import prediction as prediction_check
from grader.checks import throughput as throughput_check
from grader.checks import trace as trace_check
from grader.grading.evidence import Findings
from grader.grading.forms import NEEDS_GPU, needs_gpu
from grader.grading.half import hints_here, on_device, parity_here
from grader.labs.lab import CAUSES, Budget, TraceCheck
from grader.result import AGAIN, FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, unscored
from grader.submission import Submission

STAYS = "Your prediction stays as it is, and counts when the loop runs."
ONLY_COMPARED = f"{NEEDS_GPU} Only the training was compared."


class Closed(NamedTuple):
    """Why everything behind a gate earns nothing."""

    status: str
    reason: str
    impossible: bool = False  # the measured rate


def _gates(findings: Findings) -> Iterator[tuple[object, Closed]]:
    """The gates in order, each only asked where those before it are open: what closes it, and then why."""
    work, form, lab, metrics = findings.work, findings.form, findings.lab, findings.profiles.metrics
    parity, outcome = work.parity, work.outcome
    if stopped := findings.stopped():
        yield True, Closed(*stopped)
    what = "service" if lab.serves else "training"
    yield not parity or parity.status == FAIL, Closed(FAIL, f"Not counted: it is not the same {what} (see that check).")
    not_learned = "Not counted: the trained model is not what this training leads to (see that check)."
    yield outcome and outcome.status == FAIL, Closed(FAIL, not_learned)
    lost = work.checkpoints and work.checkpoints.status == FAIL
    yield lost, Closed(FAIL, "Not counted: nobody could go on from these checkpoints (see that check).")
    yield not work.same, Closed(FAIL, "Not counted: the loop no longer logs what it logged (see that check).")
    yield not findings.fits, Closed(FAIL, "Not counted: the loop uses more memory than it may (see that check).")
    yield form.minimum_gain is None, Closed(NOT_MEASURED, ONLY_COMPARED)
    yield findings.race.gain is None, Closed(INCONCLUSIVE, f"No gain could be measured. {AGAIN}")
    impossible = plausible.impossible(form, findings.form_name, findings.race.pairs)
    yield impossible, Closed(FAIL, impossible, impossible=True)
    missing = plausible.missing_work(form, metrics.get("submission") or trace.Metrics())
    idle = plausible.idle_ranks(form, findings.form_name, findings.race.doing, findings.profiles.doing)
    found = sorted(filter(None, (missing, idle)), key=lambda each: each[0] != FAIL)
    yield found, Closed(*(found or [("", "")])[0])


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    lab = findings.lab
    closed = next((closed for shut, closed in _gates(findings) if shut), None)
    said = dict(submission.prediction or ())
    throughput = _throughput(findings, closed, said)
    supported, undecided = throughput.points / lab.throughput.points, throughput.status == INCONCLUSIVE
    checks = [_prediction(findings, submission, supported >= 1, undecided)]
    checks += [parity_here(check, findings.lacks) for check in findings.work.gates]
    memory = _memory(findings, closed)
    if memory and isinstance(lab.memory, Budget):
        memory = as_far_as(supported, "the measured gain", memory, undecided)
    elif memory and not closed:
        share = memory.points / memory.max_points
        throughput = as_far_as(share, "the part of the growth that is gone", throughput)
    order = _order(findings, closed)
    if order and not closed:  # who only names three changes has made none
        order = as_far_as(supported, "the measured gain", order, undecided, "with the same answers ")
    checks += [check for check in (throughput, memory, order) if check]
    return checks + [_trace(findings, closed, check, supported, undecided) for check in lab.trace]


def _prediction(findings: Findings, submission: Submission, full: bool, undecided: bool) -> CheckResult:
    """full: the submission has all points for its throughput."""
    lab, gain, gains = findings.lab, findings.race.gain, {}
    if findings.fatal and lab.measures(lab.prediction, findings.form_name):
        status, reason = findings.stopped() or (FAIL, "")
        return unscored(lab.prediction, status, f"{reason} {STAYS}" if submission.prediction else reason)
    reference_gain = 1.0 if lab.throughput.healthy else findings.yardstick.reference_gain
    if reference_gain:
        gains[prediction_check.REFERENCE] = reference_gain
    if full and gain:
        gains[prediction_check.OWN] = gain.factor
    if not gains and gain is None:
        return unscored(lab.prediction, NOT_MEASURED, "Nothing was measured to compare the prediction with.")
    graded_on = findings.form_name if lab.scored_on_both else ""
    causes = (lab.cause, *lab.close)
    return prediction_check.judge(lab.prediction, causes, gains, submission.prediction, graded_on, undecided)


def _throughput(findings: Findings, closed: Closed | None, said: dict[str, Any]) -> CheckResult:
    """said: the prediction."""
    lab, race = findings.lab, findings.race
    check = replace(lab.throughput, hints=hints_here(lab.throughput.hints, findings.lacks))
    if findings.form.minimum_gain is None:
        return unscored(check, NOT_MEASURED, ONLY_COMPARED)
    evidence = _throughput_evidence(findings)
    if closed:
        impossible = {"impossible": True} if closed.impossible else {}
        return unscored(check, closed.status, closed.reason, evidence | impossible)
    assert race.decided is not None
    if not lab.throughput.healthy:
        return throughput_check.judge(check, race.decided, findings.yardstick.target, evidence)
    judged = throughput_check.judge_healthy(check, race.decided, evidence, findings.yardstick.untouched)
    if lab.memory:
        return judged
    # there is nothing to do but to look, and to say what was seen
    looked = float(said.get("cause") in CAUSES and "gain" in said)
    return as_far_as(looked, "a prediction of cause and gain", judged)


def _throughput_evidence(findings: Findings) -> dict[str, Any]:
    race, yardstick = findings.race, findings.yardstick
    if race.decided is None:
        return {}
    gain, (starter_s, submission_s) = race.decided.gain, race.step_s
    evidence: dict[str, Any] = {
        "gain": gain.factor,
        "gain_lower": gain.lower,
        "gain_upper": gain.upper,
        "gain_certain": race.decided.certain,
        "noise": gain.noise,
        "target": yardstick.target,
        "reference_gain": yardstick.reference_gain,
        "target_source": yardstick.source,
        "starter_ms": 1e3 * starter_s,
        "submission_ms": 1e3 * submission_s,
        "pairs": [[1e3 * each.starter_s, 1e3 * each.submission_s] for each in race.decided.pairs],
        "lost": [[each.starter_lost, each.submission_lost] for each in race.decided.pairs],
        "pairs_left_out": len(race.pairs) - len(race.decided.pairs),
        "lost_to_others": max(each.lost for each in race.decided.pairs),
        "compile_s": race.compile_s,
        "alone_ms": [1e3 * each for each in race.alone_s],
        "slowed": race.slowed,
        "cores": race.cores,
        "overstated": race.overstated,
        "worked_ahead": race.worked_ahead,
    }
    if findings.form.prepare_s:
        evidence |= {"prepare_s": findings.prepare_s, "prepare_ms_a_step": 1e3 * findings.prepare_step_s}
    return evidence


def _memory(findings: Findings, closed: Closed | None) -> CheckResult | None:
    check = findings.lab.memory
    if not check:
        return None
    if closed and findings.fits:
        if not findings.lab.measures(check, findings.form_name):  # nor where the submission failed
            return unscored(check, NOT_MEASURED, ONLY_COMPARED)
        return unscored(check, closed.status, closed.reason)
    return findings.work.memory or unscored(check, INCONCLUSIVE, f"Nothing was measured. {AGAIN}")


def _order(findings: Findings, closed: Closed | None) -> CheckResult | None:
    check = findings.lab.order
    if not check:
        return None
    if closed:
        return unscored(check, closed.status, closed.reason)
    return findings.order or unscored(check, INCONCLUSIVE, f"The changes were not timed. {AGAIN}")


def _trace(
    findings: Findings, closed: Closed | None, check: TraceCheck, supported: float, undecided: bool
) -> CheckResult:
    """supported: the share of the points that the throughput has earned; undecided: it may be more."""
    profiles = findings.profiles
    if not findings.lab.measures(check, findings.form_name):
        return unscored(check, NOT_MEASURED, needs_gpu(findings.lab))
    check, cannot = on_device(check.in_form(findings.form.size), findings.lacks)
    if cannot:
        return unscored(check, NOT_MEASURED, cannot)
    if closed:
        return unscored(check, closed.status, closed.reason)
    if "submission" not in profiles.metrics:
        why = "; ".join(profiles.problems) or "There is no trace"
        return unscored(check, INCONCLUSIVE, f"{why}. Check again.")
    metrics, problems = profiles.metrics["submission"], list(profiles.problems)
    judged = trace_check.judge(check, metrics, problems, supported, findings.race.lost, undecided)
    if not judged.points:
        return judged
    value = judged.evidence.get(check.metric, 0.0)
    doubt = plausible.beside_the_trace(check.metric, value, findings.form_name, findings.race.main_thread)
    if check.metric == "loads_in_main":
        doubt = plausible.made_in_main(findings.form_name, findings.race.main_step_s)
    return unscored(check, INCONCLUSIVE, doubt, judged.evidence) if doubt else judged


def as_far_as(supported: float, what: str, found: CheckResult, undecided: bool = False, given: str = "") -> CheckResult:
    """The cap: a check that the untouched loop passes as well earns the share (0 to 1) of its points that `what` had to be done
    supports. undecided: whether that may support more, once it is known. given: with what the untouched loop would pass."""
    if supported >= 1 or not found.points:
        return found
    untouched = "passes this, too" if found.status == PASS else "does no worse"
    reason = f"{found.reason} The untouched loop {given}{untouched}, so {what} decides: it earns {supported:.0%} of these points."
    open_yet = found.status == INCONCLUSIVE or (undecided and found.status == PASS)
    status = INCONCLUSIVE if open_yet else FAIL
    return replace(found, status=status, points=round(supported * found.points, 2), reason=reason)
