"""What is done with a job's steps: how long they take, and the recording of some."""

from __future__ import annotations

import array
import contextlib
import gc
import inspect
import os
import time
from statistics import fmean

import torch
from grader_watch_apart import held_up_s

DEEPEST = 20  # parts within parts
LETS_GO = (12, 6)  # CUDA: the first version in which its profiling library can be ended without harm to CUDA graphs

QUIET = "99"  # KINETO_LOG_LEVEL at which the profiler writes no lines of its own
KEPT = 100_000  # groups of steps; of more, two become one
TOLD = 1000  # of them, alike: writing them costs some microseconds each
GOLDEN = 0.6180339887  # its multiples, less their whole parts, fill 0 to 1 evenly
HELD_UP_EVERY_S = 0.1  # that it is asked: it costs some microseconds
backward_runs_in = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # this thread: a number, -1 for none


def never_compiled(code, below: bool = False) -> None:
    """By torch.compile; nor what it calls `below`. As torch._dynamo's own skip_code, whose import takes seconds."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # since PyTorch 2.7
        kinds = frames._FrameAction
        frames.set_code_exec_strategy(
            code, frames._FrameExecStrategy(kinds.SKIP, kinds.SKIP if below else kinds.DEFAULT)
        )


def _place(group: int, size: int) -> int:
    """Of one step in a group, another one in each: steps that come in turns are all among them."""
    return int(group * GOLDEN % 1 * size)


class Times:
    """Host seconds of the steps in groups of `every`: the mean of each, and one of its steps."""

    def __init__(self) -> None:
        self.times, self.means = array.array("d"), array.array("d")
        self.every = 1
        self.count, self.sum_s, self.one_s = 0, 0.0, 0.0  # of the group that goes on
        self.held_up = array.array("d")  # seconds that other programs had the processor, until the end of each group
        self.held_up_s = self.ask_at = 0.0

    def keep(self, seconds: float, now: float) -> None:
        if now > self.ask_at:
            self.held_up_s, self.ask_at = held_up_s(), now + HELD_UP_EVERY_S
        if self.count == _place(len(self.times), self.every):
            self.one_s = seconds
        self.count += 1
        self.sum_s += seconds
        if self.count == self.every:
            self.times.append(self.one_s)
            self.means.append(self.sum_s / self.every)
            self.held_up.append(self.held_up_s)
            self.count, self.sum_s = 0, 0.0
            if len(self.times) >= KEPT:
                *fewer, self.every = *self._groups(2), 2 * self.every
                self.times, self.means, self.held_up = (array.array("d", each) for each in fewer)

    def _groups(self, size: int) -> tuple[list[float], list[float], list[float]]:
        """One of the times, the mean and the end of each group of so many; what is left over lies before the first."""
        starts = range(len(self.times) % size, len(self.times), size)
        times = [self.times[at + _place(n, size)] for n, at in enumerate(starts)]
        means = [sum(self.means[at : at + size]) / size for at in starts]
        return times, means, [self.held_up[at + size - 1] for at in starts]

    def told(self) -> dict:
        times, means, held_up = self._groups(-(-len(self.times) // TOLD) or 1)
        return {
            "times": [round(seconds, 7) for seconds in times],
            "means": [round(seconds, 7) for seconds in means],
            "held_up": [round(seconds, 3) for seconds in held_up],
        }


class Mark:
    """A moment on the host and on the GPU's stream. Nothing is waited for: an event is read once it has happened."""

    __slots__ = ("at", "event")

    def __init__(self) -> None:
        self.at, self.event = time.perf_counter(), None
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    @property
    def happened(self) -> bool:
        return self.event is None or self.event.query()

    def until(self, later: Mark) -> float:
        """Seconds; on the GPU where both happened there."""
        if self.event is not None and later.event is not None and later.happened:
            return self.event.elapsed_time(later.event) / 1000
        return later.at - self.at


