"""What `grader run` does inside the job: sees its steps, times some of them, records some. Standard library and the job's own
torch only, for the job's Python need not have the grader.

It prints nothing, waits for nothing, and draws no random number. What fails here ends the watching, never the job."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from multiprocessing import util
from statistics import median

import torch
from grader_watch_apart import Apart
from grader_watch_ends import Steps, size_of
from grader_watch_guard import guarded
from grader_watch_loading import Loading
from grader_watch_losses import Losses
from grader_watch_plan import FEWEST, WINDOW_S, alike, planned, warming
from grader_watch_steps import Mark, Parts, Plan, Times, backward_runs_in
from grader_watch_threads import Threads

TOLD_EVERY_S, TOLD_SELDOM_S = 2.0, 10.0  # at first; a job that has run for a while is killed seldom
ASKED_EVERY_S = 0.1  # whether it is time to look: it costs something to know
SAMPLED_EVERY_S, SAMPLED = 30.0, 10  # after the measurement: the parts of so many steps, now and then

ASKED_STEPS = 6  # in which it is seen which levers could change something: well before any is timed
TORCH_SEEN = "torch-seen"  # a file: some process of the job imported torch

watch = None


class Options:
    """What the command line asked for."""

    def __init__(self, given: dict) -> None:
        self.folder: str = given["folder"]
        self.after_s: float = given.get("after_s", 0.0)
        self.at_step: int = given.get("at_step", 0)
        self.every_s: float = given.get("every_s", 0.0)
        self.stacks: bool = given.get("stacks", False)
        self.record: bool = given.get("record", True)
        self.window_s: float = given.get("window_s", WINDOW_S)
        self.losses: int = given.get("losses", 0)  # so many first ones are kept
        self.levers: list[str] = given.get("levers", [])
        self.ask: list[str] = given.get("ask", [])  # levers: whether they could change something
        self.values: dict = given.get("values", {})
        self.step: str = given.get("step", "")  # module:function whose return ends a step


def begin(options: str) -> None:
    """Once, when the job's torch is imported. options: JSON."""
    global watch
    import grader_watch_patches

    watch = Watch(Options(json.loads(options)))
    with contextlib.suppress(OSError):
        open(os.path.join(watch.options.folder, TORCH_SEEN), "x").close()
    if names := watch.options.levers or watch.options.ask:
        import grader_levers

        watch.levers, watch.outermost = (
            grader_levers,
            grader_levers.pull(names, watch.options.values, bool(watch.options.ask)),
        )
    grader_watch_patches.install(watch)
    os.register_at_fork(after_in_child=watch.start_anew)  # a loader's worker, or a rank of its own
    # what multiprocessing forks ends without atexit
    util.register_after_fork(watch, lambda watch: util.Finalize(None, watch.at_exit, exitpriority=1))


