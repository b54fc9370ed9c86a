"""The notebook tools of live loops to be diagnosed."""

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

from grader import trace, web_page
from grader.frontends.notebook.base import NotebookLab
from grader.frontends.notebook.note import Note
from grader.frontends.notebook.traces import without_causes
from grader.kinds import mystery
from grader.kinds.mystery import MysteryLab
from grader.result import Progress, read_json, write_json
from grader.sandbox.child_error import ChildError
from grader.trace import catalogue
from grader.trace.words import counted, plain_number

CLOCK = "mystery.json"  # in the current folder: {ticket: {"opened": seconds since 1970, "used_s", "profiles"}}
LIMIT_S = 600  # of machine time, for the four of them


class LiveLab(NotebookLab):
    """Live loops to be diagnosed. student: your name in the class, which decides which loops are yours; at home leave it
    empty, and the loops are drawn at random."""

    lab: MysteryLab
    steps = (
        ("lab.ticket", "which loops are yours. Copy it into your answers"),
        ("lab.profile(1)", "run loop 1 on this machine: its timeline and its numbers"),
        ("%%submission", "the cell with your answers. Fill it in and run it"),
        ("lab.check()", "the grade: the loops are made again and measured"),
    )

    def __init__(self, name: str, *, student: str = "", **options: Any) -> None:
        super().__init__(name, **options)
        student = student or os.environ.get("JUPYTERHUB_USER", "")
        kept = self._clocks()
        own = [] if student else [ticket for ticket in kept if ticket.startswith(f"{self.device}-")]
        self.ticket = own[0] if own else mystery.new_ticket(self.device, student)
        self.lab = replace(self.lab, ticket=self.ticket)
        self._clock = kept.get(self.ticket) or {"opened": time.time(), "used_s": 0.0, "profiles": 0}
        self._keep()

    def _card(self) -> Note:
        return replace(super()._card(), after=[f'Your ticket: "{self.ticket}".'])

    def profile(self, loop: int | None = None) -> None:
        """Run one of the four loops: some steps timed, then some profiled."""
        drawn = mystery.draw(self.lab, self.ticket)
        if str(loop) not in drawn:
            Note("Which loop?", [f"There are {', '.join(drawn)}: lab.profile({next(iter(drawn))})."]).show()
            return
        self._work(lambda progress: self._profiled(str(loop), drawn[str(loop)], progress))

    def _profiled(self, name: str, drawn: mystery.Drawn, progress: Progress) -> Note:
        began = time.monotonic()
        try:
            seen = mystery.profile(self.lab, self.device, drawn, progress)
        except (ChildError, trace.TraceError) as error:
            lines = [str(error), "Free memory on this machine, and try again."]
            return Note(f"Loop {name} could not be profiled", lines)
        self._clock["used_s"] += time.monotonic() - began
        self._clock["profiles"] += 1
        self._keep()
        rows = [
            (metric, f"{value:,.5g}" if catalogue.unit(metric) == catalogue.COUNT else f"{value:.2f}", WORDS[metric])
            for metric, value in seen.numbers.items()
        ]
        shown = {f"loop {name}": without_causes(seen.timeline)}
        picture = web_page.image(lambda: trace.draw(shown), f"Timeline of loop {name}")
        lines = [f"A step takes {plain_number(1e3 * seen.step_s)} ms without the profiler."]
        after = ["Counts are of one step. Shares are of 1: 0.25 is 25%.", self._time()]
        return Note(f"Loop {name}", lines, [rows], picture, after)

    def _checked(self, progress: Progress, *where: Any) -> Note:
        note = super()._checked(progress, *where)
        note.after.append(self._time())
        return note

    def _time(self) -> str:
        used, since, profiles = self._clock["used_s"], time.time() - self._clock["opened"], self._clock["profiles"]
        took = f"{counted(profiles, 'profile{s}')} took {_minutes(used)} of machine time."
        aim = " The aim is less than ten minutes of it." if used > LIMIT_S else ""
        return f"{_minutes(since)} since you first opened the lab. {took}{aim}"

    def _clocks(self) -> dict[str, Any]:
        return {ticket: clock for ticket, clock in read_json(self._folder / CLOCK).items() if _is_clock(clock)}

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            write_json(self._folder / CLOCK, self._clocks() | {self.ticket: self._clock})


# What a live loop's numbers are, in words; some are measured otherwise than those of a trace.
WORDS = {name: metric.words for name, metric in catalogue.METRICS.items()} | {
    "gpu_idle": "of the step the GPU had nothing to do",
    "copies": "of the step the GPU copied, with no kernel beside it",
    "matmul": "of the step went into matmuls and convolutions",
}


def _is_clock(clock: Any) -> bool:
    keys = ("opened", "used_s", "profiles")
    return isinstance(clock, dict) and all(isinstance(clock.get(key), int | float) for key in keys)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
