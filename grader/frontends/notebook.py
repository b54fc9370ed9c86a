"""A lab in a notebook: `lab = grader.lab("2a_workers")` and what one does with it.

Everything is shown as HTML with the same as plain text beside it, in one output per call that is written over: first
the progress, last the answer. That needs no widgets, so a notebook that papermill or nbconvert executed holds the answer
and not the remains of a bar."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import psutil

from grader import labs, machine, web_page
from grader.checks.memory import judge_budget, size
from grader.checks.prediction import DEVICES
from grader.checks.throughput import MUCH_LOST
from grader.classroom.client import grade_at
from grader.errors import UserError
from grader.frontends import board, magic, report
from grader.frontends.silence import Silence
from grader.grade import grade
from grader.grading.forms import choose_form, missing_packages, own_cores, too_little_memory
from grader.labs.lab import CAUSES, Budget, Growth
from grader.look import Look, look, peek, profile
from grader.result import Progress, Result, write_json
from grader.safe_text import clean, cores_text, prose_to_html, to_html
from grader.sandbox import parent
from grader.sandbox.parent import Workspace
from grader.submission import Submission, _prediction, defined, from_cells, is_submission
from grader.trace import Metrics, catalogue
from grader.trace.catalogue import METRICS, PEEKED, PROFILED
from grader.trace.words import counted, plain_number

Row = tuple[str, ...]  # of a table: as many texts in each row

RELEASED = Path(__file__).resolve().parents[2] / "labs"
PREDICTIONS = "prediction.json"  # in the current folder: {lab: {"cause", "gain", "time"}}
MANY_STEPS = 100
WORD = 10  # characters: a text of so many, such as a number, is not broken
SHOWN_LOSSES = 12  # and the last one
NOT_MEASURED = "NOT MEASURED"
ONLY_TRAINING = "This lab needs an NVIDIA GPU; on this CPU only the training is compared."
NEEDS_GPU = "This lab needs an NVIDIA GPU: nothing of it can be measured here."

MEANING = {
    "input-bound": "waiting for the next batch: reading, decoding, collating",
    "transfer-bound": "copying batches from the CPU's memory to the GPU's",
    "sync-bound": "the CPU stops again and again until the GPU has a result",
    "launch-bound": "many tiny kernels: the GPU is done with each before the CPU has launched the next",
    "communication-bound": "several GPUs exchange gradients, and wait for each other",
    "memory-bound": "the GPU is busy, mostly moving bytes to and from its own memory",
    "compute-bound": "the GPU is busy, mostly calculating",
}
assert set(MEANING) == set(CAUSES)

STEPS = (
    ("lab.predict(cause=..., gain=...)", "first: the cause, and how many times as fast it can get; locked once made"),
    ("%%submission", "the cell with the loop; change it, and run it"),
    ("lab.run(), lab.peek()", "a few steps; counts without timing. Free, as often as you like"),
    ("lab.profile()", "where the time of a step goes"),
    ("lab.check()", "the grade, by measurement"),
    ('lab.log("what I changed")', "a note to the last check, and all that you tried so far"),
)


def open_lab(name: str, device: str = "auto", quick: bool = False, **more: Any) -> NotebookLab:
    """The lab `name` with the tools of its kind."""
    from grader.frontends import tools

    return tools.TOOLS.get(type(labs.get(name)), LoopLab)(name, device, quick, **more)


ELSEWHERE = {"run", "peek", "predict", "profile", "look", "explore", "save", "code", "compare", "cases", "ticket"}


class NotHere(UserError, AttributeError):
    """What another kind of lab has: for a learner the course's usual error, for `hasattr` the usual one."""