class Watch:
    """One process of the job, from its first step to its end."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.levers = self.outermost = None  # in forked processes too
        self.start_anew()

    def start_anew(self) -> None:
        self.over = ""  # why it is
        self.began, self.pid = time.perf_counter(), os.getpid()
        self.steps, self.step = Steps(self.options.step), 0
        self.earlier = 0  # steps of smaller models, before the main training
        self.in_backward, self.threads = False, Threads()  # a step ended within the backward pass that runs
        self.first_at: float | None = None  # the end of the first step
        self.last_at = 0.0  # of the last one
        self.kept = Times()
        self.apart = Apart()
        self.saving = False
        self.loading = Loading()
        self.recording_s = 0.0
        self.skipped = 0  # steps, by a GradScaler
        self.parts = Parts()
        self.sampled_to, self.sample_at = 0, math.inf  # step, time
        self.plan: Plan | None = None
        self.looks: list[dict] = []
        self.cut = ""  # what was still to come when the job ended within a measurement
        self.look_at, self.ask_at, self.told_at, self.tell_at = 0.0, 0.0, 0.0, 0.0
        self.look_at_step = self.options.at_step or math.inf
        self.timing = False  # whether the step that goes on is timed in its parts
        self.compiled, self.compiled_at = 0, 0.0  # graphs so far, and when their number was seen to have grown
        self.losses = Losses(self.options.losses)

    # ---------------------------------------------------------------- what the patches see

    @guarded
    def optimizer_done(self, optimizer) -> None:
        self._part_ends("optimizer")
        if self.threads.beside(self.last_at) and not self.steps.is_larger(optimizer):
            return
        if _capturing():
            self.steps.captured = True  # it steps when its graph is replayed
        elif self.steps.optimizer(optimizer):
            if self.steps.begin_again and not self.looks:
                self._begin_again()
            self.steps.begin_again = False
            if backward_runs_in() < 0:
                self._tick()
            else:  # no profiler may begin or end there
                self.in_backward = True

    def _begin_again(self) -> None:
        """What was counted so far were no steps of the main training."""
        if self.plan is not None and self.plan.recorder is not None:
            self.plan.recorder.stop("it recorded no whole steps")
        self.plan, self.first_at, self.step, self.earlier = None, None, 0, self.earlier + self.step
        self.kept, self.parts, self.apart, self.skipped = Times(), Parts(), Apart(), 0

    @guarded
    def graph_captured(self, graph) -> None:
        self.steps.graph_captured(graph)

    @guarded
    def graph_replayed(self, graph) -> None:
        if not self.threads.beside(self.last_at, False) and self.steps.graph_replayed(graph):
            self._tick()

    @guarded
    def backward_begins(self, tensors, by: str) -> None:
        if self.apart.evaluating and self.apart.in_training_again():
            self._late_end()
        if self.timing and self.threads.trains:
            self.parts.begins("backward", self.step)
        if self.losses.wanted(by) and not self.threads.beside(self.last_at, False):
            self.losses.keep(tensors, by)
        if self.outermost is not None:
            self.outermost.loss_seen(tensors)

    @guarded
    def backward_done(self, by: str) -> None:
        """by: which call it was, `backward` or `grad`."""
        self._part_ends("backward")
        if not self.threads.beside(self.last_at, self.steps.by == by) and (self.steps.backward(by) or self.in_backward):
            self.in_backward = False
            self._tick()

    @guarded
    def scaler_done(self) -> None:
        """A step that a GradScaler skipped is one all the same."""
        if not self.threads.beside(self.last_at) and self.steps.skipped():
            self.skipped += 1
            self._tick()

    @guarded
    def waited(self, iterator, seconds: float, came: bool) -> None:
        """came: whether there was a batch, and not the loader's end."""
        trains = not self.threads.main or self.threads.trains
        if self.apart.evaluating:
            if not (trains and self.apart.in_training_again()):
                return
            self.apart.evaluation_ends(before_s=seconds)
        self._part_ends("data_wait")
        if self.threads.reads_for_another:
            return
        # another thread reads in advance: it makes no step wait, but its batches are what is trained on
        self.loading.waited(iterator, seconds if trains and self.first_at is not None else 0.0, came)

    @guarded
    def saved(self, seconds: float) -> None:
        if self.threads.trains:
            self.apart.checkpoint(seconds)

    @guarded
    def evaluation_begins(self, module) -> None:
        """If this is the model that is trained: not a layer that is frozen, nor a teacher."""
        if self.apart.evaluating or not self.threads.trains or self.apart.of_each_step(module, self.step):
            return
        if 2 * size_of(module.parameters()) >= self.steps.parameters:
            self.apart.evaluation_begins(module)

    @guarded
    def evaluation_ends(self, module) -> None:
        if self.apart.module is not None and self.apart.module() is module:
            self.apart.evaluation_ends()

    def _late_end(self) -> None:
        """Of an evaluation whose end was not seen: the step after is taken to be as long as others. One still evaluated may be a teacher."""
        usual = median(self.kept.times[-50:]) if self.kept.times else math.inf
        self.apart.evaluation_ends(usual, least_s=0.0 if self.apart.in_training_again() else usual)

    @guarded
    def profiler_wanted(self, profile) -> None:
        recorder = self.plan.recorder if self.plan else None
        if recorder is not None and recorder.profile is not None and recorder.profile.profiler not in (None, profile):
            recorder.stop("the job started a profiler of its own")

    # ---------------------------------------------------------------- parts of the steps that are timed

    @guarded
    def part_begins(self, part: str) -> None:
        if self.threads.trains and not self.apart.evaluating:
            self.parts.begins(part, self.step)

    def _part_ends(self, part: str) -> None:
        if self.parts.running and self.threads.trains:
            self.parts.ends(part)

    # ---------------------------------------------------------------- a step

    @guarded
    def tick(self) -> None:
        """The end of a step."""
        self._tick()

    def _tick(self) -> None:
        if self.apart.began is not None:
            self._late_end()
        self.step += self.steps.counted()
        if self.outermost is not None and self.step >= ASKED_STEPS:
            self.outermost = self.outermost.let_go()
        mark = Mark() if self.plan is not None else None
        now = mark.at if mark is not None else time.perf_counter()
        apart_s = self.apart.take()
        self.parts.step_ends(apart_s)
        self.threads.steps()
        if self.first_at is None:
            self.first_at = now
            self.loading.steps_begin(self.step)
        else:
            self.kept.keep(max(0.0, now - self.last_at - apart_s), now)
        if self.plan is None and (now > self.ask_at or self.step >= self.look_at_step) and _time_to_look(self, now):
            self.plan = self._plan()
            self.tell()
            mark = Mark()
        if self.plan is not None:
            self.plan.step(self.step, mark, apart_s)
            if self.plan.read:
                self._looked(self.plan, now)
        elif now > self.sample_at:
            self.sampled_to, self.sample_at = self.step + SAMPLED, now + SAMPLED_EVERY_S
        self.timing = self.step < self.sampled_to or (self.plan is not None and self.plan.times(self.step))
        if self.parts.over:
            self.parts.read()
        if now > self.tell_at:
            self.tell()
        self.last_at = time.perf_counter()
        if self.timing:
            self.parts.step_begins(self.step)

    def plan_file(self) -> str:
        return os.path.join(self.options.folder, f"plan-{len(self.looks)}.json")

    def _plan(self) -> Plan:
        """All ranks of a job follow the first one that had a plan."""
        plan = _planned(self)
        if world() > 1:
            agreed = _agreed(self.plan_file(), plan)
            plan = agreed if agreed["first"] >= self.step else plan
        self.memory = _memory()
        return Plan(plan, self.options.folder, self.options.stacks, lets_go=not self.steps.any_graph)

    def _looked(self, plan: Plan, now: float) -> None:
        """A measurement is complete."""
        self.parts.read()
        self.recording_s += plan.recorder.seconds if plan.recorder else 0.0
        self.look_at_step = math.inf
        self.looks.append(_look(plan, self.step, self.memory))
        self.plan, self.sample_at = None, now + SAMPLED_EVERY_S
        self.look_at = now + self.options.every_s if self.options.every_s else 0.0
        self.tell_at = 0.0  # at once

    # ---------------------------------------------------------------- what is told

    def tell(self) -> None:
        """What is known so far, into a file of this process's own."""
        self.told_at = time.perf_counter()
        silent_s = min(TOLD_SELDOM_S, max(TOLD_EVERY_S, (self.told_at - self.began) / 15))
        # timed steps are seldom held up
        self.tell_at = self.told_at + (silent_s if self.plan is None else TOLD_SELDOM_S)
        if self.looks:  # until then the GPU would be waited for
            self.losses.read()
        told = _told(self)
        path = os.path.join(self.options.folder, f"process-{self.pid}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(json.dumps(told))  # json.dump takes five times as long
        os.replace(path + ".part", path)

    def give_up(self, why: str) -> None:
        self.over = why
        with contextlib.suppress(Exception):
            if self.plan is not None and self.plan.recorder is not None:
                self.plan.recorder.stop(why)
            _look_at_what_there_is(self)
            self.tell()

    def at_exit(self) -> None:
        if os.getpid() == self.pid and self.step and not self.over:
            self.give_up("the job ended")

    def at_once(self) -> None:
        """The job calls os._exit, perhaps because its GPU hangs: nothing is waited for."""
        if os.getpid() == self.pid and self.step and not self.over:
            self.over = "the job ended"
            self.losses.ask_no_more()
            with contextlib.suppress(Exception):
                _look_at_what_there_is(self)
                self.tell()


def _look_at_what_there_is(watch: Watch) -> None:
    """Of a measurement that did not come to its end: the first timed steps say how long a step takes."""
    if watch.plan is not None and watch.plan.windows[0].read:
        watch.parts.read()
        watch.cut = _waits_for(watch)
        watch.looks.append(_look(watch.plan, watch.step, watch.memory))
        watch.plan = None


def _time_to_look(watch: Watch, now: float) -> bool:
    watch.ask_at = now + ASKED_EVERY_S
    if world() > 1 and os.path.exists(watch.plan_file()):  # another rank has begun
        return True
    if watch.looks:
        return 0 < watch.look_at <= now
    if now - watch.first_at < watch.options.after_s:
        return False
    return watch.step >= watch.look_at_step if watch.options.at_step else not _warming(watch, now)


def _warming(watch: Watch, now: float) -> str:
    """What the warm-up waits for; nothing when it is over."""
    graphs = _compiled()
    if graphs != watch.compiled:
        watch.compiled, watch.compiled_at = graphs, now
    since = (watch.first_at or now) + watch.options.after_s
    return warming(watch.kept.times, now - since, now - max(since, watch.compiled_at), watch.loading.loader)


def _waits_for(watch: Watch) -> str:
    """What a measurement that has not come to its end waits for."""
    if watch.plan is not None:
        return watch.plan.waits_for(watch.step)
    if watch.looks or watch.first_at is None:
        return ""
    if watch.apart.began is not None:
        return f"the end of an evaluation, {time.perf_counter() - watch.apart.began:.0f} s long so far"
    if watch.step < watch.options.at_step:
        return f"--at-step {watch.options.at_step:,}"
    if (passed := time.perf_counter() - watch.first_at) < watch.options.after_s:
        return f"--after {watch.options.after_s:g}s, of which {passed:.0f} s had passed"
    return _warming(watch, time.perf_counter()) or "the measurement, which was about to begin"


def _planned(watch: Watch) -> dict:
    plan = planned(
        watch.kept.times[-100:],
        watch.loading.loader,
        watch.options.window_s,
        record=watch.options.record,
        turns=watch.kept.every == 1,  # else some are left out, and no turn is seen
    )
    return {
        **plan,
        # by then all ranks have read it
        "first": watch.step + (math.ceil(1 / plan["step_s"]) + 1 if world() > 1 else 0),
    }


def _look(plan: Plan, step: int, before: dict) -> dict:
    """What a measurement came to, at this step. Times in seconds, memory in bytes."""
    first, second = plan.windows
    recorder, memory = plan.recorder, _memory()
    if "allocated" in memory and "allocated" in before:
        memory["growth_a_step"] = (memory["allocated"] - before["allocated"]) / (step - first.first)
    timed = [first.seconds(), second.seconds()]
    return {
        "at_step": first.first,
        "step_s": timed if second.read else [timed[0], *([timed[1]] if len(timed[1]) >= FEWEST else [])],
        "stationary": alike(*timed, plan.whole),
        "trace": recorder.file if recorder else "",
        "why_no_trace": recorder.why_not if recorder else "",
        "memory": memory,
    }


def _compiled() -> int:
    """How often torch.compile compiled something so far; no version says so elsewhere."""
    utils = sys.modules.get("torch._dynamo.utils")
    return getattr(utils, "counters", {}).get("frames", {}).get("total", 0)


def _told(watch: Watch) -> dict:
    """What is known so far. Times in seconds."""
    cuda = torch.cuda.is_initialized()
    return {
        "pid": watch.pid,
        "host": os.uname().nodename,
        "rank": rank(),
        "world": world(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else watch.steps.device_name(),
        "gpu": str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if cuda else "",
        "steps": watch.step,
        "earlier": watch.earlier,
        "by": watch.steps.by,
        "parameters": watch.steps.parameters,
        "running_s": watch.told_at - watch.began,
        "stepping_s": watch.last_at - watch.first_at if watch.first_at is not None else 0.0,
        **watch.kept.told(),
        "total_s": {"data_wait": watch.loading.wait_s, "recording": watch.recording_s, **watch.apart.total_s},
        "counts": {"batches": watch.loading.count, "skipped": watch.skipped, **watch.apart.counts},
        "loader": watch.loading.loader,
        "batches": watch.loading.told(),
        "batches_of": watch.step - watch.loading.since,  # steps
        "parts": watch.parts.means(),
        "measuring": watch.plan is not None,
        "waits_for": watch.cut or _waits_for(watch),
        "looks": watch.looks,
        "memory": _memory(),
        **(watch.levers.told() if watch.levers else {}),
        "losses": watch.losses.values,
        "over": watch.over,
    }


def _agreed(path: str, mine: dict) -> dict:
    """The plan of the first rank that had one."""
    own = f"{path}.{os.getpid()}"
    with open(own, "w", encoding="utf-8") as file:
        json.dump(mine, file)
    with contextlib.suppress(FileExistsError):
        os.link(own, path)
    os.unlink(own)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _memory() -> dict:
    """Bytes: of the GPU, or of the process where none is used."""
    if not torch.cuda.is_initialized():
        return {"peak": _peak_of_process()}
    return {
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def _peak_of_process() -> int:
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), 0)
    return 0


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def world() -> int:
    return torch.distributed.get_world_size() if _in_a_group() else _number("WORLD_SIZE", "SLURM_NTASKS") or 1


def rank() -> int:
    return torch.distributed.get_rank() if _in_a_group() else _number("RANK", "SLURM_PROCID")


def _in_a_group() -> bool:
    """Ranks that a script starts by itself have nothing in their environment."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _number(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 0)
