"""All ranks of a job at once: who waits for whom, for how long, and why; one verdict.

A rank that comes early to a collective is in it until the last one comes, so most time in a NCCL kernel may be a wait. The wait is
blamed on all that came later, each stretch of it on those that were still missing then, in equal shares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from grader.trace import job_files, job_words, links
from grader.trace.intervals import Intervals
from grader.trace.rank import EXPOSED, WAITING, Rank
from grader.trace.rank_match import Matched, match
from grader.trace.rank_waits import WHY, Waits
from grader.trace.words import counted

NOTICED = 0.05  # of a step: shorter waits are not what a job is bound by
BESIDE = 0.5  # waits are the cause if they cost so much of what all ranks have in common
MOST_BLAME = 0.6  # of the waits, or so many times an equal share: who causes so many is the straggler
TIMES_EQUAL = 2.5
ALIKE = 0.5  # of the blame of the first one: who has so much is a straggler as well
WORTH_A_NAME = 0.02  # of a step, waits that are worth naming who causes them
MOST_OF_ONE = 0.6  # how sure one recorded step can be, or a job of which ranks are missing
COMMUNICATION = 0.15  # of a step, exposed
PASSED_ON = frozenset(("send", "recv", "send/recv"))
SLOWEST = 1.1  # times the next one's time: a stage that the others wait for
OF_STAGES = 0.75  # how sure a verdict on a pipeline is


@dataclass(frozen=True)
class Exchange:
    """One kind of collective: the same group, operation and size. Times in ns per call."""

    kind: str
    group: str
    members: int
    bytes: int  # -1: not recorded
    count: float  # per step
    wait_ns: float  # mean over ranks and calls, for the last rank
    ns: float  # from when the last rank came to the end, in the median
    algorithm: float | None  # bytes per second, see `links`
    bus: float | None
    link: links.Link | None  # where all is in one machine


@dataclass(frozen=True)
class Job:
    ranks: list[Rank]
    labels: list[int]  # of the steps that are compared
    numbered: bool  # by the profiler
    step_ns: float | None  # median over ranks; without the profiler where that was given
    parts: list[dict[str, float]]  # of each rank: SHARES -> ns per step
    wait_ns: np.ndarray  # of each rank, per step: in collectives, for ranks that had not come
    caused_ns: np.ndarray  # of each rank, per step: waits of all others that it is to blame for
    last: np.ndarray  # of each rank: share of the collectives to which it came last
    exchanges: list[Exchange]  # the longest first
    offset_ns: np.ndarray  # how far each rank's clock is ahead of the first one's; NaN where nothing tells it
    waits: list[Intervals]  # of each rank, since its `zero`, in the compared steps
    missing: list[int]  # ranks of the job that no file is of
    stages: bool  # they wait for what one passes on to the next, as in a pipeline: then who comes late need not be slow
    notes: list[str]
    # the verdict
    # positions in `ranks`, the worst first; empty where there is none
    stragglers: list[int] = field(default_factory=list)
    # and what their lateness costs the others in each collective, ns per step and rank
    waited_in: list[tuple[Exchange, float]] = field(default_factory=list)
    # WHY -> ns per step by which the late ranks take longer than the others
    why: dict[str, float] = field(default_factory=dict)
    # the same without the first recorded collective, which may be late as the recording began so
    why_later: dict[str, float] = field(default_factory=dict)
    # per step: waits for ranks that no file is of, as far as some calls were shorter than others
    absent_ns: float = 0.0
    slower: float | None = None  # stragglers' time for the same kernels on the same shapes, times that of the others
    cause: str | None = None  # "straggler", "imbalance", or one of CAUSES with "-bound"
    confidence: float = 0.0
    what_if_ns: float | None = None  # a step, if the stragglers came with the others
    text: str = ""
    what_to_try: tuple[str, ...] = ()
    lesson: str | None = None
    teaches: str | None = None


def job(ranks: Iterable[Rank]) -> Job:
    """One at a time is enough: what makes them may forget each trace. Raises job_files.NotOneJob."""
    found, notes = job_files.distinct(list(ranks))
    found, labels, said = job_files.same_steps(found)
    notes += said
    m = match(found, labels)
    job_files.check_fit(found, m, labels)
    n = max(len(np.unique(m.label)) if len(m) else len(labels), 1)
    waits = Waits(found, m, n)
    result = Job(
        ranks=found,
        labels=labels.tolist(),
        numbered=all(rank.numbered for rank in found),
        step_ns=job_files.middle([rank.step_ns for rank in found]),
        parts=waits.parts(),
        wait_ns=waits.total,
        caused_ns=waits.caused.sum(axis=0) / n,
        last=waits.last,
        exchanges=_exchanges(found, m, waits, n),
        offset_ns=m.offset,
        waits=waits.spans,
        missing=_missing(found, m),
        stages=_passed_on(m, waits),
        notes=notes + _named_by(found, m),
    )
    result = _judged(result, m, waits, n)
    return replace(result, **job_words.said(result))


def _missing(ranks: Sequence[Rank], m: Matched) -> list[int]:
    """By the size of the job, or that of its largest group, where traces tell none."""
    size = next((rank.world_size for rank in ranks if rank.world_size), None) or int(m.members.max(initial=0))
    if size > 1_000_000:
        return []
    return sorted(set(range(size)) - {rank.rank for rank in ranks if rank.rank is not None})


def _named_by(ranks: Sequence[Rank], m: Matched) -> list[str]:
    notes = []
    if m.partial:
        notes.append(
            counted(m.partial, "collective{s} {are} of steps in which a rank recorded fewer, and {are} left out")
        )
    if m.differ:
        notes.append(
            counted(m.differ, "collective{s} {do} not agree in kind or size between the ranks, and {are} left out")
        )
    if len(ranks) > 1 and not len(m) and not m.partial and any(len(rank.labels) for rank in ranks):
        notes.append("no collective was recorded on two ranks, so who waits for whom cannot be told")
    apart = float(np.nanmax(np.abs(m.offset))) if len(m) else 0.0
    if apart > 60e9:
        notes.append(
            f"the clocks of the ranks are {apart / 60e9:,.0f} minutes apart, or these are recordings of different runs"
        )
    elif apart > 1e6:
        notes.append(
            f"the clocks of the ranks are up to {job_words.milliseconds(apart)} apart; the ends of collectives put them right"
        )
    return notes


# ---------------------------------------------------------------- the collectives


def _exchanges(ranks: Sequence[Rank], m: Matched, waits: Waits, n: int) -> list[Exchange]:
    kinds: dict[tuple, list[int]] = {}
    for row, key in enumerate(zip(m.kind, m.group, m.bytes.tolist(), m.members.tolist(), strict=True)):
        kinds.setdefault(key, []).append(row)
    hosts = {rank.host for rank in ranks}
    device = ranks[0].device if len({rank.device for rank in ranks}) == 1 else None
    found = []
    for (kind, group, size, members), rows in kinds.items():
        there = m.index[rows] >= 0
        length = float(np.median(np.nanmedian(m.end[rows], axis=1) - waits.latest[rows]))
        factor = links.bus_factor(kind, members)
        known = size > 0 and length > 0
        rate = 1e9 * size / length if known else None
        one_host = (len(hosts) == 1 and None not in hosts) or members <= ranks[0].devices
        found.append(
            Exchange(
                kind=kind,
                group=group,
                members=members,
                bytes=size,
                count=len(rows) / n,
                wait_ns=float(waits.wait[rows][there].mean()),
                ns=max(length, 0.0),
                algorithm=rate,
                bus=rate * factor if rate and factor else None,
                link=links.link(device) if one_host else None,
            )
        )
    return sorted(found, key=lambda e: -(e.wait_ns + e.ns) * e.count)


# ---------------------------------------------------------------- the verdict


def _judged(found: Job, m: Matched, waits: Waits, n: int) -> Job:
    step = found.step_ns or 0.0
    stragglers, several = _slowest_stage(found) if found.stages else _to_blame(found.caused_ns)
    lost = job_words.waiting(replace(found, stragglers=stragglers)) if len(m) else 0.0
    if lost < WORTH_A_NAME * step:
        stragglers, several = [], False
    order = np.argsort(-found.caused_ns, kind="stable").tolist()
    late = stragglers or (order if several else [])
    others = [r for r in order if r not in stragglers and r in job_words.took_part(found)]
    common = max(
        (min(parts[name] for parts in found.parts) for name in ("data", "copies", "host", EXPOSED)), default=0.0
    )
    result = replace(
        found,
        stragglers=stragglers,
        why={} if not late else _longer(found) if found.stages else waits.why(late),
        why_later=waits.why(late, later=True) if late else {},
        waited_in=_waited_in(found, m, waits, stragglers, len(others), n),
        slower=_slower(found.ranks, stragglers, others),
    )
    for absent in (False, True):
        lost = waits.unseen if absent else lost
        if not step or lost < max(NOTICED * step, BESIDE * common) or not (late or absent):
            continue
        if absent:
            return replace(
                result, stragglers=[], absent_ns=lost, cause="straggler", confidence=0.6, what_if_ns=step - lost
            )
        share = float(found.caused_ns[stragglers].sum() / found.caused_ns.sum()) if stragglers else 0.5
        sure = OF_STAGES if found.stages else 0.5 + 0.5 * share * _in_steps(m, waits, stragglers)
        sure *= min(rank.sure for rank in found.ranks)
        paces = [_pace(found.parts[r]) for r in others]
        if found.stages and stragglers:  # the others still wait for each other
            paces = [step - max(result.why.values())]
        return replace(
            result,
            cause="straggler" if stragglers else "imbalance",
            confidence=round(min(sure, 0.99 if n > 1 else MOST_OF_ONE), 2),
            what_if_ns=min(step, max(paces) if stragglers else float(np.mean(paces))),
        )
    return _of_all(result, common)


def _to_blame(blame: np.ndarray) -> tuple[list[int], bool]:
    """The ranks that cause most waits, the worst first; else whether several cause them."""
    order = np.argsort(-blame, kind="stable").tolist()
    top = [r for r in order if blame[r] >= ALIKE * blame[order[0]] > 0] if len(order) > 1 else []
    least = min(MOST_BLAME, TIMES_EQUAL * len(top) / max(len(order), 1))
    several = len(top) > max(1, len(order) // 2) or blame[top].sum() < least * blame.sum()
    return ([], bool(top)) if several else (top, False)


def _passed_on(m: Matched, waits: Waits) -> bool:
    """Whether most waits are for what one rank sends to another."""
    mine = np.array([kind in PASSED_ON for kind in m.kind], bool)
    return bool(waits.wait[mine].sum() > BESIDE * waits.wait.sum())


def _slowest_stage(found: Job) -> tuple[list[int], bool]:
    """As `_to_blame`, by how long each computes: waits are passed on, so the last stage causes none and waits longest."""
    times = [parts["computing"] for parts in found.parts]
    first, second, *_ = np.argsort(times)[::-1].tolist()
    return ([first], False) if times[first] >= SLOWEST * times[second] else ([], True)


def _longer(found: Job) -> dict[str, float]:
    """By how much the slowest stage computes longer than the next one."""
    times = sorted(parts["computing"] for parts in found.parts)
    return dict.fromkeys(WHY, 0.0) | {"computing": times[-1] - times[-2]}


def _pace(parts: dict[str, float]) -> float:
    """How long a step of a rank would be if nobody let it wait, ns."""
    return sum(parts.values()) - parts[WAITING]


def _of_all(found: Job, common: float) -> Job:
    """What holds all ranks: communication, or what holds the one that takes longest."""
    step = found.step_ns or 0.0
    exposed = float(np.mean([parts[EXPOSED] for parts in found.parts])) if found.parts else 0.0
    if step and exposed >= COMMUNICATION * step and exposed >= common:
        others = max(min(parts[name] for parts in found.parts) for name in ("data", "copies", "host"))
        clear = (exposed - others) / (exposed + others) * min(1.0, exposed / (COMMUNICATION * step) - 1)
        sure = round(0.5 + 0.4 * max(0.0, clear), 2)
        sure = min(sure, MOST_OF_ONE) if found.missing else sure  # they may wait for one that no file is of
        return replace(found, cause="communication-bound", confidence=sure, what_if_ns=step - exposed)
    slowest = max(zip(found.parts, found.ranks, strict=True), key=lambda pair: _pace(pair[0]))[1]
    d = slowest.diagnosis
    if d.cause is None:
        return found
    same = sum(rank.diagnosis.cause == d.cause for rank in found.ranks) / len(found.ranks)
    what_if = None if d.what_if_step_ms is None else 1e6 * d.what_if_step_ms
    return replace(found, cause=d.cause, confidence=round(d.confidence * (0.5 + 0.5 * same), 2), what_if_ns=what_if)


def _in_steps(m: Matched, waits: Waits, stragglers: Sequence[int]) -> float:
    """Share of the steps in which one of these is most to blame."""
    if not stragglers:
        return 1.0
    steps, of = np.unique(m.label, return_inverse=True)
    blame = np.zeros((len(steps), waits.caused.shape[1]))
    np.add.at(blame, of, waits.caused)
    return float(np.isin(blame.argmax(axis=1), stragglers).mean())


def _waited_in(
    found: Job, m: Matched, waits: Waits, stragglers: Sequence[int], others: int, n: int
) -> list[tuple[Exchange, float]]:
    """The collectives in which the others wait for the stragglers, the longest first; ns per step and rank."""
    if not stragglers:
        return []
    costs = []
    for exchange in found.exchanges:
        key = (exchange.kind, exchange.group, exchange.bytes)
        rows = [i for i, one in enumerate(zip(m.kind, m.group, m.bytes.tolist(), strict=True)) if one == key]
        by_them = waits.caused[rows][:, list(stragglers)].sum() / n / max(others, 1)
        costs.append((exchange, float(by_them)))
    return sorted((cost for cost in costs if cost[1] > 0), key=lambda cost: -cost[1])


def _slower(ranks: Sequence[Rank], stragglers: Sequence[int], others: Sequence[int]) -> float | None:
    """None unless the stragglers ran as many kernels as the others, on the same shapes as far as these were recorded."""
    if not stragglers or not others:
        return None
    mine, theirs = ([ranks[r] for r in some] for some in (stragglers, others))
    usual = float(np.median([rank.kernels for rank in theirs]))
    same = all(abs(rank.kernels - usual) <= 0.02 * usual for rank in mine) and usual > 0
    shapes = {rank.shapes for rank in [*mine, *theirs]}
    if not same or len(shapes) > 1 or "" in shapes:
        return None
    late, early = (float(np.median([rank.kernel_ns for rank in some])) for some in (mine, theirs))
    return late / early if early else None
