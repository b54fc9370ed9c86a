"""Labs with a function to be written as one kernel: is it right in all cases, and how near does it come to the memory's speed?

Results for inputs that are drawn after loading are compared with float64 by a process of the grader's. Then rounds of calls are timed
by the parent's clock, beside those of three functions of the grader's. Each call has inputs that did not exist before the request, and
returns a number that the whole result has a part in, to be compared with the plain operations': a call that was left out, or
remembered, is seen.

That a kernel of Triton's made a result is seen by its cause. The submission's process writes down what a call launched: the kernels'
texts, grids and arguments, and the copies beside them. A third process, in which nothing of the submission's ever ran, launches just
that on inputs drawn afterwards, and what comes of it must be right. It is also what is timed, when the submission's process is gone.
So whatever else calculated (NumPy, a C library, another process, a harness that was replaced) earns nothing."""

import contextlib
import math
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, ClassVar, NamedTuple

from grader import machine
from grader.grading.arms import Setup, open_arm
from grader.grading.evidence import AnyFindings
from grader.grading.forms import NEEDS_GPU
from grader.grading.gate import Disturbed, machine_is_free
from grader.kinds.shared import drawn_sizes
from grader.labs.lab import AnyLab, Check, Hints, OtherForm
from grader.measure import decision
from grader.measure.blocks import QUICK
from grader.result import AGAIN, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Progress, scored, unscored
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import Child, turn
from grader.sandbox.setting import Limits
from grader.submission import Submission

# ---------------------------------------------------------------- the declaration


@dataclass(frozen=True)
class Cases:
    """Inputs on which the submission's function must be right."""

    name: str
    title: str
    points: float  # shared among the cases
    # the workload's options, by what the case is called in the report; pairs are drawn between the two for each grade
    sizes: dict[str, dict[str, Any]]
    hints: Hints


@dataclass(frozen=True)
class Roof:
    """The function's share of the speed at which this machine moves the bytes that it cannot do without."""

    points: float
    at_least: float  # earns all points; the share of the plain operations, one after the other, earns none
    hints: Hints
    name: str = "roof"
    title: str = "Share of the bandwidth roof"
    form: str = "cuda"


@dataclass(frozen=True, kw_only=True)
class Bench(OtherForm):
    timed: dict[str, Any] | None  # the workload's options for the calls that are timed; None where nothing is
    calls: int = 200  # of a function in a round
    rounds: int = 7
    noise: float = 0.005  # least relative sd of a round to believe
    workload: str = "grader.workloads.chain"


@dataclass(frozen=True, kw_only=True)
class KernelLab(AnyLab):
    """A function to be written as one kernel: right in all cases, and as fast as the memory allows."""

    forms: dict[str, Bench]
    entry: str  # its name
    cases: tuple[Cases, ...]
    roof: Roof

    graded_by: ClassVar[str] = "grader.kinds.kernel"

    @property
    def checks(self) -> tuple[Cases | Roof, ...]:
        return (*self.cases, self.roof)

    def measures(self, check: Check, form: str) -> bool:
        return form in self.forms and (check is not self.roof or self.forms[form].timed is not None)


FILE, RECORD = "result.safetensors", "call.safetensors"
MAX_RECORD = 16 << 20  # bytes
YARDSTICKS = ("plain", "roof", "nothing")  # timed beside: plain operations, moving the same bytes, looking at a result
SOURCE = f"from grader.workloads.chain import {', '.join(YARDSTICKS)}\n"
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
class CaseResult:
    largest_error: float | None = None  # in units of what is allowed
    error_again: float | None = None  # the same, of what its launches made of other inputs
    operators: tuple[str, ...] = ()  # of torch, that calculated
    wrong: str = ""  # what else was
    launches: int = 1  # of Triton's kernels, in the one call

    @property
    def elsewhere(self) -> str:
        """What is wrong with what the launches alone make of other inputs, or ''."""
        if self.error_again is not None and self.error_again <= 1:
            return ""
        off = "not finite" if self.error_again is None else f"off by {self.error_again:.3g}"
        return f"its kernel is {off} when it is launched again on other inputs, so something else has calculated the result"