class Window:
    """Steps that are timed, without a profiler: from the end of step `first` to the end of step `last`."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.marks: list[Mark] = []
        self.apart_s: list[float] = []  # evaluation and checkpoints of each step

    def step(self, step: int, mark: Mark, apart_s: float) -> None:
        if self.first <= step <= self.last:
            self.marks.append(mark)
            self.apart_s.append(apart_s)

    def runs(self, step: int) -> bool:
        return self.first <= step < self.last

    @property
    def read(self) -> bool:
        """Whether all of it is over, on the GPU too."""
        return len(self.marks) == self.last - self.first + 1 and self.marks[-1].happened

    def seconds(self) -> list[float]:
        """Of each step, without evaluation and checkpoints."""
        pairs = zip(self.marks, self.marks[1:], self.apart_s[1:], strict=False)
        return [max(0.0, before.until(after) - apart) for before, after, apart in pairs]


class Parts:
    """How long some steps take, and their parts: data_wait, backward, optimizer. A part may come several times in a step. All are
    measured on the GPU's own time, so that a wait that its queue hides is none, and parts of a step add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[int, float]] = {}  # of each step
        self.whole: tuple[int, Mark] | None = None  # the step that goes on
        self.running: list[tuple[str, int, Mark]] = []  # the innermost last
        self.over: list[tuple[str, int, Mark, Mark]] = []

    def begins(self, part: str, step: int) -> None:
        if len(self.running) > DEEPEST:  # calls that never returned
            self.running.clear()
        mark = Mark()
        if self.running and self.running[-1][0] == "backward":  # an optimizer that steps within it
            self.over.append((*self.running[-1], mark))
        self.running.append((part, step, mark))

    def ends(self, part: str) -> None:
        if self.running and self.running[-1][0] == part:
            self.over.append((*self.running.pop(), Mark()))
            if self.running:  # an optimizer that was given a closure: its own part is what comes after backward
                self.running[-1] = (*self.running[-1][:2], self.over[-1][3])

    def step_begins(self, step: int) -> None:
        self.whole = (step, Mark())

    def step_ends(self, apart_s: float) -> None:
        if self.whole is not None:
            (step, begun), self.whole = self.whole, None
            self.seconds.setdefault("step", {})[step] = -apart_s
            self.over.append(("step", step, begun, Mark()))

    def read(self) -> None:
        """Those that the GPU is done with."""
        waiting = []
        for part, step, begun, ended in self.over:
            if ended.happened:
                steps = self.seconds.setdefault(part, {})
                steps[step] = steps.get(step, 0.0) + begun.until(ended)
            else:
                waiting.append((part, step, begun, ended))
        self.over = waiting

    def means(self) -> dict[str, float]:
        """Of a step, over the same steps for all parts: those that are over, on the GPU too."""
        waiting = {step for _, step, _, _ in self.over}
        steps = [step for step in self.seconds.get("step", {}) if step not in waiting]
        if not steps:
            return {}
        return {part: max(0.0, fmean(of.get(step, 0.0) for step in steps)) for part, of in self.seconds.items()}


class Collections:
    """Marks collections of garbage, which PyTorch records beside stacks only; in C, for one can begin at any line of Python."""

    def __init__(self) -> None:
        self.mark = None

    def __call__(self, phase: str, info: dict) -> None:
        if phase == "start":
            self.mark = torch._C._profiler._RecordFunctionFast("Python GC")
            self.mark.__enter__()
        elif self.mark is not None:
            self.mark.__exit__(None, None, None)
            self.mark = None


