"""Grades a function that is to be one kernel: is it right in all cases, and how near does it come to the speed of the memory?

Inputs are drawn when the submission is loaded. Its results are compared with float64 by a process of ours. Then rounds of
calls are timed by the parent's clock: the function's, and beside it those of three functions of ours (the plain operations,
what only moves the same bytes, and nothing at all, the price of looking at a result). Each call has inputs that did not
exist before the request, and a number that the whole result has a part in comes back from each, to be compared with the plain
operations': a call that was left out, or remembered, is seen.

That a kernel of Triton's made a result is seen by its cause: once the function has returned, inputs are drawn anew and put where
those of the call lie, and its launches are made once more, with the copies and casts beside them. What they leave must be
right for the new inputs. Whatever else calculated (NumPy, a C library, another process, a table) knows only the old ones."""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import time
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar

from grader import machine
from grader.grading.arms import Setup, open_arm
from grader.grading.evidence import AnyFindings
from grader.grading.forms import NEEDS_GPU
from grader.grading.gate import Disturbed, machine_is_free
from grader.labs.lab import AnyLab, Hints, OtherForm
from grader.measure import decision
from grader.measure.blocks import QUICK
from grader.result import AGAIN, FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Progress, unscored
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import Child, turn
from grader.sandbox.setting import Limits
from grader.submission import Submission

# ---------------------------------------------------------------- the declaration


@dataclass(frozen=True)
class Cases:
    """Inputs on which the submission's function must be right, by what they are called in the report: the workload's
    options, of which pairs are drawn between the two for each grade. Each of them earns its share of the points."""

    name: str
    title: str
    points: float
    sizes: dict[str, dict[str, Any]]
    hints: Hints


@dataclass(frozen=True)
class Roof:
    """The function's share of the speed at which this machine moves the bytes that it cannot do without. All points from
    `at_least` on, none for the share of the plain operations one after the other."""

    points: float
    at_least: float
    hints: Hints
    name: str = "roof"
    title: str = "Share of the bandwidth roof"
    form: str = "cuda"


@dataclass(frozen=True)
class Bench(OtherForm):
    """How a form is measured. timed: the workload's options for the calls that are timed; None where nothing is. calls: of
    a function in a round. noise: least relative sd of a round to believe."""

    timed: dict[str, Any] | None
    calls: int = 200
    rounds: int = 7
    noise: float = 0.005
    workload: str = "grader.workloads.chain"
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class KernelLab(AnyLab):
    """A function to be written as one kernel: right in all cases, and as fast as the memory allows. entry: its name."""

    forms: dict[str, Bench]
    entry: str
    cases: tuple[Cases, ...]
    roof: Roof

    graded_by: ClassVar[str] = "grader.kinds.kernel"

    @property
    def checks(self) -> tuple[Any, ...]:
        return (*self.cases, self.roof)

    def measures(self, check: Any, form: str) -> bool:
        return form in self.forms and (check is not self.roof or self.forms[form].timed is not None)


FILE = "result.safetensors"
OURS = ("plain", "roof", "nothing")
SOURCE = f"from grader.workloads.chain import {', '.join(OURS)}\n"
PASSES = 3  # over a tensor: x and the residual are read, the result is written
ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# How far looks at the same results may be apart, the root of the mean square over a round. On the CPU, in 6 rounds of 16 calls
# with 256 rows of 4096 in bfloat16, what is calculated in float32 and rounded once was 0.004 to 0.0054 from the plain operations,
# which round four times (in float32: 0.0000); made of copies in 8 bits of the first call's x and residual it was 0.058 and more.
SAME = 0.015
TIMED = "the size that is timed"
FASTEST = 1.1  # of the roof: what is faster has not moved its bytes
QUICK_ROUNDS = 3
# times as long as in the median round; on an H200 rounds differ by 2%, but for one of 28: 1.5 times as long
HELD_UP = 1.25
UNSETTLED = 0.1  # of all points for the roof: what the interval may leave open


@dataclass(frozen=True)
class Seen:
    """One case: the largest error in units of what is allowed, of the call and of what it launched on other inputs, the
    operators of torch that calculated, what else was wrong."""

    off: float | None = None
    again: float | None = None
    operators: tuple[str, ...] = ()
    wrong: str = ""
    launches: int = 1  # of Triton's kernels, in the one call

    @property
    def elsewhere(self) -> str:
        """What is wrong with what the launches alone make of other inputs, or ''."""
        if self.again is not None and self.again <= 1:
            return ""
        off = "not finite" if self.again is None else f"off by {self.again:.3g}"
        return f"its kernel, launched once more on other inputs, is {off}: something else has calculated"