@dataclass
class Findings(AnyFindings):
    lab: KernelLab
    seen: dict[str, CaseResult] = field(default_factory=dict)  # by case
    rounds: list[dict[str, float]] = field(default_factory=list)  # seconds of one call, "fused" and YARDSTICKS
    strange: float = 0.0  # how far looks at the same results are apart, in the worst round
    compiled: bool = False  # torch.compile was used

    @property
    def bytes(self) -> float:
        """That a timed call cannot do without."""
        timed = self.form.timed
        return PASSES * timed["rows"] * timed["width"] * ITEM_SIZES[timed["type"]]


class Children(NamedTuple):
    submission: Child
    again: Child  # launches what the submission's launched
    grader: Child


def without_bf16(lab: KernelLab) -> KernelLab:
    """For a GPU that has no bf16: float16 in its place, in the cases and in what is timed."""
    other = {"type": "float16"}
    cases = tuple(
        replace(
            check,
            sizes={
                name.replace("bfloat16", "float16 for bfloat16"): sizes | (other if sizes["type"] == "bfloat16" else {})
                for name, sizes in check.sizes.items()
            },
        )
        for check in lab.cases
    )
    forms = {name: replace(form, timed=form.timed and form.timed | other) for name, form in lab.forms.items()}
    return replace(lab, cases=cases, forms=forms)


def measure(findings: Findings, submission: Submission, plan: Any, limits: Limits | None, progress: Progress) -> None:
    findings.free_bytes = machine_is_free(findings.form_name, findings.ranks)
    with _graders(findings, limits) as (setup, again, grader):
        timed = findings.form.timed
        with _submission(findings, submission, setup, limits) as child:
            children = Children(child, again, grader)
            _cases(findings, children, progress)
            if timed is not None and all(seen.wrong == "" for seen in findings.seen.values()):
                findings.seen[TIMED] = _called_once(findings, children, secrets.randbelow(1 << 31), timed)
        if TIMED in findings.seen:
            _rounds(findings, again, grader, QUICK_ROUNDS if plan == QUICK else findings.form.rounds, progress)


def look(findings: Findings, submission: Submission, progress: Progress) -> None:
    """The cases only: nothing is timed."""
    with _graders(findings, None) as (setup, again, grader), _submission(findings, submission, setup, None) as child:
        _cases(findings, Children(child, again, grader), progress)


@contextlib.contextmanager
def _graders(findings: Findings, limits: Limits | None) -> Iterator[tuple[Setup, Child, Child]]:
    """The setup for a lab that this GPU can run; what launches again, confined as a submission is; and what compares."""
    if "bf16" in findings.lacks:
        findings.lab = without_bf16(findings.lab)
    setup = Setup(findings.form, findings.form_name, {}, [], findings.allow_unconfined)
    with open_arm("", setup, limits) as again, open_arm(SOURCE, setup, trusted=True) as grader:
        grader.child.load(YARDSTICKS[0])
        for arm in (again, grader):
            arm.child.freeze()  # before anything of the submission runs
        yield setup, again.child, grader.child


@contextlib.contextmanager
def _submission(findings: Findings, submission: Submission, setup: Setup, limits: Limits | None) -> Iterator[Child]:
    """Its process, loaded and frozen. What it printed is kept, however it ends."""
    with open_arm(submission.source, setup, limits) as arm:
        try:
            arm.child.ask("watch")
            arm.child.load(findings.lab.entry)
            arm.child.freeze()
            findings.seed = secrets.randbelow(1 << 31)  # drawn only now: nothing could be computed ahead
            yield arm.child
        finally:
            findings.output = arm.child.output()


def drawn(check: Cases, seed: int | None) -> dict[str, dict[str, Any]]:
    """The workload's options of each case for a grade."""
    chance = random.Random(f"{check.name} {seed}")
    return {name: drawn_sizes(chance, sizes) for name, sizes in check.sizes.items()}


def _cases(findings: Findings, children: Children, progress: Progress) -> None:
    """Each case, once. A case in which the function raises is wrong, and no more than that, unless all of them are."""
    raised, seed = 0, findings.seed
    assert seed is not None
    cases = [case for check in findings.lab.cases for case in drawn(check, seed).items()]
    for i, (name, case) in enumerate(cases):
        progress(0.05 + 0.55 * i / len(cases), f"the case {name!r}")
        try:
            findings.seen[name] = _called_once(findings, children, seed + i, case)
        except ChildError as error:
            if error.kind in ("wire", "died", "timeout", "disk", "freeze") or raised == len(cases) - 1:
                raise
            raised += 1
            findings.seen[name] = CaseResult(wrong=error.message)