class Recorder:
    """The profiler over `active` steps, after `warm` ones that it only warms up in."""

    def __init__(self, folder: str, first: int, warm: int, active: int, stacks: bool, lets_go: bool = False) -> None:
        self.folder, self.first, self.last = folder, first, first + warm + active
        self.lets_go = lets_go  # of CUDA's profiling library, at the end
        self.warm, self.active, self.stacks = warm, active, stacks
        self.profile = None
        self.collections = Collections()
        self.file = self.why_not = ""
        self.seconds = 0.0  # that it held the job up: its start, and writing the file

    def step(self, step: int) -> None:
        if step == self.first or self.profile is not None:
            began = time.perf_counter()
            try:
                if self.profile is None:
                    self._start()
                else:
                    if step == self.last and self.lets_go:
                        _let_go()
                    self.profile.step()
            except BaseException:  # Ctrl-C is the job's, and comes at any line
                self.stop("it was interrupted")
                raise
            if step == self.last:
                self._ended()
            self.seconds += time.perf_counter() - began

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():
            self.why_not = "the job's own profiler was running"
            return
        activity = torch.profiler.ProfilerActivity
        on = [
            activity.CPU,
            *[kind for kind in (activity.CUDA, activity.XPU) if kind in torch.profiler.supported_activities()],
        ]
        schedule = torch.profiler.schedule(wait=0, warmup=self.warm, active=self.active, repeat=1)
        # without acc_events some versions warn, on the job's standard error
        quiet = {"acc_events": True} if "acc_events" in inspect.signature(torch.profiler.profile).parameters else {}
        self.profile = torch.profiler.profile(
            activities=on,
            schedule=schedule,
            on_trace_ready=self._write,
            record_shapes=True,
            with_stack=self.stacks,
            **quiet,
        )
        with _quiet():
            self.profile.start()
        if hasattr(torch._C._profiler, "_RecordFunctionFast"):
            gc.callbacks.append(self.collections)
        # its end would turn each event into a Python object, for seconds; the file is written without them. No version has an
        # option for it that is quiet: acc_events does it at once, and before 2.9 so does every profiler.
        self.profile.profiler._parse_kineto_results = lambda *_, **__: []

    def _ended(self) -> None:
        self.profile = None
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self.collections)

    def _write(self, profile) -> None:
        name = os.path.join(self.folder, f"trace-{os.getpid()}-{self.first}.json")
        path, folder = name + ".part", os.open(self.folder, os.O_RDONLY)
        if os.fsencode(path) != path.encode("utf-8", "replace"):  # torch takes all for UTF-8, whatever the locale has
            path = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
        try:
            profile.export_chrome_trace(path)
            os.replace(name + ".part", name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name + ".part")
            raise
        finally:
            os.close(folder)
        self.file = name

    def stop(self, why: str) -> None:
        """At once: the job wants the profiler for itself, or ends."""
        if self.profile is not None:
            profile = self.profile
            self._ended()
            self.why_not = self.why_not if self.file else why
            profile.on_trace_ready = None
            with contextlib.suppress(Exception):  # what an interruption left half ended cannot be ended again
                profile.stop()
                if torch._C._autograd._profiler_enabled():  # it was interrupted before it ended
                    profile.profiler.__exit__(None, None, None)


@contextlib.contextmanager
def _quiet():
    """The profiler reads this when a process starts one for the first time, and by then the job may have emptied its environment."""
    name = "KINETO_LOG_LEVEL"
    given = name in os.environ
    os.environ.setdefault(name, QUIET)
    try:
        yield
    finally:
        if not given:
            del os.environ[name]


def _let_go() -> None:
    """Without this, CUDA's profiling library stays attached, and each launch takes longer until the job ends: by 10 to 20% of a step,
    says https://github.com/pytorch/pytorch/issues/144455. PyTorch reads the variable when profilers begin and end."""
    version = tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])
    if torch.cuda.is_initialized() and version >= LETS_GO:
        os.environ.setdefault("TEARDOWN_CUPTI", "1")


class Plan:
    """Two windows of timed steps, and recorded ones between them."""

    def __init__(self, plan: dict, folder: str, stacks: bool, lets_go: bool = False) -> None:
        first, timed = plan["first"], plan["timed"]
        self.whole: int = plan["whole"]  # steps of a round
        self.recorder = None
        second = first + timed
        if plan["active"]:
            self.recorder = Recorder(folder, second + 1, plan["warm"], plan["active"], stacks, lets_go)
            second = self.recorder.last + plan["warm"]  # until the loader's queue is as it was
        self.windows = [Window(first, first + timed), Window(second, second + timed)]

    def step(self, step: int, mark: Mark, apart_s: float) -> None:
        for window in self.windows:
            window.step(step, mark, apart_s)
        if self.recorder is not None:
            self.recorder.step(step)

    def times(self, step: int) -> bool:
        """Whether the step that begins now is timed."""
        return any(window.runs(step) for window in self.windows)

    @property
    def read(self) -> bool:
        return all(window.read for window in self.windows)

    def waits_for(self, step: int) -> str:
        """Which steps are still to be timed or recorded."""
        first, second = self.windows
        left = f"the measurement, of which {max(0, second.last - step):,} steps were still to come"
        if step < first.last:
            done, most, what = step - first.first, first.last - first.first, "timed steps"
        elif self.recorder is not None and step <= self.recorder.last:
            done, most, what = step - self.recorder.first - self.recorder.warm, self.recorder.active, "recorded steps"
        else:
            done, most, what = step - second.first, second.last - second.first, "second timed steps"
        rounds = f" in whole rounds of {self.whole}" if self.whole > 1 else ""
        return f"{left}: {max(0, done):,} of {most:,} {what}{rounds} were done"