@dataclass
class Findings(AnyFindings):
    lab: KernelLab
    seen: dict[str, Seen] = field(default_factory=dict)  # by case
    rounds: list[dict[str, float]] = field(default_factory=list)  # seconds of one call, "fused" and OURS
    strange: float = 0.0  # how far looks at the same results are apart, in the worst round
    compiled: bool = False  # torch.compile was used

    @property
    def bytes(self) -> float:
        """That a timed call cannot do without."""
        timed = self.form.timed
        return PASSES * timed["rows"] * timed["width"] * ITEM_SIZES[timed["type"]]


def measure(found: Findings, submission: Submission, plan: Any, limits: Limits | None, progress: Progress) -> None:
    found.free_bytes = machine_is_free(found.form_name, found.ranks)
    with _children(found, submission, limits) as (theirs, ours):
        _cases(found, theirs, ours, progress)
        if found.form.timed is not None and all(seen.wrong == "" for seen in found.seen.values()):
            found.seen[TIMED] = _seen(found, theirs, ours, secrets.randbelow(1 << 31), found.form.timed)
            _rounds(found, theirs, ours, QUICK_ROUNDS if plan == QUICK else found.form.rounds, progress)


def look(found: Findings, submission: Submission, progress: Progress) -> None:
    """The cases only: nothing is timed."""
    with _children(found, submission, None) as (theirs, ours):
        _cases(found, theirs, ours, progress)


@contextlib.contextmanager
def _children(found: Findings, submission: Submission, limits: Limits | None) -> Any:
    """The submission's process and ours, both loaded and frozen. What the submission printed is kept, however it ends."""
    setup = Setup(found.form, found.form_name, {}, [], found.allow_unconfined)
    with (
        open_arm(submission.source, setup, limits) as theirs,
        open_arm(SOURCE, setup, trusted=True) as ours,
    ):
        try:
            ours.child.load(OURS[0])
            ours.child.freeze()  # before anything of the submission runs
            theirs.child.ask("watch")
            theirs.child.load(found.lab.entry)
            theirs.child.freeze()
            found.seed = secrets.randbelow(1 << 31)  # drawn only now: nothing could be computed ahead
            yield theirs.child, ours.child
        finally:
            found.output = theirs.child.output()


def drawn(check: Cases, seed: int | None) -> dict[str, dict[str, Any]]:
    """The workload's options of each case for a grade: pairs become a whole number between them."""
    chance = random.Random(f"{check.name} {seed}")
    return {
        name: {key: chance.randint(*value) if isinstance(value, tuple) else value for key, value in sizes.items()}
        for name, sizes in check.sizes.items()
    }


def _cases(found: Findings, theirs: Child, ours: Child, progress: Progress) -> None:
    """Each case, once. A case in which the function raises is wrong, and no more than that, unless all of them are."""
    raised: list[ChildError] = []
    cases = [case for check in found.lab.cases for case in drawn(check, found.seed).items()]
    for i, (name, case) in enumerate(cases):
        progress(0.05 + 0.55 * i / len(cases), f"the case {name!r}")
        try:
            found.seen[name] = _seen(found, theirs, ours, found.seed + i, case)
        except ChildError as error:
            if error.kind in ("wire", "died", "timeout", "disk", "freeze") or len(raised) == len(cases) - 1:
                raise
            raised.append(error)
            found.seen[name] = Seen(wrong=error.message)


def _most(case: dict[str, Any]) -> int:
    """Bytes that the file of a case's result may have: numbers of any type, and a header."""
    return 8 * case["rows"] * case["width"] + (1 << 20)


def _seen(found: Findings, theirs: Child, ours: Child, seed: int, case: dict[str, Any]) -> Seen:
    with turn(theirs):
        reply = theirs.ask("result", entry=found.lab.entry, seed=seed, file=FILE, case=case)
        operators, launches, compiled = _calculated(reply)
        found.compiled |= compiled
        result = theirs.fetch(FILE, _most(case))
        other = secrets.randbelow(1 << 31)  # drawn when the function has returned
        theirs.ask("again", seed=other, file=FILE, case=case)
        again = theirs.fetch(FILE, _most(case))
    answers = []
    with turn(ours):
        for drawn_from, file in ((seed, result), (other, again)):
            ours.give(FILE, file)
            answers.append(ours.ask("largest_error", seed=drawn_from, file=FILE, case=case))
    first, second = answers
    return Seen(first.get("largest_error"), second.get("largest_error"), operators, first.get("differs", ""), launches)