def _called_once(findings: Findings, children: Children, seed: int, case: dict[str, Any]) -> CaseResult:
    most = 8 * case["rows"] * case["width"] + (1 << 20)  # bytes of a result's file: numbers of any type, and a header
    with turn(children.submission):
        reply = children.submission.ask(
            "result", entry=findings.lab.entry, seed=seed, file=FILE, record=RECORD, case=case
        )
        operators, compiled = _calculated(reply)
        findings.compiled |= compiled
        result, record = children.submission.fetch(FILE, most), children.submission.fetch(RECORD, MAX_RECORD)
    other = secrets.randbelow(1 << 31)  # drawn when the function has returned
    with turn(children.again):
        children.again.give(RECORD, record)
        reply = children.again.ask("again", record=RECORD, seed=other, file=FILE, case=case)
        again = children.again.fetch(FILE, most)
    answers = []
    with turn(children.grader):
        for drawn_from, file in ((seed, result), (other, again)):
            children.grader.give(FILE, file)
            answers.append(children.grader.ask("largest_error", seed=drawn_from, file=FILE, case=case))
    first, second = answers
    wrong = first.get("differs", "") or second.get("differs", "")
    return CaseResult(first.get("largest_error"), second.get("largest_error"), operators, wrong, reply["launches"])


def _calculated(reply: Any) -> tuple[tuple[str, ...], bool]:
    """Operators of torch that calculated, and whether torch.compile was used. Raises ChildError."""
    operators = reply.get("operators") if isinstance(reply, dict) else None
    if not isinstance(operators, list) or not all(isinstance(name, str) for name in operators):
        raise ChildError("The grading process sent a reply of the wrong form.", kind="wire")
    return tuple(name[:60] for name in operators), bool(reply.get("compiled"))


def _rounds(findings: Findings, again: Child, grader: Child, rounds: int, progress: Progress) -> None:
    entry, calls = findings.lab.entry, findings.form.calls
    for child in (again, grader):
        with turn(child):
            child.ask("inputs", seed=findings.seed, case=findings.form.timed)
    for n in range(-1, rounds):  # the first round warms up
        progress(0.65 + 0.35 * (n + 1) / (rounds + 1), f"timing, round {n + 1} of {rounds}")
        seed, looks, seconds = secrets.randbelow(1 << 31), {}, {}
        order = [entry, *YARDSTICKS]
        random.shuffle(order)
        for name in order:
            if findings.form_name == "cuda" and not machine.wait_idle():
                raise Disturbed("the GPU was busy while nothing was timed: another program used it.")
            child = grader if name in YARDSTICKS else again
            with turn(child):
                child.ask("calls", entry=name, seed=seed, count=2)  # awake, and clocks up
                began = time.perf_counter()
                reply = child.ask("calls", entry=name, seed=seed + 1, count=calls)
                seconds[name] = (time.perf_counter() - began) / calls
            looks[name] = _looks(reply, calls)
        findings.strange = max(findings.strange, _apart(looks[entry], looks["plain"]))
        if n >= 0:
            findings.rounds.append(seconds)


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


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    lab = findings.lab
    if stopped := findings.stopped("the function did not run"):
        return [unscored(check, *stopped) for check in lab.checks]
    whose = foreign(findings)
    judged = [_judge_cases(findings, check, whose) for check in lab.cases]
    right = all(check.status == PASS for check in judged) and not _wrong_when_timed(findings)
    return [*judged, _judge_roof(findings, whose, right)]


def foreign(findings: Findings) -> str:
    """Why the results are not those of a kernel of the submission's own, or ''."""
    operators = sorted({name for seen in findings.seen.values() for name in seen.operators})
    if operators:
        more = f" and {len(operators) - 5} more" if len(operators) > 5 else ""
        return f"operators of torch calculated: {', '.join(operators[:5])}{more}"
    if findings.compiled:
        return "torch.compile made the kernel, and that is what yours is compared with"
    for name, seen in findings.seen.items():
        if seen.launches == 0:
            return f"for {name!r} a call launched no kernel that is decorated with @triton.jit"
        if seen.launches > 1:
            between = "What one kernel leaves for the next goes to memory and back"
            return f"for {name!r} a call launched {seen.launches} kernels, and only one is allowed. {between}"
    return ""


