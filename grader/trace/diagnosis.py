"""Which cause holds a training step back, on what evidence, and what a fix of it could win at most."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from grader.trace import catalogue, details
from grader.trace.breakdown import Breakdown, breakdown
from grader.trace.catalogue import PARTS, STEP_PARTS, Metrics
from grader.trace.causes import CAUSES, ON_CPU, STALLS, WORK, ms
from grader.trace.columns import Trace
from grader.trace.complete import NO_GPU
from grader.trace.events import CPU_OP
from grader.trace.loss import launches_of
from grader.trace.operations import Operation
from grader.trace.replay import saved
from grader.trace.steps import Steps
from grader.trace.words import plain, plain_number

SIGNIFICANT = 0.15  # of the step time: a smaller stall is not what the step is bound by

# What a matrix product takes with the next cheaper units or inputs: float32 on tensor cores (TF32) against float32 on the
# CUDA cores, and 16-bit inputs against TF32. From the rates of an H200 (grader.devices): 51, 418 and 799 TFLOP/s.
TO_TENSOR_CORES = 51 / 418
TO_HALF = 418 / 799
LONG_PAUSE_NS = 5_000  # between two kernels that were queued; 0 to 3.5 us in 70 traces of all vendors
CLOSE = 0.5  # of what the cause costs: what costs so much is told as well
# How sure a verdict can be that rests on names and places, or on a cause that comes with another one.
EITHER = 0.55
MOST_SAID = (1, 2)  # sentences about what stands behind a cause, and behind the host's own doing; the evidence has all
MOST_PROOFS = 20  # events that are listed for one fact
MOST_OPERATORS, OPERATOR = 4, re.compile(r"[\w.]{1,30}::[\w.]{1,60}")
INCOMPLETE = "No diagnosis: the trace is incomplete."
BY_LAUNCHES = ("launch", "sync", "host", "queue")  # nobody can tell them apart without the calls that launch
NO_LAUNCHES = (
    "No diagnosis: the GPU idles {share:.0%} of the step, and no launch of its work is recorded, so the trace does not say what "
    "it waits for. {way}."
)
WITHOUT_CPU = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
WITHOUT_CALLS = "The CPU's operators are there, but not the calls that launch: record those as well, as with a higher level of the profiler"
FEW = 12  # GPU events: so few tell little, and are seldom all that a step has
LONGER = 1.2  # times: clearly longer
MOSTLY = 0.8  # share of the GPU's work whose launches must be recorded for a verdict that rests on them


@dataclass(frozen=True)
class Evidence:
    """One fact that speaks for the diagnosis."""

    text: str  # a sentence with its numbers
    metric: str  # the metric, or the part of the step time, that it rests on
    value: float | None
    events: list[int]  # indices of the trace events that prove it, the longest first


@dataclass(frozen=True)
class Diagnosis:
    cause: str | None = None  # "input-bound", ...: one of CAUSES with "-bound"; None when the trace cannot tell
    confidence: float = 0.0  # 0 to 1
    evidence: tuple[Evidence, ...] = ()
    runner_up: str | None = None
    what_if_step_ms: float | None = None  # the step time if the cause vanished: the most that a fix of it can win
    what_if: dict[str, float] | None = None  # the same in ms for every cause that costs anything
    what_to_try: tuple[str, ...] = ()
    lesson: str | None = None  # that explains it, below notebooks/
    teaches: str | None = None  # the lab that teaches it
    text: str = ""  # the cause and why, in a sentence or two


@dataclass
class _Case:
    """What is known of one trace, and what is said of it beside the numbers."""

    trace: Trace
    m: Metrics
    b: Breakdown
    step: float  # ns
    steps: Steps | None
    cause: str  # before what waits with it is told apart, see `with_waits`
    slow: details.Slow | None
    tiny: Operation | None
    between: float  # ns per step in pauses between queued kernels, where that is much
    told: details.Told = field(default_factory=lambda: details.Told([]))
    rare: details.Rare | None = None
    # ns per step without the GPU's work of the cause alone, where the host may work beside it
    saves: float | None = None
    held: float = 0.0  # ns per step of copies, see `details.held_copies`

    @property
    def with_waits(self) -> bool:
        """Whether it cannot be told apart from sync-bound, and is called so: in five labelled recordings of five the fix removed waits."""
        return self.cause == "launch" and details.never_ahead(self.m) and not self.told.starting

    @property
    def slow_work(self) -> details.Slow | None:
        """The slow operations, where they are what the step is bound by."""
        return self.slow if self.slow and self.slow.cause == self.cause else None

    def tell(self) -> None:
        """Look into what stands behind the cause. Without steps nothing is."""
        cause = self.cause
        if self.steps is None:
            return
        slowed = (self.m.step_ns_traced or 0.0) > LONGER * self.step  # the recorded host is then not the job's
        if cause in ("transfer", "communication") and not slowed:
            alone = self.steps.kind == PARTS.index(CAUSES[cause].parts[0])
            self.saves = saved(self.trace, self.steps, self.steps.work[alone])
        if cause == "transfer":
            self.held = details.held_copies(self.trace, self.steps)
        if cause in ("host", "input"):
            about = details.of_host if cause == "host" else details.of_input
            self.told = about(self.trace, self.steps, self.b)
        elif cause == "launch":
            self.told = details.of_launches(self.trace, self.steps, self.m, self.b)
        elif cause == "queue":
            self.told = details.of_queue(self.trace, self.steps, self.b)
        elif cause == "sync":
            self.told = details.of_waits(self.trace, self.steps)
        elif self.slow_work:
            self.told = details.Told([details.of_slow(self.slow_work)])


def diagnose(
    trace: Trace, m: Metrics, b: Breakdown, steps: Steps | None = None, operations: Sequence[Operation] = ()
) -> Diagnosis:
    """Name the cause. An incomplete trace gets none: no answer is better than a guess. But one that lacks nothing except a GPU may
    be of a run on the CPU. steps, operations: of the same trace; without them less is said of the cause."""
    if not m.complete and not (m.reasons == [NO_GPU] and not len(launches_of(trace))):
        return Diagnosis(text=f"{INCOMPLETE} {'; '.join(m.reasons)}.")
    if not b.parts or not b.step_ns:
        return _without_gpu(trace, m, steps)
    step = b.step_ns
    costs = {name: sum(b.parts[part] for part in cause.parts) for name, cause in CAUSES.items()}
    between = _between(b)
    costs["launch"] += between
    cause = _first(costs, step)
    if cause == "sync" and b.alone >= LONGER * costs["sync"]:  # without the wait the host would still hold the step
        cause = "host"
    if cause in BY_LAUNCHES and steps is not None and not (steps.launch >= 0).any():
        way = WITHOUT_CALLS if (trace.category == CPU_OP).any() else WITHOUT_CPU
        return Diagnosis(text=NO_LAUNCHES.format(share=sum(costs[name] for name in BY_LAUNCHES) / step, way=way))
    costs["host"] = max(costs["host"], b.alone)
    runner_up = _next(cause, costs, m, step)
    slow, tiny = details.slow(operations, step), details.tiny_operation(operations, m)
    case = _Case(trace, m, b, step, steps, cause, slow, tiny, between)
    case.tell()
    case.rare = details.rare(trace, steps, b, CAUSES[cause].parts) if steps is not None and m.step_ns is None else None
    shares = {name: ns / step for name, ns in costs.items()}
    what_if = {name: ns / 1e6 for name, ns in what_ifs(case).items() if ns < 0.995 * step or name == cause}
    named = cause
    if case.with_waits:
        named, runner_up = "sync", "launch"
        what_if["sync"] = max(0.0, what_if["launch"] - b.parts["idle_sync"] / 1e6)  # both go together
    return Diagnosis(
        cause=f"{named}-bound",
        confidence=round(m.steps_sure * _confidence(shares, case), 2),
        evidence=tuple(_evidence(case)),
        runner_up=f"{runner_up}-bound",
        what_if_step_ms=what_if[named],
        what_if=what_if,
        what_to_try=_advice(runner_up, case),
        lesson=CAUSES[named].lesson,
        teaches=CAUSES[named].lab,
        text=_text(runner_up, shares, case, what_if[named]),
    )


def _between(b: Breakdown) -> float:
    """How long the GPU paused between queued kernels, ns per step, where that is much and no pause of an ordinary length."""
    mine = b.gaps.cause == PARTS.index("idle_between")
    if b.parts["idle_between"] < SIGNIFICANT * (b.step_ns or 0.0):
        return 0.0
    usual = float(np.median((b.gaps.end - b.gaps.start)[mine]))
    return b.parts["idle_between"] if usual >= LONG_PAUSE_NS else 0.0


def _first(costs: dict[str, float], step: float) -> str:
    """costs: ns per step, by cause."""
    stall = max(STALLS, key=costs.__getitem__)
    return stall if costs[stall] >= SIGNIFICANT * step else max(WORK, key=costs.__getitem__)


def _next(cause: str, costs: dict[str, float], m: Metrics, step: float) -> str:
    """What comes next to the cause."""
    stalls, work = (sorted(kind, key=costs.__getitem__, reverse=True) for kind in (STALLS, WORK))
    if cause in WORK:
        return work[work[0] == cause]
    if cause == "launch" and details.never_ahead(m):
        return "sync"
    runner_up = stalls[stalls[0] == cause]
    # none of the other stalls matters: what the GPU does, does
    return work[0] if costs[runner_up] < 0.05 * step else runner_up


def what_ifs(case: _Case) -> dict[str, float]:
    """The step time, ns, if one cause vanished (memory: kernels fused; compute: on cheaper units or inputs)."""
    m, b, parts, step = case.m, case.b, case.b.parts, case.step
    found = {name: step - sum(parts[part] for part in cause.parts) for name, cause in STALLS.items()}
    found["host"] = min(found["host"], step - b.alone)
    found["launch"] -= case.between
    if case.saves is not None and (m.step_ns is None or details.hidden(case.saves, step - found[case.cause])):
        found[case.cause] = max(found[case.cause], step - case.saves)
    memory = parts["memory"]
    shares = m.tensor_core_share or {"no": 0.0, "unknown": 0.0}
    known = shares["no"] / (shares["no"] + shares["unknown"] or 1.0)  # nobody knows of the others what they could do
    wide = 0.0 if m.half_share is None else 1 - m.half_share
    faster = parts["matmul"] * known * (1 - TO_TENSOR_CORES)
    if not shares["no"]:
        faster = parts["tensor_core"] * wide * (1 - TO_HALF)
    gains = {"memory": max(0.0, memory - (b.fused_ns or memory)), "compute": faster}
    if case.slow:
        kind = case.slow.cause
        busy = sum(parts[part] for part in WORK[kind].parts)
        gains[kind] = max(gains[kind], min(case.slow.gain, busy))
    if case.tiny:  # a loop within a library: with its launches its kernels go as well
        found["launch"] -= min(case.tiny.gpu_ns, found["launch"])
    return found | {name: step - gain for name, gain in gains.items()}


def _confidence(shares: dict[str, float], case: _Case) -> float:
    """How clearly the cause stands out from the next of its kind, and from the threshold; less where the profiler itself may be what
    is seen, where most of what the cause costs is not in the recording, and where it is inferred. shares: of the step, by cause."""
    cause = case.cause
    others = STALLS if cause in STALLS else WORK
    rival = max([shares[other] for other in others if other != cause], default=0.0)
    clear = max(0.0, shares[cause] - rival) / max(shares[cause] + rival, 1e-9)
    if cause in STALLS:
        clear *= min(1.0, shares[cause] / SIGNIFICANT - 1)
    found = 0.5 + 0.5 * clear
    if cause in WORK:  # a stall just below the threshold is a rival as well
        found = min(found, 1 - 0.5 * max(shares[stall] for stall in STALLS) / SIGNIFICANT)
    if case.m.step_ns is None and cause in ("launch", "sync"):
        found *= 0.7
    if _unseen(cause, case.b) > 0.5 * shares[cause] * case.step:
        found *= 0.7
    few = (
        cause in STALLS
        and case.steps is not None
        and (
            len(case.steps.gpu) < FEW
            or (cause in BY_LAUNCHES and (case.steps.launch >= 0).sum() < MOSTLY * len(case.steps.gpu))
        )
    )
    pauses = cause == "launch" and case.between > 0.5 * shares[cause] * case.step
    strange = cause == "memory" and _strange(case) > 0.5 * shares[cause]
    if few or pauses or strange or case.rare or case.told.inferred or _with_another(shares[cause] * case.step, case):
        found = min(found, EITHER)
    return round(min(0.99, max(0.05, found)), 2)


def _strange(case: _Case) -> float:
    """The share of the step in kernels whose names do not tell what they do."""
    return (case.m.unknown_kernel_share or 0.0) * (case.m.gpu_busy_ns or 0.0) / case.step


def _with_another(cost: float, case: _Case) -> bool:
    """Whether another cause costs the same time, so that removing one of them alone may win little. cost: ns per step."""
    if details.hidden(case.saves, cost) or case.held >= details.MUCH * cost:
        return True
    if case.cause in ("queue", "communication"):
        return details.covered_by_host(case.b, cost)
    if case.cause in ("input", "host"):
        return details.launches_as_long(case.b, cost)
    if case.cause != "launch":
        return False
    pauses = details.pausing(case.b, case.steps) if case.steps else 0.0
    return details.never_ahead(case.m) or pauses >= details.MUCH * cost


def _unseen(cause: str, b: Breakdown) -> float:
    """How much of what a cause costs, ns, is not in the recording."""
    return sum(b.unseen.get(part, 0.0) for part in STALLS[cause].parts) if cause in STALLS else 0.0


def _without_gpu(trace: Trace, m: Metrics, steps: Steps | None) -> Diagnosis:
    """A run on the CPU: the one cause that can be told is waiting for data."""
    more = _host_ops(m) + "".join(f" {each}" for each in (details.on_cpu(trace, steps) if steps else ()))
    ran, only = "nothing ran on a GPU", details.of_a_gpu(trace)
    if only:
        ran = f"the GPU's work was not recorded, though {only} ran"
        more += f" {WITHOUT_CPU}."
    wait, traced = m.data_wait, m.step_ns_traced
    step = m.step_ns or traced
    if wait is not None and step and m.wait_ns is not None:
        wait = min(1.0, m.wait_ns / step)
    elif wait and step and traced is not None and traced < step:  # what is missing is a wait for data, see `breakdown`
        wait = 1 - (1 - wait) * traced / step
    if wait is None or step is None or wait < 0.5:
        known = "the trace does not show how long a step waits for data"
        if wait is not None:
            known = f"waiting for data is {int(100 * wait)}% of the step, less than half"
        return Diagnosis(text=f"No diagnosis: {ran}, and {known}.{more}")
    what_if = step * (1 - wait) / 1e6
    waits = _longest(trace, m, "data_wait")
    return Diagnosis(
        cause="input-bound",
        confidence=round(wait, 2),
        evidence=(Evidence(f"The host waited for data {wait:.0%} of the step.", "data_wait", wait, waits),),
        what_if_step_ms=what_if,
        what_if={"input": what_if},
        what_to_try=ON_CPU,
        lesson=CAUSES["input"].lesson,
        teaches=CAUSES["input"].lab,
        text=f"The training process waited for data {wait:.0%} of the step, and {ran}.{more}",
    )


def _host_ops(m: Metrics) -> str:
    """The operators that took most of a step on the CPU. Names in a trace are untrusted: only those of operators are told."""
    if not m.host_ops or not m.step_ns_traced:
        return ""
    shares = {name: time / m.step_ns_traced for name, time in m.host_ops.items() if OPERATOR.fullmatch(name)}
    most = [f"{name} {share:.0%}" for name, share in list(shares.items())[:MOST_OPERATORS] if share >= 0.05]
    return f" Of a step under the profiler, these operators took most: {', '.join(most)}." if most else ""


def _longest(trace: Trace, m: Metrics, metric: str) -> list[int]:
    events = m.events.get(metric, np.empty(0, int))
    if len(events) > MOST_PROOFS:
        shortest = np.partition(trace.duration[events], -MOST_PROOFS)[-MOST_PROOFS]
        events = events[trace.duration[events] >= shortest]
    return events[np.argsort(-trace.duration[events], kind="stable")[:MOST_PROOFS]].tolist()


def _gap_events(b: Breakdown, part: str) -> list[int]:
    """The GPU work before which it idled longest for this cause."""
    wanted = np.flatnonzero((b.gaps.cause == PARTS.index(part)) & (b.gaps.after >= 0))
    wanted = wanted[np.argsort(b.gaps.start[wanted] - b.gaps.end[wanted], kind="stable")[:MOST_PROOFS]]
    return b.gaps.after[wanted].tolist()


def _evidence(case: _Case) -> list[Evidence]:
    found, cause, step, m, b, trace = [], case.cause, case.step, case.m, case.b, case.trace
    for part in CAUSES[cause].parts:
        if (ns := b.parts[part]) >= 0.01 * step:
            text = f"{ms(ns)} of {ms(step)} ({ns / step:.0%}): {STEP_PARTS[part].words}."
            found.append(Evidence(text, part, ns / step, _events_of_part(part, trace, m, b)))
    found += [Evidence(text, CAUSES[cause].parts[0], None, []) for text in case.told.sentences]
    if (unseen := _unseen(cause, b)) >= 0.05 * step:
        text = f"Of these {ms(unseen)} are not in the recording. Its steps took {ms(step - unseen)} each"
        text += ", because batches were ready that the loop usually waits for." if cause == "input" else "."
        found.append(Evidence(text, "step_ns_traced", m.step_ns_traced, []))
    if cause == "memory" and b.fused_ns is not None:
        text = f"If each run of such kernels were one, they would take {ms(b.fused_ns)}."
        found.append(Evidence(text, "fused_ns", b.fused_ns, []))
    both = ("sync",) if case.with_waits else ()
    for name, words in {k: v for each in (cause, *both) for k, v in CAUSES[each].metrics.items()}.items():
        value = catalogue.value(m, name)
        if value is not None and (text := words(value, m)):
            found.append(Evidence(text, name, value, _longest(trace, m, name)))
    if "sync" in (cause, *both):
        for line, count in list((m.sync_lines or {}).items())[:3]:
            found.append(Evidence(f"{plain_number(count)} of these times at {line}.", "sync_lines", count, []))
    return found


def _events_of_part(part: str, trace: Trace, m: Metrics, b: Breakdown) -> list[int]:
    if part.startswith("idle"):
        return _gap_events(b, part)
    return _longest(trace, m, {"copies": "copies", "communication": "comm_exposed_ns"}.get(part, "kernels"))


def _text(runner_up: str, shares: dict[str, float], case: _Case, what_if: float) -> str:
    """shares: of the step, by cause. what_if: ms."""
    m, cause, step = case.m, case.cause, case.step / 1e6
    between = case.between if cause == "launch" else 0.0
    share = (sum(case.b.parts[part] for part in CAUSES[cause].parts) + between) / case.step  # as the picture shows it
    share = max(share, shares["host"]) if cause == "host" else share  # what it does after a wait is drawn as the wait's
    said = [f"{cause}-bound: {CAUSES[cause].reason} ({share:.0%} of the step)."]
    if case.with_waits:
        said = [
            f"sync-bound: the host waits for the GPU {plain_number(m.syncs or 0)} times per step, so it never gets ahead. Remove these waits first.",
            f"It is launch-bound as well: {CAUSES[cause].reason} ({share:.0%} of the step).",
        ]
    text = " ".join(said + case.told.sentences[: MOST_SAID[cause == "host"]])
    if between:
        text += f" {ms(between)} of it are pauses between kernels that were queued: the GPU's own, or its clock and the host's are apart."
    if cause == "memory" and (strange := _strange(case)) > 0.5 * share:
        text += f" {strange:.0%} of the step lies in kernels whose names do not tell what they do, so they may as well compute."
    if case.rare:
        text += f" {case.rare.text}"
        usual = breakdown(case.trace, case.rare.usual)
        if usual.step_ns:
            costs = {name: sum(usual.parts[part] for part in one.parts) for name, one in CAUSES.items()}
            text += f" The others are {_first(costs, usual.step_ns)}-bound."
    if not case.with_waits and runner_up in STALLS and shares[runner_up] >= CLOSE * share:
        both = "Close behind, it is" if shares[runner_up] <= share else "As much as that, it is"
        text += f" {both} {runner_up}-bound ({shares[runner_up]:.0%}): {CAUSES[runner_up].reason}."
        if runner_up == "host" and case.steps is not None:
            text += "".join(
                f" {sentence}" for sentence in details.of_host(case.trace, case.steps, case.b).sentences[:1]
            )
    text += details.beside(case.b, cause, shares[cause] * case.step, case.saves, case.held)
    if what_if < 0.97 * step:
        slow = cause == "compute" and (m.tensor_core_share or {"no": 0.0})["no"]
        fix = "With these on tensor cores" if slow else CAUSES[cause].fix
        if case.slow_work:
            fix = f"With {plain(case.slow_work.first.name, 60)} at half of the rate that the device reaches"
        text += f" {fix} a step would take {plain_number(what_if)} instead of {plain_number(step)} ms."
    elif cause in WORK:
        text += " The GPU is kept busy, and no cause stands out that you could simply remove."
    return text


def _advice(runner_up: str, case: _Case) -> tuple[str, ...]:
    """What to try, the most likely first."""
    cause, ways = case.cause, list(CAUSES[case.cause].advice)
    if cause == "launch" and case.m.graph_launches:
        ways[1] = (
            "A CUDA graph is replayed already. Put what is launched beside it into the graph as well, or prepare it on the CPU while the "
            "GPU works on the step before."
        )
    if cause == "launch" and case.tiny:
        name = plain(case.tiny.name, 80)
        ways.insert(0, f"{name} is a loop of tiny kernels. Compute the same with a few operators on the whole batch.")
    if case.with_waits:
        ways = [*CAUSES["sync"].advice, *ways[:2]]
    elif runner_up in STALLS and cause in STALLS and case.b.parts and case.told.inferred:
        ways += CAUSES[runner_up].advice[:1]
    if case.slow_work:
        ways = details.for_slow(case.slow_work) + ways
    return (*case.told.ways, *ways)