def _calculated(reply: Any) -> tuple[tuple[str, ...], int, bool]:
    operators, launches = (reply.get(key) if isinstance(reply, dict) else None for key in ("operators", "launches"))
    named = isinstance(operators, list) and all(isinstance(name, str) for name in operators)
    if not named or not isinstance(launches, int):
        raise ChildError("The grading process sent a reply of the wrong form.", kind="wire")
    return tuple(name[:60] for name in operators), launches, bool(reply.get("compiled"))


def _rounds(found: Findings, theirs: Child, ours: Child, rounds: int, progress: Progress) -> None:
    for child in (theirs, ours):
        with turn(child):
            child.ask("inputs", seed=found.seed, case=found.form.timed)
    for n in range(-1, rounds):  # the first round warms up
        progress(0.65 + 0.35 * (n + 1) / (rounds + 1), f"timing, round {n + 1} of {rounds}")
        seed, looks, seconds = secrets.randbelow(1 << 31), {}, {}
        order = [found.lab.entry, *OURS]
        random.shuffle(order)
        for name in order:
            if found.form_name == "cuda" and not machine.wait_idle():
                raise Disturbed("the GPU was busy while nothing was timed: another program, or work queued ahead.")
            child = ours if name in OURS else theirs
            with turn(child):
                child.ask("calls", entry=name, seed=seed, count=2)  # awake, and clocks up
                began = time.perf_counter()
                reply = child.ask("calls", entry=name, seed=seed + 1, count=found.form.calls)
                seconds[name] = (time.perf_counter() - began) / found.form.calls
            looks[name] = _looks(reply, found.form.calls)
            found.compiled |= name not in OURS and bool(reply.get("compiled"))
        found.strange = max(found.strange, _apart(looks[found.lab.entry], looks["plain"]))
        if n >= 0:
            found.rounds.append(seconds)


def _looks(reply: Any, calls: int) -> list[float]:
    looks = reply.get("looks") if isinstance(reply, dict) else None
    if not isinstance(looks, list) or len(looks) != calls:
        raise ChildError("The grading process sent results of the wrong form.", kind="wire")
    return [float(look) if isinstance(look, int | float) else math.inf for look in looks]


def _apart(some: list[float], others: list[float]) -> float:
    """One call that was left out shows, and so does what is a little wrong in all of them."""
    apart = math.sqrt(fmean((a - b) ** 2 for a, b in zip(some, others, strict=True)))
    return apart if math.isfinite(apart) else math.inf


# ---------------------------------------------------------------- verdicts


def judge(found: Findings, submission: Submission) -> list[CheckResult]:
    lab = found.lab
    if found.form_name not in lab.forms:
        return [unscored(check, NOT_MEASURED, NEEDS_GPU) for check in lab.checks]
    if found.fatal or found.disturbed:
        status, why = (FAIL, "Not counted: the function did not run (see above).")
        if found.disturbed and not found.fatal:
            status, why = INCONCLUSIVE, f"Not measured: {found.disturbed} Check again when the machine is free."
        return [unscored(check, status, why) for check in lab.checks]
    whose = foreign(found)
    judged = [_judge_cases(found, check, whose) for check in lab.cases]
    right = all(check.status == PASS for check in judged) and not _wrong_when_timed(found)
    return [*judged, _judge_roof(found, whose, right)]


def foreign(found: Findings) -> str:
    """Why the results are not those of a kernel of the submission's own, or ''."""
    operators = sorted({name for seen in found.seen.values() for name in seen.operators})
    if operators:
        more = f" and {len(operators) - 5} more" if len(operators) > 5 else ""
        return f"operators of torch calculated: {', '.join(operators[:5])}{more}"
    if found.compiled:
        return "torch.compile made the kernel; it is what yours is compared with"
    for name, seen in found.seen.items():
        if seen.launches == 0:
            return f"for {name!r} a call launched no kernel that is decorated with @triton.jit"
        if seen.launches > 1:
            between = "what one leaves for the next goes to memory and comes back"
            return f"for {name!r} a call launched {seen.launches} kernels, and one is allowed: {between}"
    return ""