def _judge_cases(findings: Findings, check: Cases, whose: str) -> CheckResult:
    cases = drawn(check, findings.seed)
    wrong = {name: why for name in cases if (why := _wrong(findings.seen[name]))}
    evidence = {name: {"off": findings.seen[name].largest_error, **case} for name, case in cases.items()}
    right = f"{len(cases) - len(wrong)} of {len(cases)} are right"
    if whose:
        reason = f"{right}, but they don't count, because {whose}. One kernel of yours must calculate them."
        return scored(check, 0, reason, evidence)
    if not wrong:
        return scored(check, check.points, f"{right}.", evidence)
    said = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    return scored(check, check.points * (1 - len(wrong) / len(cases)), f"{right}. {said}.", evidence)


def _wrong(seen: CaseResult) -> str:
    if seen.wrong:
        return seen.wrong
    if seen.largest_error is None:
        return "the result holds values that are not finite"
    return f"off by {seen.largest_error:.3g} times what is allowed" if seen.largest_error > 1 else seen.elsewhere


def _wrong_when_timed(findings: Findings) -> str:
    """What is wrong with a call of the size that is timed, or ''."""
    wrong = TIMED in findings.seen and _wrong(findings.seen[TIMED])
    return f"at {TIMED}: {wrong}" if wrong else ""


def _judge_roof(findings: Findings, whose: str, right: bool) -> CheckResult:
    check = findings.lab.roof
    if findings.form.timed is None:
        return unscored(check, NOT_MEASURED, NEEDS_GPU)
    stopped = "" if right else whose or _wrong_when_timed(findings) or "it is not right in all cases (see there)"
    times = _times(findings)
    if times is None and not stopped:
        return unscored(
            check, INCONCLUSIVE, "Some calls took less time than looking at their results does. Check again."
        )
    if times is None:
        return scored(check, 0, f"Not counted: {stopped}.")
    own, roof, simple = times
    share = decision.gain(roof, own, findings.form.noise)
    least = decision.gain(roof, simple, findings.form.noise).factor
    rate = findings.bytes / fmean(own) / 1e9
    evidence = {
        "share": share.factor,
        "lower": share.lower,
        "upper": share.upper,
        "plain_share": least,
        "at_least": check.at_least,
        "gb_per_s": rate,
        "us_a_call": [{name: 1e6 * seconds for name, seconds in each.items()} for each in findings.rounds],
        "looks_apart": findings.strange,
    }
    said = (
        f"It moves its bytes at {rate:,.0f} GB/s, {share.factor:.0%} of the roof measured here (90% interval "
        f"{share.lower:.0%} to {share.upper:.0%}). Separate operations reach {least:.0%}, and "
        f"{check.at_least:.0%} earns full points."
    )
    if findings.strange > SAME:
        stopped = (
            "results of the timed calls are not those of the function. Every call must calculate again, and "
            "return a new tensor like x"
        )
    elif share.lower > FASTEST:
        stopped = "this is faster than the memory can move the bytes. Something was not read, or not written"
    if stopped:
        return scored(check, 0, f"Not counted: {stopped}. {said}", evidence)
    low, high = (_part(end, least, check.at_least) for end in (share.lower, share.upper))
    if low < 1 and high - low > UNSETTLED:
        said = f"{said} The rounds differ too much for a verdict. {AGAIN}"
        return scored(check, low * check.points, said, evidence, INCONCLUSIVE)
    return scored(check, low * check.points, said, evidence)


def _times(findings: Findings) -> tuple[list[float], list[float], list[float]] | None:
    """Seconds of a call of the function, of moving the same bytes, and of the plain operations, by round; None if nothing was timed."""
    looked = [{name: seconds - each["nothing"] for name, seconds in each.items()} for each in _even(findings.rounds)]
    own, roof, simple = ([each[name] for each in looked] for name in (findings.lab.entry, "roof", "plain"))
    return (own, roof, simple) if looked and min(*own, *roof, *simple) > 0 else None


def _even(rounds: list[dict[str, float]]) -> list[dict[str, float]]:
    """The rounds without those in which something took much longer than usual, unless these are most."""
    if not rounds:
        return []
    usual = {name: median(each[name] for each in rounds) for name in rounds[0]}
    even = [each for each in rounds if all(each[name] <= HELD_UP * usual[name] for name in usual)]
    return even if 2 * len(even) > len(rounds) else rounds


def _part(share: float, least: float, full: float) -> float:
    """The points, 0 to 1: in the log of the share, from that of the plain operations to the one that earns all."""
    if least >= full:
        return float(share >= full)
    return min(1.0, max(0.0, math.log(share / least) / math.log(full / least)))
