"""Makes the parts of a night on a pool, the missing ones and again those that are not as expected, and says how it goes."""

import math
from collections.abc import Callable, Container
from statistics import fmean
from typing import Any

from tqdm import tqdm

from grader.classroom.coordinator import grade_all
from grader.classroom.pool import Pool
from grader.classroom.store import FAILED as NOT_MADE
from grader.classroom.submissions import Task
from grader.nightly import parts
from grader.nightly.judging import again, assess
from grader.nightly.night import Night
from grader.nightly.parts import Part
from grader.progress import bar
from grader.safe_text import tell

LIMIT_S = {True: 600.0, False: 1800.0}  # of one part, by quick; a lesson in full is the longest


def measure(
    night: Night,
    pool: Pool,
    shard: tuple[int, int] = (1, 1),
    until: float = math.inf,
    kinds: Container[str] = parts.KINDS,
    subjects: Container[str] = (),
) -> None:
    """Make what is missing, and again what is not as expected. shard: (i, n) for the i-th of n shares; kinds, subjects: see
    `chosen`; nothing is begun that, as far as is known, would not be done at `until` (`time.monotonic()`)."""
    mine = [part for part in chosen(share(night.parts, *shard), kinds, subjects) if not part.lacks]
    grade_all_of(night, pool, [(part, 0) for part in mine], until)
    for _ in range(1, parts.MOST_TRIES):
        wanted = [(part, run) for part, run in again(night, assess(night)) if part in mine]
        if not wanted:
            break
        grade_all_of(night, pool, wanted, until)


def chosen(made: list[Part], kinds: Container[str], subjects: Container[str]) -> list[Part]:
    """The parts of these kinds, of these labs and lessons; of all, where none is named."""
    return [part for part in made if part.kind in kinds and (not subjects or part.subject in subjects)]


def share(made: list[Part], number: int, count: int) -> list[Part]:
    """Every `count`-th part, those that take long spread evenly. Parts that are made together stay together, and so do a lab's
    adversaries. All shares make one night."""
    tasks = [
        f"adversary {part.subject}" if part.kind == "adversary" else part.task.digest if part.task else ""
        for part in made
    ]
    places = {digest: place for place, digest in enumerate(dict.fromkeys(tasks))}
    return [part for part, digest in zip(made, tasks, strict=True) if places[digest] % count == number - 1]


def grade_all_of(night: Night, pool: Pool, wanted: list[tuple[Part, int]], until: float) -> None:
    tasks: dict[str, tuple[Task, list[Part]]] = {}
    for part, run in wanted:
        task = part.again(run)
        tasks.setdefault(task.digest, (task, []))[1].append(part)
    progress = Progress(night, pool, [part for part, _ in wanted])
    made = list(tasks.values())
    if progress.workers > 1:
        made = longest_first(made, progress.known)
    try:
        grade_all(
            [task for task, _ in made],
            pool,
            night.records,
            limit_s=LIMIT_S[night.manifest["quick"]],
            until=until,
            takes_s=lambda task: takes_s(tasks[task.digest][1], progress.guess),
            starting=progress.begin,
            done=lambda task, record: progress.done(tasks[task.digest][1][-1], record),
            keep=True,
        )
    finally:
        progress.close()


def longest_first(tasks: list[tuple[Task, list[Part]]], known: dict[str, float]) -> list[tuple[Task, list[Part]]]:
    """Tasks, each with the parts that it makes, in an order that leaves no worker busy long after the others. known: seconds of
    parts in an earlier night, by name; one that is not there takes as long as the others do on average."""
    usual = fmean(known.values()) if known else 1.0
    return sorted(tasks, key=lambda task: -takes_s(task[1], lambda part: known.get(part.name, usual)))


def takes_s(made: list[Part], seconds: Callable[[Part], float]) -> float:
    """Seconds of the task that makes these parts, of which each takes so long. A solution's grade is made by its notebook."""
    return sum(seconds(part) for part in made if part.kind == "solution") or sum(map(seconds, made))


class Progress:
    """A line a part on standard error, or a bar on a terminal, with the time left, from the last night's times or this one's."""

    def __init__(self, night: Night, pool: Pool, wanted: list[Part]) -> None:
        self.waiting = {part.name: part for part in wanted}
        self.workers = max(1, pool.size())
        self.took: dict[str, list[float]] = {}  # seconds of parts, by kind
        for outcome in (parts.outcome(part, night.runs(part)) for part in night.parts):
            if outcome.runs:
                self.took.setdefault(outcome.part.kind, []).append(outcome.seconds)
        nights: list[dict[str, Any]] = night.history.nights()
        alike = [n for n in nights if all(n[name] == night.manifest[name] for name in ("device", "quick"))]
        self.known = {name: part["seconds"] for name, part in alike[-1]["parts"].items()} if alike else {}
        self.bar: tqdm | None = None
        self.count = self.made = 0

    def begin(self, count: int) -> None:
        self.count = count
        if count:
            kinds = ", ".join(dict.fromkeys(part.kind for part in self.waiting.values()))
            said = f"{count} task{'s' * (count > 1)} ({kinds}); parts that are made together are one task"
            tell(said)
        self.bar = bar(count, "night", "{desc} {bar} {n_fmt}/{total_fmt}{postfix}")

    def guess(self, part: Part) -> float:
        """Seconds that a part takes; 0 where nothing is known of any."""
        if known := self.known.get(part.name):
            return known
        every = [seconds for times in self.took.values() for seconds in times]
        return fmean(self.took.get(part.kind) or every or [0.0])

    def left_s(self) -> float:
        missing = sorted(map(self.guess, self.waiting.values()), reverse=True)
        return sum(missing[: self.count - self.made]) / self.workers

    def done(self, part: Part, record: dict[str, Any]) -> None:
        self.made += 1
        self.waiting.pop(part.name, None)
        self.took.setdefault(part.kind, []).append(record["seconds"])
        problem = record.get(NOT_MADE) or record["result"].get("why") or record["result"].get("fatal") or ""
        left = f"about {self.left_s() / 60:.0f} min left of these tasks"
        if self.bar is None or self.bar.disable:
            said = f"{self.made}/{self.count} {part.name}: {record['seconds']:.0f} s{', ' * bool(problem)}{problem}; {left}"
            tell(said)
        else:
            self.bar.set_postfix_str(f"{part.name}; {left}")
            self.bar.update()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