def _judge_cases(found: Findings, check: Cases, whose: str) -> CheckResult:
    cases = drawn(check, found.seed)
    wrong = {name: why for name in cases if (why := _wrong(found.seen[name]))}
    evidence = {name: {"off": found.seen[name].off, **case} for name, case in cases.items()}
    right = f"{len(cases) - len(wrong)} of {len(cases)} are right"
    hint, *deeper = check.hints
    if whose:
        reason = f"{right}, but they count when one kernel of yours has made them: {whose}."
        return CheckResult(check.name, check.title, FAIL, 0, check.points, reason, hint, evidence, deeper)
    if not wrong:
        reason = f"{right}."
        return CheckResult(check.name, check.title, PASS, check.points, check.points, reason, "", evidence)
    points = round(check.points * (1 - len(wrong) / len(cases)), 2)
    said = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return CheckResult(check.name, check.title, FAIL, points, check.points, f"{right}. {said}.", hint, evidence, deeper)


def _wrong(seen: Seen) -> str:
    if seen.wrong:
        return seen.wrong
    if seen.off is None:
        return "the result holds numbers that are not finite"
    return f"off by {seen.off:.3g} times what is allowed" if seen.off > 1 else seen.elsewhere


def _wrong_when_timed(found: Findings) -> str:
    """What is wrong with a call of the size that is timed, or ''."""
    wrong = TIMED in found.seen and _wrong(found.seen[TIMED])
    return f"at {TIMED}: {wrong}" if wrong else ""


def _judge_roof(found: Findings, whose: str, right: bool) -> CheckResult:
    check = found.lab.roof
    hint, *deeper = check.hints

    def result(status: str, points: float, reason: str, evidence: Any = None) -> CheckResult:
        first, more = (hint, deeper) if status == FAIL else ("", [])
        points = round(points, 2)
        return CheckResult(check.name, check.title, status, points, check.points, reason, first, evidence or {}, more)

    if found.form.timed is None:
        return result(NOT_MEASURED, 0, NEEDS_GPU)
    stopped = "" if right else whose or _wrong_when_timed(found) or "it is not right in all cases (see there)"
    if not found.rounds:
        return result(FAIL, 0, f"Not counted: {stopped}.")
    times = [{name: seconds - each["nothing"] for name, seconds in each.items()} for each in _even(found.rounds)]
    own, roof, simple = ([each[name] for each in times] for name in (found.lab.entry, "roof", "plain"))
    if min(*own, *roof, *simple) <= 0:
        if stopped:
            return result(FAIL, 0, f"Not counted: {stopped}.")
        return result(INCONCLUSIVE, 0, "Some calls took less time than looking at their results does. Check again.")
    share = decision.gain(roof, own, found.form.noise)
    least = decision.gain(roof, simple, found.form.noise).factor
    rate = found.bytes / fmean(own) / 1e9
    evidence = {
        "share": share.factor,
        "lower": share.lower,
        "upper": share.upper,
        "plain_share": least,
        "at_least": check.at_least,
        "gb_per_s": rate,
        "us_a_call": [{name: 1e6 * seconds for name, seconds in each.items()} for each in found.rounds],
        "looks_apart": found.strange,
    }
    said = (
        f"It moves its bytes at {rate:,.0f} GB/s, {share.factor:.0%} of the roof measured here (90% interval "
        f"{share.lower:.0%} to {share.upper:.0%}); one operation after the other reaches {least:.0%}, and "
        f"{check.at_least:.0%} earns full points."
    )
    if found.strange > SAME:
        stopped = "results of the timed calls are not those of the function. Every call must calculate anew, and return a new tensor like x"
    elif share.lower > FASTEST:
        stopped = "this is faster than the memory can move the bytes. Something was not read, or not written"
    if stopped:
        return result(FAIL, 0, f"Not counted: {stopped}. {said}", evidence)
    low, high = (_part(end, least, check.at_least) for end in (share.lower, share.upper))
    if low >= 1:
        return result(PASS, check.points, said, evidence)
    if high - low > UNSETTLED:
        return result(
            INCONCLUSIVE, low * check.points, f"{said} The rounds differ too much for a verdict. {AGAIN}", evidence
        )
    return result(FAIL, low * check.points, said, evidence)


def _even(rounds: list[dict[str, float]]) -> list[dict[str, float]]:
    """The rounds in which nothing took much longer than it does usually: something else held the machine up then. All of them
    where these are most."""
    usual = {name: median(each[name] for each in rounds) for name in rounds[0]}
    even = [each for each in rounds if all(each[name] <= HELD_UP * usual[name] for name in usual)]
    return even if 2 * len(even) > len(rounds) else rounds


def _part(share: float, least: float, full: float) -> float:
    """The points, 0 to 1: in the log of the share, from that of the plain operations to the one that earns all."""
    if least >= full:
        return float(share >= full)
    return min(1.0, max(0.0, math.log(share / least) / math.log(full / least)))
