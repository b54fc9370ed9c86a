"""Which files are of ranks of one job, and which steps they have in common."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grader.trace import job_words
from grader.trace.rank import Rank
from grader.trace.rank_match import Matched

FITS_NS, FITS, FITS_ON_HOST = 1_000_000, 0.05, 0.3  # ends of one collective differ by less, in ns or in steps
MOST_PARTIAL = 0.8  # share of collectives that may be missing on some ranks
DIFFER = 0.2  # share of collectives that may differ between ranks of one job


class NotOneJob(ValueError):
    """These files are not of ranks of one job; says which, and why."""


def distinct(ranks: list[Rank]) -> tuple[list[Rank], list[str]]:
    """Each rank once, in order; by the names of the files where traces do not tell their rank."""
    cut = [rank.file for rank in ranks if rank.breaks_off and rank.complete]
    notes = [f"{file} is cut short, so only its whole steps are compared" for file in cut]
    by_content: dict[str, Rank] = {}
    for rank in ranks:
        first = by_content.setdefault(rank.fingerprint, rank)
        if first is not rank:
            notes.append(f"{rank.file} holds the same recording as {first.file}, and counts once")
    kept = list(by_content.values())
    known = [rank.rank for rank in kept]
    if None in known or (len(set(known)) < len(known) and all(rank.world_size in (None, 1) for rank in kept)):
        kept, said = _by_name(kept)
        notes += said
    by_rank: dict[int, list[Rank]] = {}
    for rank in kept:
        by_rank.setdefault(rank.rank or 0, []).append(rank)
    _check_sizes(kept)
    return [_one(files, by_rank, notes) for _, files in sorted(by_rank.items())], notes


def _by_name(ranks: list[Rank]) -> tuple[list[Rank], list[str]]:
    """The ranks that the traces do not tell by the names of the files; beside others that are told by what is left."""
    size = max([1, *(int(rank.world_size or rank.calls.members.max(initial=0)) for rank in ranks)])
    files, untold = [rank.file for rank in ranks], [rank for rank in ranks if rank.rank is None]
    numbers = job_words.numbers_in(files, size if size >= max(len(ranks), 2) else job_words.MOST_IN_NAME)
    told = {rank.rank for rank in ranks} - {None}
    if len(untold) == len(ranks) or len(told) < len(ranks) - len(untold):
        said = ["the traces do not tell their rank, so the names of the files do"] * (len(ranks) > 1)
        return [replace(rank, rank=number) for rank, number in zip(ranks, numbers, strict=True)], said
    # Numbers in the names that fit what the others tell, as a process's number may; else what is left, in order of the names.
    ahead = {number - rank.rank for rank, number in zip(ranks, numbers, strict=True) if rank.rank is not None}
    free = sorted(set(range(size + len(ranks))) - told)
    guess = {rank.file: number - min(ahead) for rank, number in zip(ranks, numbers, strict=True) if rank.rank is None}
    if len(ahead) > 1 or not set(guess.values()) <= set(free):
        guess = dict(zip(sorted(guess), free, strict=False))
    said = [f"{file} does not tell its rank, and is taken for rank {number}" for file, number in guess.items()]
    return [rank if rank.rank is not None else replace(rank, rank=guess[rank.file]) for rank in ranks], said


def _one(files: list[Rank], by_rank: dict[int, list[Rank]], notes: list[str]) -> Rank:
    """Of several recordings of one rank the one that shares most steps with the other ranks."""
    if len(files) == 1:
        return files[0]
    for i, one in enumerate(files):
        for other in files[i + 1 :]:
            if len(np.intersect1d(one.labels, other.labels)):
                names = f"{one.file} and {other.file}"
                raise NotOneJob(
                    f"{names} are both rank {one.rank} and both hold step {int(np.intersect1d(one.labels, other.labels)[0])}: two jobs, or two runs of one"
                )
    others = [rank for number, theirs in by_rank.items() if number != files[0].rank for rank in theirs]
    shared = [sum(len(np.intersect1d(file.labels, other.labels)) for other in others) for file in files]
    best = files[int(np.argmax(shared))]
    rest = ", ".join(file.file for file in files if file is not best)
    notes.append(f"rank {best.rank} was recorded {len(files)} times; {best.file} is compared, {rest} is not")
    return best


def _check_sizes(ranks: Sequence[Rank]) -> None:
    sizes: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.world_size is not None:
            sizes.setdefault(rank.world_size, []).append(rank.file)
    if len(sizes) > 1:
        told = "; ".join(f"{job_words.listed(files)} of a job of {size}" for size, files in sorted(sizes.items()))
        raise NotOneJob(f"their jobs have different numbers of ranks: {told}")


def same_steps(ranks: list[Rank]) -> tuple[list[Rank], np.ndarray, list[str]]:
    """The ranks that recorded the step which most of them did, and the steps that all of these counted."""
    ranks = _one_numbering(ranks)
    numbers, count = np.unique(np.concatenate([rank.labels for rank in ranks]), return_counts=True)
    if not len(numbers):
        return ranks, numbers, []
    most = numbers[count == count.max()][0]
    kept = [rank for rank in ranks if most in rank.labels]
    if len(kept) == 1 and len(ranks) > 1:  # nobody shares one
        told = "; ".join(f"{r.file} {job_words.steps(r.labels)}" for r in ranks)
        return (
            ranks,
            numbers[:0],
            [f"the ranks were recorded at different steps, so who waits for whom cannot be told: {told}"],
        )
    labels = kept[0].labels
    for rank in kept[1:]:
        labels = np.intersect1d(labels, rank.labels)
    notes = [
        f"{rank.file} holds other steps ({job_words.steps(rank.labels)}) than the rest, and is left out"
        for rank in ranks
        if most not in rank.labels
    ]
    if any(len(rank.labels) > len(labels) for rank in kept):
        notes.append(f"the ranks have {job_words.steps(labels)} in common; only these are compared")
    return kept, labels, notes


def _one_numbering(ranks: list[Rank]) -> list[Rank]:
    """Steps that the profiler did not number are numbered by the collectives that all ranks call in them."""
    if all(rank.numbered for rank in ranks) or not all(len(rank.starts) and rank.traced_ns for rank in ranks):
        return ranks
    shifts = [_ahead(ranks[0], rank) for rank in ranks]
    return [
        replace(rank, labels=rank.labels + shift, step=np.where(rank.step >= 0, rank.step + shift, -1))
        for rank, shift in zip(ranks, (shift - min(shifts) for shift in shifts), strict=True)
    ]


def _ahead(first: Rank, rank: Rank) -> int:
    """What to add to the labels of `rank` for those of `first`: by the numbers of their collectives where these were recorded, else by
    when they ended, as hosts come to a step at different times."""
    one, other = _numbered(first), _numbered(rank)
    if both := one.keys() & other.keys():
        return round(float(np.median([one[key] - other[key] for key in both])))
    label, theirs = int(first.labels[0]), int(rank.labels[0])
    behind = (_ended(rank, theirs) - _ended(first, label)) / (first.traced_ns or 1.0)
    return round(behind) + label - theirs if abs(behind) < max(len(first.labels), len(rank.labels)) else 0


def _numbered(rank: Rank) -> dict[tuple[str, int], int]:
    """(group, number) -> label of the step, of each collective in a counted step."""
    rows = zip(rank.calls.group, rank.calls.sequence.tolist(), rank.step.tolist(), strict=True)
    return {(group, number): step for group, number, step in rows if group and number >= 0 and step >= 0}


def _ended(rank: Rank, label: int) -> int:
    """When the last collective of a step did; without any when the step began."""
    ends = rank.calls.end[rank.step == label]
    return rank.zero + int(ends.max() if len(ends) else rank.starts[0])


def check_fit(ranks: Sequence[Rank], m: Matched, labels: np.ndarray) -> None:
    """Raises NotOneJob where the ranks do not do the same collectives at the same times."""
    if len(ranks) < 2 or not len(labels):
        return
    files = job_words.listed([rank.file for rank in ranks])
    if not len(m) and not m.partial and not m.differ and all(rank.world_size in (None, 1) for rank in ranks):
        raise NotOneJob(f"{files} exchange nothing with each other")
    if m.partial > MOST_PARTIAL * (m.partial + len(m)):
        some = f"{m.partial} of {m.partial + len(m) + m.differ} are not on all of them"
        raise NotOneJob(
            f"the ranks call different collectives ({some}): {files}. Or events were taken out of these files"
        )
    if m.differ > DIFFER * (m.differ + len(m)):
        differ = f"{m.differ} of {m.differ + len(m)} differ in kind or size"
        raise NotOneJob(
            f"the ranks call different collectives ({differ}): {files}. Or events were taken out of these files"
        )
    step = middle([rank.traced_ns for rank in ranks]) or 0.0
    on_host = not any(rank.device for rank in ranks)
    most = max(FITS_NS, (FITS_ON_HOST if on_host else FITS) * step)
    if (bad := np.flatnonzero(np.nan_to_num(m.spread) > most)).size:
        late = [ranks[i].file for i in bad.tolist()] if 2 * len(bad) < len(ranks) else [rank.file for rank in ranks]
        worst = job_words.milliseconds(float(np.nanmax(m.spread)))
        raise NotOneJob(
            f"the collectives of {job_words.listed(late)} do not end when those of the others do, but {worst} before or after: recorded in another run?"
        )


def middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value]
    return float(np.median(known)) if known else None
