"""The notebook tools of a training loop to make faster."""

import json
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader import trace, web_page
from grader.checks.memory import judge_budget
from grader.checks.throughput import MUCH_LOST
from grader.frontends import attempts
from grader.frontends.notebook.base import NEEDS_GPU, NotebookLab
from grader.frontends.notebook.metric_rows import NOT_MEASURED, copy_rows, metric_row, value_of
from grader.frontends.notebook.note import Note
from grader.frontends.notebook.prediction import MEANING, LockedPrediction, lock, locked, problem
from grader.grading.forms import fitted
from grader.labs.lab import CAUSES, Budget, Check, Growth, Lab
from grader.look import Observation, look, peek, profile
from grader.result import Progress
from grader.safe_text import size_text
from grader.sandbox.setting import limits_of
from grader.sandbox.workspace import Workspace
from grader.submission import Submission, predicted_in
from grader.trace.catalogue import METRICS, PEEKED, PROFILED
from grader.trace.words import counted, plain_number

MANY_STEPS = 100
HIDDEN = "A check that section 4 names"  # until the prediction is locked
SHOWN_LOSSES = 12  # and the last one


class LoopLab(NotebookLab):
    """A training loop to make faster."""

    lab: Lab
    steps = (
        (
            "lab.predict(cause=..., gain=...)",
            "comes first: the cause, and how many times as fast the loop can get. Your first prediction is locked",
        ),
        ("%%submission", "the cell with the loop. Change it and run it"),
        (
            "lab.run(), lab.peek()",
            "the losses and time of a few steps, and counts of one step. Use them as often as you like",
        ),
        ("lab.profile()", "where the time of a step goes"),
        ("lab.check()", "the grade, by measurement"),
        ('lab.log("what I changed")', "adds a note to the last check and lists your attempts"),
    )
    _prediction: LockedPrediction | None = None  # for where the file cannot be written
    _workspace: Workspace | None = None

    def _card(self) -> Note:
        made = self._locked()
        return replace(super()._card(), after=[f"Your prediction is locked: {made.in_words()}."] if made else [])

    def _title_of(self, check: Check) -> str:
        """What a trace is asked names the cause: not before the prediction."""
        return HIDDEN if check in self.lab.trace and not self._locked() else check.title

    # ---- the prediction

    def predict(self, cause: Any = ..., gain: Any = ..., device: str | None = None, **unknown: Any) -> None:
        """Say, before the first profile, what holds the loop back and how many times as fast it can get. The first
        complete prediction counts. cause: one of `grader.labs.lab.CAUSES`; gain: a number, 2.5 for 2.5 times; device: what
        the gain is for, "cuda" or "cpu", which has to be said where the lab is graded on a CPU and could be on a GPU."""
        wrong = f"It takes cause, gain and device, and no {', '.join(unknown)}." if unknown else ""
        wrong = wrong or problem(cause, gain, device)
        both = self.device == "cpu" and self.lab.scored_on_both
        if not wrong and device is None and both:
            wrong = 'Say which device your gain is for. Add device="cpu" for this machine, or device="cuda" for a GPU.'
        made = self._locked()
        if made:
            lines = [f"It is {made.in_words()}."]
            again = {"cause": cause, "gain": gain, "device": device or "cuda"}
            if cause is not ... and gain is not ... and made.arguments() != again:
                lines.append("The first prediction counts. If it was wrong, what did it overlook?")
            Note("Your prediction is locked", lines).show()
        elif wrong:
            choices = [(f'"{name}"', MEANING[name]) for name in CAUSES]
            lines = [wrong, "What holds the loop back, and how many times as fast can you make it?"]
            where = ', device="cpu"' * both
            example = f'An answer looks like this: lab.predict(cause="launch-bound", gain=1.5{where}).'
            Note("No prediction yet", lines, [choices], after=[example]).show()
        else:
            self._lock(LockedPrediction.now(cause, gain, device or "cuda"), explicit=device is not None)

    def _lock(self, prediction: LockedPrediction, explicit: bool) -> None:
        """explicit: the call says the device."""
        if not self._written_out(prediction):
            also = f", device={json.dumps(prediction.device)}" if explicit else ""
            lines = [
                "You hand in the cell, and the grader reads it without running it. So write both values into the cell, with their names:",
                f'lab.predict(cause="{prediction.cause}", gain={prediction.gain:g}{also})',
            ]
            Note("No prediction yet", lines).show()
            return
        self._prediction = prediction
        lines = [f"It is {prediction.in_words()}."]
        try:
            lock(self._folder, self.lab.name, prediction)
        except (OSError, ValueError) as error:
            lines.append(f"It counts in this session only, because {attempts.unwritten(error)}")
        Note("Your prediction is locked", lines, after=["Now measure: lab.profile()."]).show()

    def _written_out(self, prediction: LockedPrediction) -> bool:
        """Whether a cell holds this prediction so that it can be read there."""
        cells = [cell for cell in self._recorder.cells if ".predict(" in cell] if self._recorder else []
        read = ({"device": "cuda"} | dict(predicted_in(source) or ()) for source in cells)
        return not cells or prediction.arguments() in read

    def _locked(self) -> LockedPrediction | None:
        return locked(self._folder, self.lab.name) or self._prediction

    def _predicted(self) -> bool:
        if self._locked():
            return True
        lines = ["First say what you expect. Fill in lab.predict(cause=..., gain=...) and run it."]
        lines.append(
            "You learn most from a result when you had expected one. You can use lab.run() and lab.peek() before."
        )
        Note("Predict first", lines).show()
        return False

    # ---- looking

    def run(self, steps: int = 10) -> None:
        """Run your loop for some steps: its losses, and the time of a step."""
        if not isinstance(steps, int) or not 1 <= steps <= 1000:
            Note("lab.run(steps=10)", ["steps is a number from 1 to 1000."]).show()
            return
        self._look(look, lambda seen: self._ran(seen, steps), profiled=False, timed=steps)

    def _ran(self, seen: Observation, steps: int) -> Note:
        over = f"over {counted(steps, 'step{s}')} after {len(seen.losses) - steps} to warm up"
        time_ = f"{plain_number(1e3 * (seen.step_s or math.nan))} ms per step, {over}."
        if self.lab.cause == "input-bound" and steps < MANY_STEPS:
            time_ += " A few steps look fast when the loader had their batches ready. lab.check() times many."
        if self.lab.serves:
            what = "One number for each answer, which the grade compares (after a restart of the kernel the requests differ)"
        else:
            what = "Losses"
        lines = [time_, *_disturbed(seen), *self._memory(seen, steps), f"{what}: {_shortened(seen.losses)}"]
        return Note("Your loop runs", lines, printed=seen.output)

    def _memory(self, seen: Observation, steps: int) -> list[str]:
        """What the lab asks of the loop's memory, in a sentence; nothing in labs that ask nothing."""
        if seen.meter and isinstance(self.lab.memory, Growth):
            before, after = seen.meter.levels
            gpu, main = (
                (b - a) / (after.steps - before.steps) for a, b in ((before.gpu, after.gpu), (before.main, after.main))
            )
            gpu_part = f"{size_text(gpu)} per step on the GPU and " if seen.meter.on_gpu else ""
            few = f" A few steps tell little. Use lab.run({MANY_STEPS})." if steps < MANY_STEPS else ""
            return [f"Memory grew by {gpu_part}{size_text(main)} per step in main memory.{few}"]
        budget = fitted(self.lab, self.device)[0].forms[self.device].budget
        if seen.meter and isinstance(self.lab.memory, Budget) and budget is not None:
            return [judge_budget(self.lab.memory, budget, seen.meter).reason]
        return []

    def peek(self) -> None:
        """Counts of what a step of your loop does. Nothing is timed: they are the same on a busy machine."""
        self._look(peek, self._peeked)

    def _peeked(self, seen: Observation) -> Note:
        assert seen.metrics is not None  # it profiled, and did not fail
        names = [name for name in dict.fromkeys([*self.lab.peek, *PEEKED]) if self._known(seen, name)]
        rows = [metric_row(name, value_of(seen, name)) for name in names]
        at = names.index("syncs") + 1
        would_wait = value_of(seen, "would_wait")
        rows[at:at] = copy_rows(seen.metrics)
        if would_wait is not None:
            rows.insert(at, metric_row("would_wait", would_wait))
        unmeasured = [row[0] for row in rows if row[1] == NOT_MEASURED]
        rows = [row for row in rows if row[1] != NOT_MEASURED]
        after = ["These are counts per step, without timing."]
        if "data_wait" in unmeasured:
            unmeasured.remove("data_wait")
            after.append(
                "data_wait is unknown, because this loop has no DataLoader and no record_function of that name."
            )
        if unmeasured:
            after.append(f"Needs a GPU: {', '.join(unmeasured)}.")
        if would_wait is not None:
            after.append(
                "would_wait counts .item(), `if` on a tensor, format, and a mask as an index. On a GPU .cpu(), synchronize and tensors "
                "made from lists wait as well. On a CPU they leave no mark."
            )
        return Note("What a step does", [], [rows], printed=seen.output, after=after)

    def _known(self, seen: Observation, name: str) -> bool:
        """Samples are counted by a mark that not every data set makes: none may mean that none was marked."""
        return name != "loads_in_main" or name in self.lab.peek or bool(value_of(seen, name))

    def profile(self) -> None:
        """Where the time of a step goes: the timeline of some steps, and what it amounts to."""
        if self._predicted():
            self._look(profile, self._profiled)

    def _profiled(self, seen: Observation) -> Note:
        assert seen.metrics is not None  # it profiled, and did not fail
        asked = [name for check in self.lab.trace if (name := check.metric.partition(".")[0]) in METRICS]
        values = {name: value_of(seen, name) for name in [*PROFILED, *asked] if self._known(seen, name)}
        rows = [metric_row(name, value) for name, value in values.items() if value is not None]
        look_at = "Look for the longest part of a step. Is the training process calculating then, or waiting?"
        if self.device == "cuda":
            look_at = "In the hatched parts the GPU has nothing to do. What does the CPU do meanwhile?"
        lines = [f"A step takes {plain_number(1e3 * (seen.step_s or math.nan))} ms without the profiler. {look_at}"]
        lines += _disturbed(seen)
        lines += [f"The trace is incomplete. {reason[:1].upper()}{reason[1:]}." for reason in seen.metrics.reasons]
        shown = {"your loop": seen.timeline or {}}
        picture = web_page.image(lambda: trace.draw(shown), "Timeline of some steps of your loop")
        after = ["What is the largest part that a change could take away, and how fast would a step be without it?"]
        return Note("Where the time of a step goes", lines, [rows], picture, after, printed=seen.output)

    # ---- the grade

    def check(self, cluster: str | None = None, key: str | Path | None = None) -> None:
        if self._predicted():
            super().check(cluster, key)

    def _submission(self) -> Submission:
        made = self._locked()
        prediction = tuple(made.arguments().items()) if made else None
        return replace(super()._submission(), prediction=prediction)

    def _look(
        self, how: Callable[..., Observation | None], note_of: Callable[[Observation], Note], **options: Any
    ) -> None:
        def looked(progress: Progress) -> Note:
            submission = self._submission()
            shared = {"limits": limits_of(self.quick), "progress": progress, "kept": self._kept(submission.source)}
            seen = how(submission, self.lab, device=self.device, allow_unconfined=True, **shared, **options)
            if seen is None:
                return Note("Not measured", [NEEDS_GPU])
            if seen.message:
                return Note("Your loop failed", [seen.message], printed=seen.output)
            return note_of(seen)

        self._work(looked)

    def _kept(self, source: str) -> Workspace:
        """The place where this source was compiled before, so that it is compiled once for all looks at it. A grade has its own."""
        if self._workspace is None or self._workspace.source != source:
            if self._workspace:
                self._workspace.remove()
            self._workspace = Workspace(source)
            weakref.finalize(self, self._workspace.remove)  # at the latest when the kernel ends
        return self._workspace


def _disturbed(seen: Observation) -> list[str]:
    """That other programs took a good part of what was timed."""
    if seen.lost <= MUCH_LOST:
        return []
    return [
        f"Other programs took {seen.lost:.0%} of the time of these steps. Close them, other notebooks' kernels too, and try again."
    ]


def _shortened(losses: list[float]) -> str:
    shown = [f"{loss:.4f}" for loss in losses]
    if len(shown) > SHOWN_LOSSES + 1:
        shown[SHOWN_LOSSES:-1] = ["…"]
    return " ".join(shown)