class NotebookLab:
    """One lab in a notebook, of any kind. device: "auto", "cuda" or "cpu"; quick: fewer and shorter measurements, to try
    things out; cores: how many it is measured on, 8, or which, "0-3,8", in place of its GPU's share.

    `result` is the Result of the last finished `check()`. Raises UserError for an unknown lab, and for a device or cores that
    this machine does not have."""

    steps: tuple[Row, ...]  # what one does here, for the card: the call, and what it gives

    def __init__(self, name: str, device: str = "auto", quick: bool = False, cores: int | str | None = None) -> None:
        self.lab = labs.get(name)
        self.device = choose_form(self.lab, device)
        self.quick = quick
        self._cores = None if cores is None else machine.asked_cores(str(cores))
        self.result: Result | None = None
        self._noteworthy = True  # what `log` can put a note to: not after a check() that came to no result
        self._folder = Path.cwd()
        shell = _shell()
        self._recorder = magic.install(shell) if shell else None
        if self.lab.runs_code:
            with self._on_cores():
                parent.fork_server()  # imports torch meanwhile

    def _repr_html_(self) -> str:
        return self._card().html()

    def __repr__(self) -> str:
        return self._card().text()

    def _card(self) -> Note:
        lab, where = self.lab, self._where()
        if self.quick and lab.runs_code:
            where += " Quick mode: fewer and shorter measurements, to try things out; not for marks."
        if self._folder == RELEASED / lab.name:
            where += (
                " This notebook lies where labs are handed out from: work in a copy of your own, from the start notebook or "
                f"by `grader start {lab.name}`. The map shows the progress of that one."
            )
        unmeasured = [c for c in lab.checks if not lab.measures(c, self.device)]
        checks = [
            (c.title, f"{c.points:g} points", "needs an NVIDIA GPU: not measured here" if c in unmeasured else "")
            for c in lab.checks
        ]
        return Note(f"Lab {lab.name}: {lab.title}", [lab.goal, where], [checks, list(self.steps)])

    def _where(self) -> str:
        if lacks := missing_packages(self.lab) or too_little_memory(self.lab, self.device):
            return lacks
        gpu = machine.gpu_name()
        if self.device == "traces":
            return "Graded from recorded traces: nothing is measured, and no GPU is needed."
        if self.device == "cuda":
            return f"Measured on this machine's {gpu}."
        if "cpu" in self.lab.forms and not any(self.lab.measures(check, "cpu") for check in self.lab.checks):
            return ONLY_TRAINING
        if "cpu" in self.lab.forms:
            count = len(self._cores or machine.share(0)[0])
            return f"Measured on this machine's CPU ({cores_text(count)}), in the lab's CPU form" + (
                f", though there is a GPU ({gpu})." if gpu else ": no NVIDIA GPU was found."
            )
        return NEEDS_GPU

    def __getattr__(self, name: str) -> Any:
        """Only for what this kind of lab lacks. Names that no kind has are Python's business, and Jupyter's, which asks for
        many."""
        if name in ELSEWHERE:
            raise NotHere(f"{self.lab.name} has {_listed(self.steps)}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    # ---- the grade

    def check(self, cluster: str | None = None, key: str | Path | None = None) -> None:
        """Grade your submission by measurement; takes about a minute, or a few. The report is also saved in the folder.

        cluster: the address of a pool that grades it in place of this machine, "tls://HOST:PORT"; key: the file with your
        key to it, where it does not lie at its usual place (see `grader.classroom.client.key_file`)."""
        self._noteworthy = False  # until it has come to a result
        self._work(lambda progress: self._checked(progress, cluster, key))

    def _checked(self, progress: Progress, cluster: str | None, key: str | Path | None) -> Note:
        submission = self._submission()
        if cluster is not None:
            self.result = grade_at(cluster, submission, self.lab, key=key, quick=self.quick, progress=progress)
        else:
            # the learner's own code, which their kernel runs as well; a mark is given elsewhere
            self.result = grade(
                submission,
                self.lab,
                device=self.device,
                quick=self.quick,
                allow_unconfined=True,
                progress=progress,
            )
        saved = board.save(self._folder, self.lab, self.result)
        self._noteworthy = not self.result.disturbed
        return _Report(self.result, [saved])

    def log(self, note: str | None = None) -> None:
        """Put a note to the last `lab.check()`, and show all that were made so far. `grader board` has them as a page."""
        try:
            if note is not None:
                if not self._noteworthy:
                    raise UserError("The last lab.check() came to no result: there is nothing to note.")
                board.note(self._folder, self.lab.name, str(note))
            attempts = board.read(board.file_of(self._folder, self.lab.name))
            if not attempts:
                raise UserError("There is nothing to show yet: run lab.check() first.")
        except (UserError, OSError) as error:
            Note("That does not work yet", [str(error)]).show()
            return
        rows = [board.cells(number, each) for number, each in enumerate(attempts, 1)][-board.SHOWN :]
        timed = any(each["gain"] for each in attempts)
        picture = web_page.image(lambda: board.draw(attempts), "Gain of each attempt, in their order") if timed else ""
        Note("What you tried", [], [[board.HEAD, *rows]], picture).show()

    def grade(self, name: str = "") -> float:
        """Show one check's verdict of the last `check()`; its points."""
        if self.result is None:
            Note("Not checked yet", ["Run lab.check() first."]).show()
            return 0
        found = next((c for c in self.result.checks if c.name == name), None)
        if found is None:
            names = ", ".join(c.name for c in self.result.checks)
            title = f"There is no check {name!r}" if name else "Which check?"
            Note(title, [f"The last lab.check() has: {names}."]).show()
            return 0
        _Report(replace(self.result, checks=[found]), [], row=True).show()
        return found.points

    # ---- machinery

    def _submission(self) -> Submission:
        if self._recorder is None:
            raise UserError("This is no notebook. On the command line: grader grade LAB NOTEBOOK.ipynb.")
        cells = self._recorder.cells
        if not any(is_submission(cell.source) for cell in cells):
            name, shown = _asked(self.lab.starter)
            if any(name in defined(cell.source) for cell in cells):
                raise UserError(
                    f"The cell that defines {shown} no longer begins with %%submission: put the line back, run the cell, then this one."
                )
            raise UserError("No %%submission cell has been run since this kernel started: run it, then this one.")
        return from_cells(cells, "This notebook")

    def _on_cores(self) -> contextlib.AbstractContextManager[None]:
        return machine.kept_on(self._cores, machine.ASKED) if self._cores else own_cores(self.lab, self.device)

    def _work(self, work: Callable[[Progress], Note]) -> None:
        """Do what takes a while, with its progress shown, and show the note it returns in the same place."""
        place = _Place()
        bar = _Bar(place)
        with self._on_cores(), _stopped_once():
            try:
                try:
                    note = work(bar)
                finally:
                    bar.close()
            except UserError as error:
                note = Note("That does not work yet", [str(error)])
            except RuntimeError as error:
                if type(error) is not RuntimeError:
                    raise
                note = Note("This machine cannot do that", [str(error)])  # no confinement, no fork server
            except KeyboardInterrupt:
                _end_children()
                Note("Stopped", ["Nothing was scored."]).show(place)
                raise UserError("Stopped; nothing was scored.") from None  # an error, so that "Run All" stops here too
            note.show(place)


class LoopLab(NotebookLab):
    """A training loop to make faster."""

    steps = STEPS
    _prediction: dict[str, Any] | None = None  # for where the file cannot be written
    _place: Workspace | None = None

    def _card(self) -> Note:
        made = self._locked()
        return replace(super()._card(), after=[f"Your prediction is locked: {_said(made)}."] if made else [])

    # ---- the prediction

    def predict(self, cause: Any = ..., gain: Any = ..., device: str | None = None, **unknown: Any) -> None:
        """Say, before the first profile, what holds the loop back and how many times as fast it can get. The first
        complete prediction counts. cause: one of `grader.labs.lab.CAUSES`; gain: a number, 2.5 for 2.5 times; device: what
        the gain is for, "cuda" or "cpu", which has to be said where the lab is graded on a CPU and could be on a GPU."""
        wrong = f"It takes cause, gain and device, no {', '.join(unknown)}." if unknown else _wrong(cause, gain, device)
        if not wrong and device is None and self.device == "cpu" and self.lab.scored_on_both:
            wrong = 'Say what your gain is for: add device="cpu" for this lab as it is graded here, or device="cuda" for a GPU.'
        prediction = {"cause": cause, "gain": gain, "device": device or "cuda"}
        made = self._locked()
        if made:
            again = _of(made) == prediction or cause is ... or gain is ...
            lines = [f"It is {_said(made)}."]
            if not again:
                lines.append("The first prediction counts. If it was wrong: what did it overlook?")
            Note("Your prediction is locked", lines).show()
        elif wrong:
            choices = [(f'"{name}"', MEANING[name]) for name in CAUSES]
            lines = [wrong, "What holds the loop back, and how many times as fast can the full fix make it?"]
            example = 'The form of an answer: lab.predict(cause="launch-bound", gain=1.5).'
            Note("No prediction yet", lines, [choices], after=[example]).show()
        elif not self._written(prediction):
            lines = [
                "What is handed in is the cell, and it is read without being run. So write both out there, with their names:",
                f'lab.predict(cause="{cause}", gain={gain:g}{f", device={json.dumps(device)}" if device else ""})',
            ]
            Note("No prediction yet", lines).show()
        else:
            self._prediction = prediction | {"time": datetime.now(UTC).isoformat(timespec="seconds")}
            lines = [f"It is {_said(self._prediction)}."]
            with _as_warning(lines, "It counts in this session only"):
                write_json(self._folder / PREDICTIONS, _predictions(self._folder) | {self.lab.name: self._prediction})
            Note("Your prediction is locked", lines, after=["Now measure: lab.profile()."]).show()

    def _written(self, prediction: dict[str, Any]) -> bool:
        """Whether a cell holds this prediction so that it can be read there."""
        cells = [cell.source for cell in self._recorder.cells if ".predict(" in cell.source] if self._recorder else []
        return not cells or any(_of(dict(_prediction(source) or ())) == prediction for source in cells)

    def _locked(self) -> dict[str, Any] | None:
        return locked(self._folder, self.lab.name) or self._prediction

    def _predicted(self) -> bool:
        if self._locked():
            return True
        lines = ["Say first what you expect: run lab.predict(cause=..., gain=...), filled in."]
        lines.append("What you expected is what makes the answer worth something. lab.run() and lab.peek() are free.")
        Note("Predict first", lines).show()
        return False

    # ---- looking

    def run(self, steps: int = 10) -> None:
        """Run your loop for some steps: its losses, and the time of a step."""
        if not isinstance(steps, int) or not 1 <= steps <= 1000:
            Note("lab.run(steps=10)", ["steps is a number from 1 to 1000."]).show()
            return
        self._work(lambda progress: self._ran(self._look(look, progress, profiled=False, timed=steps), steps))

    def _ran(self, seen: Look | None, steps: int) -> Note:
        if not seen or seen.message:
            return _failed(seen)
        time_ = f"{plain_number(1e3 * seen.step_s)} ms a step, over {counted(steps, 'step{s}')} after {len(seen.losses) - steps} to warm up."
        if self.lab.cause == "input-bound" and steps < MANY_STEPS:
            time_ += " Batches that a loader had ready make few steps look fast: lab.check() times many."
        if self.lab.serves:
            what = "One number for each answer (what the grade compares; other requests after a restart of the kernel)"
        else:
            what = "Losses"
        lines = [time_, *_disturbed(seen), *self._memory(seen, steps), f"{what}: {_shortened(seen.losses)}"]
        return Note("Your loop runs", lines, printed=seen.output)

    def _memory(self, seen: Look, steps: int) -> list[str]:
        """What the lab asks of the loop's memory, in a sentence; nothing in labs that ask nothing."""
        if seen.meter and isinstance(self.lab.memory, Growth):
            before, after = seen.meter.levels
            gpu, main = (
                (b - a) / (after.steps - before.steps) for a, b in ((before.gpu, after.gpu), (before.main, after.main))
            )
            gpu_part = f"{size(gpu)} a step on the GPU and " if seen.meter.on_gpu else ""
            few = f" (Few steps tell little: lab.run({MANY_STEPS}).)" if steps < MANY_STEPS else ""
            return [f"Memory grew by {gpu_part}{size(main)} a step in main memory.{few}"]
        if seen.meter and isinstance(self.lab.memory, Budget):
            return [judge_budget(self.lab.memory, self.lab.forms[self.device].budget, seen.meter).reason]
        return []

    def peek(self) -> None:
        """Counts of what a step of your loop does. Nothing is timed: they are the same on a busy machine."""
        self._work(lambda progress: self._peeked(self._look(peek, progress)))

    def _peeked(self, seen: Look | None) -> Note:
        if not seen or seen.message or not seen.metrics:
            return _failed(seen)
        names = [name for name in dict.fromkeys([*self.lab.peek, *PEEKED]) if self._known(seen, name)]
        rows = [_row(name, _value(seen, name)) for name in names]
        at = names.index("syncs") + 1
        would_wait = _value(seen, "would_wait")
        rows[at:at] = [*([] if would_wait is None else [_row("would_wait", would_wait)]), *_copies(seen.metrics)]
        unmeasured = [row[0] for row in rows if row[1] == NOT_MEASURED]
        rows = [row for row in rows if row[1] != NOT_MEASURED]
        after = ["Counts a step, without timing."]
        if "data_wait" in unmeasured:
            unmeasured.remove("data_wait")
            after.append("data_wait is unknown: this loop has no DataLoader, and no record_function of that name.")
        if unmeasured:
            after.append(f"Needs a GPU: {', '.join(unmeasured)}.")
        if would_wait is not None:
            after.append(
                "would_wait: .item(), `if` on a tensor, format, a mask as an index. On a CPU .cpu(), synchronize and tensors made "
                "from lists leave no mark; on a GPU they wait as well."
            )
        return Note("What a step does", [], [rows], printed=seen.output, after=after)

    def _known(self, seen: Look, name: str) -> bool:
        """Samples are counted by a mark that not every data set makes: none may mean that none was marked."""
        return name != "loads_in_main" or name in self.lab.peek or bool(_value(seen, name))

    def profile(self) -> None:
        """Where the time of a step goes: the timeline of some steps, and what it amounts to."""
        if self._predicted():
            self._work(lambda progress: self._profiled(self._look(profile, progress)))

    def _profiled(self, seen: Look | None) -> Note:
        if not seen or seen.message or not seen.metrics:
            return _failed(seen)
        asked = [name for check in self.lab.trace if (name := check.metric.partition(".")[0]) in METRICS]
        names = dict.fromkeys([*PROFILED, *asked])
        rows = [
            _row(name, value) for name in names if self._known(seen, name) and (value := _value(seen, name)) is not None
        ]
        if self.device == "cuda":
            look_at = (
                "Look for the stretches in which the GPU has nothing to do (hatched): what does the CPU do meanwhile?"
            )
        else:
            look_at = "Look for the longest thing in a step: is the main process calculating then, or waiting?"
        lines = [f"A step takes {plain_number(1e3 * (seen.step_s or math.nan))} ms without the profiler. {look_at}"]
        lines += _disturbed(seen)
        lines += [f"The trace is incomplete: {reason}." for reason in seen.metrics.reasons]
        picture = web_page.image(lambda: _draw(seen), "Timeline of some steps of your loop")
        after = ["What is the largest thing that a change could take away, and how fast would a step be without it?"]
        return Note("Where the time of a step goes", lines, [rows], picture, after, printed=seen.output)

    # ---- the grade

    def check(self, cluster: str | None = None, key: str | Path | None = None) -> None:
        if self._predicted():
            super().check(cluster, key)

    def _submission(self) -> Submission:
        made = self._locked()
        prediction = tuple(_of(made).items()) if made else None
        return replace(super()._submission(), prediction=prediction)

    def _look(self, how: Callable[..., Look | None], progress: Progress, **options: Any) -> Look | None:
        submission = self._submission()
        shared = {"allow_unconfined": True, "progress": progress, "kept": self._kept(submission.source)}
        return how(submission, self.lab, device=self.device, **shared, **options)

    def _kept(self, source: str) -> Workspace:
        """The place where this source was compiled before, so that it is compiled once for all looks at it. A grade has its own."""
        if self._place is None or self._place.source != source:
            if self._place:
                self._place.remove()
            self._place = Workspace(source)
            weakref.finalize(self, self._place.remove)  # at the latest when the kernel ends
        return self._place


# ---------------------------------------------------------------- what is shown


def _shell() -> Any:
    """The running IPython, or None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


class _Place:
    """One output, which each `show` writes over. A terminal prints them all, one after the other."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, page: str, text: str) -> None:
        if _shell() is None:
            print(text)
            return
        from IPython.display import display

        data = {"text/html": page, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class _Bar:
    """Progress in a place. It moves only when it is told, between measurements: a bar that runs on by itself keeps a
    core of this very machine busy with drawing while a block is timed."""

    def __init__(self, place: _Place) -> None:
        self._place, self._began, self._share = place, time.monotonic(), 0.0
        self._silence = Silence(self._explain, "Interrupting the kernel (the square)")

    def __call__(self, share: float, what: str) -> None:
        seconds = time.monotonic() - self._began
        left = f", about {_seconds(seconds / share * (1 - share))} left" if seconds > 3 and 0.1 < share < 1 else ""
        self._share = share
        self._silence.after(what, lambda: self._show(f"{what}{left}"))

    def close(self) -> None:
        """Say nothing more."""
        self._silence.after("")

    def _explain(self, what: str, meaning: str) -> None:
        self._show(f"{what}. {meaning}")

    def _show(self, said: str) -> None:
        bar = f'<progress max="1" value="{self._share:.3f}" style="width: 100%; height: 12px"></progress>'
        Note("", [said], picture=bar, line=f"[{100 * self._share:3.0f}%] {said}").show(self._place)


def _seconds(seconds: float) -> str:
    return f"{max(5, 5 * round(seconds / 5))} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _disturbed(seen: Look) -> list[str]:
    """That other programs took a good part of what was timed."""
    if seen.lost <= MUCH_LOST:
        return []
    return [
        f"Other programs took {seen.lost:.0%} of the time of these steps. Close them (other notebooks' kernels, too), and do it again."
    ]


@dataclass
class Note:
    """One thing to show, as HTML and as text: a title, lines, a picture, tables, more lines, and
    what the submission printed. line: the whole text, where one line says it all."""

    title: str
    lines: list[str] = field(default_factory=list)
    tables: list[list[Row | Below]] = field(default_factory=list)
    picture: str = ""  # HTML
    after: list[str] = field(default_factory=list)
    printed: str = ""
    line: str = ""

    def show(self, place: _Place | None = None) -> None:
        (place or _Place()).show(self.html(), self.text())

    def html(self) -> str:
        parts = [f'<p class="sp-title" style="font-size: 17px">{prose_to_html(self.title)}</p>'] if self.title else []
        parts += [f'<p style="white-space: pre-wrap">{prose_to_html(line)}</p>' for line in self.lines]
        parts += [self.picture, *(_table_html(rows) for rows in self.tables if rows)]
        parts += [f'<p class="sp-note">{prose_to_html(line)}</p>' for line in self.after]
        if self.printed:
            printed = to_html(self.printed, report.OUTPUT_CHARACTERS, tail=True)
            parts.append(f"<details><summary>What the submission printed</summary><pre>{printed}</pre></details>")
        return web_page.paper("\n".join(parts))

    def text(self) -> str:
        if self.line:
            return self.line
        lines = [self.title, *self.lines, *(row for rows in self.tables for row in _table_text(rows)), *self.after]
        if self.printed:
            lines += ["The end of what the submission printed:", clean(self.printed, 1000, tail=True)]
        return "\n".join(lines).strip("\n")


@dataclass(frozen=True)
class Below:
    """What stands below a row of a table, across its columns. whole: the same in full, where the pointer rests on it."""

    text: str
    whole: str = ""

    def html(self) -> str:
        title = f' title="{to_html(self.whole)}"' if self.whole else ""
        style = "grid-column: 1 / -1; padding-left: 18px; margin-bottom: 5px; font-size: 12px; color: #4b5563; overflow-wrap: anywhere"
        return f'<div style="{style}"{title}>{escape(self.text)}</div>'


def _table_html(rows: list[Row | Below]) -> str:
    """A grid, not a table: JupyterLab and nbgrader have styles of their own for tables."""
    cells = "".join(row.html() if isinstance(row, Below) else _row_html(row) for row in rows)
    columns = "minmax(min-content, max-content) " * (len(rows[0]) - 1) + "minmax(min-content, 1fr)"
    style = f"display: grid; grid-template-columns: {columns}; gap: 2px 18px; margin: 8px 0; font-size: 13px"
    return f'<div style="{style}">{cells}</div>'


def _row_html(row: Row) -> str:
    return "".join(
        f'<div style="grid-column: {column}; {"white-space: nowrap" if len(text) <= WORD else "overflow-wrap: anywhere"}">{_cell(text)}</div>'
        for column, text in enumerate(row, 1)
    )


def _cell(text: str) -> str:
    code = text.startswith(("lab.", "%%", '"'))
    return f"<code>{escape(text)}</code>" if code else escape(text)


def _table_text(rows: list[Row | Below]) -> list[str]:
    full = [row for row in rows if not isinstance(row, Below)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    return [
        f"      {row.text}"
        if isinstance(row, Below)
        else "  " + "  ".join(f"{t:{w}}" for t, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class _Report(Note):
    """A grade's report, or one row of it, with lines below."""

    def __init__(self, result: Result, lines: list[str], row: bool = False) -> None:
        super().__init__("", after=lines)
        self.result, self.row = result, row

    def html(self) -> str:
        if self.row:
            return web_page.paper(report.row_html(self.result.checks[0]))
        return report.html(self.result) + "".join(f"<p>{escape(line)}</p>" for line in self.after)

    def text(self) -> str:
        if self.row:
            return report.row_text(self.result.checks[0])
        return "\n".join([report.text(self.result), *self.after])


# ---------------------------------------------------------------- numbers in words


def _value(seen: Look, name: str) -> float | None:
    """A metric, or what else was counted, by name; None for what this device cannot tell."""
    if name == "peak_memory":
        return seen.peak_memory
    if name in ("graph_breaks", "recompiles"):
        return seen.compiled and seen.compiled[name]
    return catalogue.value(seen.metrics, name)


def _row(name: str, value: float | None) -> tuple[str, str, str]:
    metric = METRICS[name]
    if value is None:
        shown = NOT_MEASURED
    elif metric.unit == catalogue.SHARE:
        shown = f"{100 * value:.0f}%"
    elif metric.unit == catalogue.TIME:
        shown = f"{plain_number(value / 1e6)} ms"
    elif metric.unit == catalogue.BYTES:
        shown = f"{value / 1e9:.2f} GB"
    else:
        shown = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return name.removesuffix("_ns"), shown, metric.words


def _copies(metrics: Metrics) -> list[tuple[str, str, str]]:
    if metrics.copies is None:
        return [("copies", NOT_MEASURED, "copies between the CPU's and the GPU's memory, and within it, by kind")]
    words = {
        "HtoD pinned": "to the GPU from pinned memory",
        "HtoD pageable": "to the GPU from pageable memory",
        "DtoH": "from the GPU to the CPU",
        "DtoD": "within the GPU's memory",
    }
    rows = []
    for kind, copy in metrics.copies.items():
        size = f", {plain_number(copy['bytes'] / 1e6)} MB" if copy["bytes"] else ""
        rows.append(
            (f"copies {kind}", f"{plain_number(copy['count'])}{size}", f"copies {words.get(kind, 'of another kind')}")
        )
    return rows


def _draw(seen: Look) -> Any:
    from grader.trace.picture import draw

    return draw({"your loop": seen.timeline})


def _shortened(losses: list[float]) -> str:
    shown = [f"{loss:.4f}" for loss in losses]
    if len(shown) > SHOWN_LOSSES + 1:
        shown[SHOWN_LOSSES:-1] = ["…"]
    return " ".join(shown)


def _asked(starter: str) -> tuple[str, str]:
    """What a lab's cell defines at its end, which is what is asked for: its name, and with its arguments."""
    last = ast.parse(starter).body[-1]
    if isinstance(last, ast.FunctionDef):
        return last.name, f"{last.name}({', '.join(argument.arg for argument in last.args.args)})"
    (name,) = defined(ast.unparse(last))
    return name, name


def _listed(steps: tuple[Row, ...]) -> str:
    """The calls of a lab's card: "lab.compare(...) and lab.check()"."""
    calls = [call for row in steps for call in re.findall(r"lab\.\w+(?:\(.*?\))?", row[0])]
    *others, last = [re.sub(r"\(.+\)", "(...)", call) for call in calls]
    return f"{', '.join(others)} and {last}"


def _failed(seen: Look | None) -> Note:
    if seen is None:
        return Note("Not measured", [NEEDS_GPU])
    return Note("Your loop failed", [seen.message or "It left no trace."], printed=seen.output)


def _predictions(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((folder / PREDICTIONS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def locked(folder: Path, lab: str) -> dict[str, Any] | None:
    """The prediction that is locked in `folder`, {"cause", "gain", "device", "time"}; None where none is, or none that can be used."""
    made = _predictions(folder).get(lab)
    if isinstance(made, dict) and not _wrong(*(_of(made).values())):
        return made
    return None


def passed_over(folder: Path, lab: str, submission: Submission) -> str:
    """What is to be said where the prediction that is locked in `folder` is not the one that the notebook itself holds; else ''."""
    made = locked(folder, lab)
    if made is None or _of(made) == _of(dict(submission.prediction or ())):
        return ""
    return (
        f"Another prediction is locked beside this notebook ({_said(made)}), and lab.check() counts that one; counted here is what "
        "the notebook's own cell says, as in a class."
    )


def _of(made: dict[str, Any]) -> dict[str, Any]:
    """What a prediction says, without when it was made."""
    return {"cause": made.get("cause", ...), "gain": made.get("gain", ...), "device": made.get("device", "cuda")}


def _wrong(cause: Any, gain: Any, device: Any = None) -> str:
    """What is missing or wrong in a prediction; "" when it is complete."""
    if cause is ... or gain is ...:
        return "Fill in both: lab.predict(cause=..., gain=...)."
    if cause not in CAUSES:
        return f"cause={cause!r} is none of the causes below."
    if isinstance(gain, bool) or not isinstance(gain, int | float) or not 0 < gain < 1e6:
        return f"gain={gain!r} is not a number between 1 and a million: 2.5 says 2.5 times as fast."
    if device not in (None, "cuda", "cpu"):
        return f'device={device!r} is not what a gain can be for: "cuda" is a GPU, "cpu" a CPU.'
    if gain < 1:
        times = "half" if gain == 0.5 else f"{gain:g} times"
        return (
            f"{gain:g} would be {times} as fast. A loop that gets {100 * gain:.3g}% faster gains {1 + gain:.4g}; where nothing is "
            "to be gained it is 1."
        )
    return ""


def _said(made: dict[str, Any]) -> str:
    said = f"{made['cause']}, {made['gain']:g} times as fast on {DEVICES[_of(made)['device']]}"
    try:
        when = datetime.fromisoformat(made["time"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return said
    return f"{said}, made {when:%Y-%m-%d %H:%M} UTC"


@contextlib.contextmanager
def _as_warning(lines: list[str], meaning: str) -> Iterator[None]:
    """A folder that cannot be written costs the file, not the answer."""
    try:
        yield
    except (OSError, ValueError) as error:
        lines.append(f"{meaning}: {board.unwritten(error)}")


@contextlib.contextmanager
def _stopped_once() -> Iterator[None]:
    """Within, only the first stop (Ctrl-C, the button) interrupts: impatience must not cut the clearing up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


def _end_children() -> None:
    """After a stop: end whatever the fork server has started, and the server with it. A stop that comes while a child is
    being started leaves one that nobody holds, and a reply that nobody reads."""
    server = parent.fork_server()
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(server._process.pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                process.kill()
    server.close()
    parent.fork_server()  # imports torch again, for the next look
