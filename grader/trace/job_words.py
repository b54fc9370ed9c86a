"""What is said of a job of several ranks: its verdict in sentences, and what to try."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.safe_text import size_text
from grader.trace.causes import ALL_RANKS, CAUSES
from grader.trace.collectives import OTHER_KIND
from grader.trace.rank import EXPOSED, WAITING
from grader.trace.words import milliseconds, plain

if TYPE_CHECKING:
    from grader.trace.job import Job

RANK_IN_NAME = re.compile(r"(?:rank|worker|gpu|device|node|proc)[-_.]?(\d{1,6})", re.IGNORECASE)
DIGITS = re.compile(r"\d{1,6}")
MOST_IN_NAME = 1000  # a larger number that is not called a rank is of something else
MOST_LISTED = 6
SHARED = 0.75  # of the waits: a straggler who causes less is not alone
SLOWER = 1.05  # times as long for the same kernels: worth a sentence
SHARE_WORDS = {
    "computing": "computing",
    "copies": "copies",
    "data": "its data",
    "host": "its host",
    WAITING: "waiting for other ranks",
    EXPOSED: "communication with nothing beside it",
    "other": "the rest",
}
LATE = {  # what late ranks take longer for: in words, and what helps
    "computing": "it computes longer",
    "copies": "it copies longer between CPU and GPU",
    "data": "it waits for its data",
    "host": "its host launches work late",
    "other": "its queued work waits on the GPU's side",
    "start": "it began the recorded step later",
}
FIX = {
    "computing": (
        "Give all ranks as much to do: equal batches, lengths and shards.",
        "Is its GPU slower? Compare `nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE` with another's, and see who else uses it.",
    ),
    "copies": (
        "Look at its copies: pageable memory, a PCIe slot with fewer lanes, a process on the other socket (numactl).",
    ),
    "data": (
        "Look at its data: a slower drive or network, larger or longer samples, fewer workers, fewer cores for them.",
        "Shard the data evenly, and give each rank its own workers.",
    ),
    "host": (
        "Look at its host: other processes, fewer or slower cores, a process on the wrong socket (numactl), garbage collection.",
        "Find what this rank alone does: logging, metrics, checkpoints. Often that is rank 0.",
    ),
    "other": (
        "Look at what its queued work waits for: another stream, an event, or another process that uses its GPU. Diagnose its trace alone.",
    ),
    "start": ("Record several steps: what held this rank lies before the recorded one.",),
}


FOR_STAGES = [
    "Split the batch into more micro-batches, or interleave the stages (virtual pipeline), so that they stand still for less of a step.",
    "Divide the layers so that all stages take as long.",
]


def listed(names: Sequence[object]) -> str:
    """ "a, b and c", of many the first few."""
    shown = [plain(name, 80) for name in names[:MOST_LISTED]]
    if len(names) > MOST_LISTED:
        return f"{', '.join(shown)} and {len(names) - MOST_LISTED} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def steps(labels: np.ndarray) -> str:
    """ "step 7", "steps 7 to 9", "no whole step"."""
    if not len(labels):
        return "no whole step"
    low, high = int(labels.min()), int(labels.max())
    return f"step {low}" if low == high else f"steps {low} to {high}"


def numbers_in(files: Sequence[str], size: int = MOST_IN_NAME) -> list[int]:
    """A rank for each file by its name: "rank3", "worker3", the one number that differs and is below the size, else their order."""
    for pattern in (RANK_IN_NAME, DIGITS):
        found = [pattern.findall(name) for name in files]
        for place in range(min(map(len, found), default=0)):
            numbers = [int(each[place]) for each in found]
            if len(set(numbers)) == len(numbers) and (pattern is RANK_IN_NAME or max(numbers) < size):
                return numbers
    order = sorted(range(len(files)), key=lambda i: files[i])
    return [order.index(i) for i in range(len(files))]


def said(job: Job) -> dict[str, Any]:
    """The fields of a Job that are words."""
    cause = CAUSES.get((job.cause or "").removesuffix("-bound"))
    if job.cause == "straggler":
        text, ways = _absent(job) if job.absent_ns else _straggler(job), _advice(job)
    elif job.cause == "imbalance":
        text, ways = _turns(job), FOR_STAGES if job.stages else _advice(job)
    else:
        text, ways = _usual(job), [way for way in (cause.advice if cause else ()) if way != ALL_RANKS]
    if job.missing and not job.absent_ns:
        who = _numbered(job.missing)
        if len(job.missing) > MOST_LISTED:
            who = f"{len(job.missing)} of the job's {len(job.missing) + len(job.ranks)} ranks"
        text += f" No file is of {who}, so what the others wait for may be there."
    lesson = CAUSES["communication"] if job.cause in ("straggler", "imbalance") else cause
    return {
        "text": text,
        "what_to_try": tuple(ways),
        "lesson": lesson.lesson if lesson else None,
        "teaches": lesson.lab if lesson else None,
    }


def main_reason(job: Job) -> str | None:
    """What the late ranks take longer for most."""
    return max(job.why, key=lambda name: job.why[name]) if job.why and max(job.why.values()) > 0 else None


def names(job: Job, positions: Sequence[int]) -> str:
    """ "rank 3", "ranks 3 and 5"."""
    return _numbered([job.ranks[r].rank for r in positions])


def _numbered(ranks: Sequence[int | None]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def took_part(job: Job) -> list[int]:
    """The ranks (positions) of which collectives were recorded, if there are any."""
    found = [r for r, rank in enumerate(job.ranks) if len(rank.calls)]
    return found or [*range(len(job.ranks))]


def waiting(job: Job) -> float:
    """What the ranks that are no stragglers wait, ns per step, mean."""
    others = [job.parts[r][WAITING] for r in took_part(job) if r not in job.stragglers]
    return float(np.mean(others)) if others else 0.0


def _straggler(job: Job) -> str:
    step = job.step_ns or 0.0
    who, lost = names(job, job.stragglers), waiting(job)
    text = f"straggler: {who} {'come' if len(job.stragglers) > 1 else 'comes'} late."
    text += f" The others wait {milliseconds(lost)} of a step of {milliseconds(step)} ({lost / step:.0%})"
    if job.waited_in:
        text += f", most of it in {exchange(job.waited_in[0][0])}"
    blame = float(job.caused_ns[job.stragglers].sum() / job.caused_ns.sum())
    shared = (
        f" {blame:.0%} of that is for {'them' if len(job.stragglers) > 1 else 'it'} alone." if blame < SHARED else ""
    )
    text += f".{shared} {_why(job)}"
    if job.what_if_ns is not None and job.what_if_ns < 0.97 * step and main_reason(job) != "start":
        text += f" On time, a step would take {milliseconds(job.what_if_ns)}."
    return text


def _absent(job: Job) -> str:
    step = job.step_ns or 0.0
    text = f"straggler: no file is of it. All {len(job.ranks)} ranks wait {milliseconds(job.absent_ns)} of a step of {milliseconds(step)}"
    return f"{text} ({job.absent_ns / step:.0%}) for one that comes later. Look at {_numbered(job.missing)}."


def _why(job: Job) -> str:
    reason = main_reason(job)
    if reason is None:
        return "Why is not recorded."
    text = _sentence(job, job.why, reason)
    if reason == "computing" and job.slower and job.slower > SLOWER:
        text += f" The same kernels on the same shapes take {job.slower:.2f} times as long there, so its GPU is slower, or somebody else uses it."
    if reason == "start":
        text += " What held it before is not in the recording."
        then = max(job.why_later, key=lambda name: job.why_later[name])
        if job.why_later[then] > 0:
            text += f" After the first collective it is late again. {_sentence(job, job.why_later, then)}"
    machine = job.ranks[job.stragglers[0]].host if job.stragglers else None
    if machine and len({rank.host for rank in job.ranks}) > 1:
        text += f" It runs on {plain(machine, 60)}."
    return text


def _sentence(job: Job, why: dict[str, float], reason: str) -> str:
    first = _late(job, reason)
    text = f"{first[0].upper()}{first[1:]}, {milliseconds(why[reason])} more in a step"
    if reason == "start":
        text = f"It began the recorded step {milliseconds(why[reason])} later than the early ranks"
    ns, second = sorted((ns, name) for name, ns in why.items() if name != reason)[-1]
    if ns >= 0.5 * why[reason]:
        text += f", and {_late(job, second)}, {milliseconds(ns)} more"
    return f"{text}."


def _late(job: Job, reason: str) -> str:
    return "its host does something that is no operator" if reason == "host" and on_cpu(job) else LATE[reason]


def on_cpu(job: Job) -> bool:
    return not any(rank.device for rank in job.ranks)


def _turns(job: Job) -> str:
    step, lost = job.step_ns or 0.0, waiting(job)
    text = f"imbalance: the ranks wait for each other {milliseconds(lost)} of a step of {milliseconds(step)} ({lost / step:.0%})"
    text += ", as the stages of a pipeline do" if job.stages else ", and another one is late each time"
    if job.exchanges:
        text += f". Most of the time goes to {exchange(job.exchanges[0])}"
    reason = None if job.stages else main_reason(job)
    late = {
        "computing": "compute longer",
        "copies": "copy longer",
        "data": "wait for their data",
        "host": "launch work late",
    }
    if reason in late:
        text += f". Those that are late {late[reason]}"
    return f"{text}."


def _usual(job: Job) -> str:
    step = job.step_ns
    if not job.cause or not step:
        return "No verdict for the job: " + (job.ranks[0].diagnosis.text if job.ranks else "no rank")
    cause = CAUSES[job.cause.removesuffix("-bound")]
    text = f"{job.cause}, on all ranks: {cause.reason}."
    other = [
        f"rank {rank.rank} {rank.diagnosis.cause}"
        for rank in job.ranks
        if rank.diagnosis.cause not in (job.cause, None)
    ]
    if other and job.cause != "communication-bound":
        text = f"{job.cause}: {cause.reason}. Seen alone, {listed(other)}."
    exposed = float(np.mean([parts[EXPOSED] for parts in job.parts]))
    lost = waiting(job)
    text += f" Of a step of {milliseconds(step)} the ranks wait {milliseconds(lost)} for each other, and exchange {milliseconds(exposed)} with nothing beside it."
    if job.stragglers:
        text += f" Most waits are for {names(job, job.stragglers)}."
    if job.what_if_ns is not None and job.what_if_ns < 0.97 * step:
        text += f" {cause.fix} a step would take {milliseconds(job.what_if_ns)}."
    return text


def _advice(job: Job) -> list[str]:
    reason = main_reason(job)
    ways = list(FIX[reason]) if reason else []
    if reason == "computing" and on_cpu(job):
        return [*ways[:1], "Does it have as many cores? Another process, or too many threads, may take them."]
    if reason == "computing" and job.slower and job.slower > SLOWER:
        ways.reverse()
    return ways


def exchange(e: Any) -> str:
    """ "all_reduce of 4.2 MB"."""
    if e.kind == OTHER_KIND:
        return "collectives whose kind was not recorded"
    return e.kind + (f" of {size_text(e.bytes)}" if e.bytes >= 0 else "")
