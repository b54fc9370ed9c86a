"""Paired blocks: only one arm runs at a time, each block burns the loader's head start before it is timed."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median_low

from grader import machine
from grader.cores import waited_s
from grader.measure.decision import Pair
from grader.measure.memory import Meter
from grader.sandbox.drive import Drive
from grader.sandbox.parent import Child, turn
from grader.sandbox.processes import Doing, Processes, per_step

CHUNK_S = 0.25  # a burn goes in chunks of about this long
MAX_BURN_CHUNKS = 8
READ_AHEAD = 4  # files that are read by the end of the first steps, in units of those that the starter has read
SERVED_FROM_A_QUEUE = 0.8  # of a step's usual time: what takes less
MAX_PROBED = 12  # cores whose speed is looked at before a pair; it takes some 10 ms each
MOST_OVERSTATED = 1000.0  # a gain that may be too high by so much is none
# Up to so many it worked on one: times are rounded. For a step, what worker processes and threads that load or write take beside the work of
# one core, in seconds (seen: 1.1 to 2.1 ms with one to four workers)
MORE_CORES, HELPERS_S = 1.05, 0.0025


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    block_s: float = 1.5  # length of a timed block
    block_steps: int = 4  # at least
    min_pairs: int = 3
    max_pairs: int = 14
    precision: float = 0.05  # a fraction of all points: pairs are added until the points are known as well as that
    profile_steps: int = 4
    profile_starter: bool = True  # for a picture only, and it takes some seconds
    use_up_s: float = 20.0  # how much longer a loop may run to show that its gain does not live on steps made ahead


# Simulated over noise of 0.1 to 10%, no mark was off by a tenth more often than with three pairs; the rule adds them where they are needed
QUICK = Plan(block_s=0.8, block_steps=2, min_pairs=2, max_pairs=10, precision=0.12, profile_steps=2)


@dataclass(frozen=True)
class Turn:
    seconds: float  # of its steps
    steps: int
    busy_s: float  # of the GPU
    around_s: float = 0.0  # before and after them, while it may have run: until all of it was awake, or stood still


@dataclass
class Arm:
    """One loop under measurement and all that is known about it so far."""

    child: Child
    drive: Drive | None = None  # that its files lie on, in labs that have one
    gpus: int = 0  # that it trains on
    round_of: int = 1  # steps after which their work is the same again
    prepared_for: int | None = None  # steps that what was read before or beside them is for, in labs with a preparation
    meter: Meter | None = None  # of its memory, in labs that ask for it
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0  # all of its running time so far
    step_s: float = math.nan  # latest estimate of the steady time per step
    warm_s: float = 0.0  # seconds of the first steps
    warm_steps: int = 0
    untimed_s: float = 0.0  # seconds of its turns that are not timed: its start, its first steps, its weights and logs
    untimed_busy_s: float = 0.0  # the GPU's work in them
    ran_s: float = 0.0  # of its timed turns: seconds of steps, those of burns included, and the GPU's work
    ran_busy_s: float = 0.0
    ran_steps: int = 0
    ran_main_s: float = 0.0  # of them all: the main process's processor time
    ran_thread_s: float = 0.0  # and its main thread's,
    ran_ready_s: float = 0.0  # with the time that this one waited for a processor,
    ran_all_s: float = 0.0  # that of all processes,
    ran_awake_s: float = 0.0  # and how long they were awake
    # by how much discounted turns took longer than they should, see `discount`; negative: less long
    slower_s: float = 0.0
    slower_busy_s: float = 0.0
    turns: list[Turn] = field(default_factory=list)  # the timed ones, one by one
    # looks at its ranks, before and after each of them
    looks: list[tuple[Doing | None, Doing | None]] = field(default_factory=list)
    profiled: Doing | None = None  # what its ranks did per step while they were profiled
    compiled: int = 0
    recompiled: bool = False  # torch.compile made a graph inside a timed block

    def prepare(self, limit_s: float) -> float:
        """The submission's own preparation of its data; returns the seconds it took. What it reads is not counted."""
        seconds = self.child.prepare(limit_s)
        if self.drive:
            self.drive.forget()
        return seconds

    def read_ahead_s(self, starter: Arm) -> float:
        """Seconds in which it read, after the first steps, what should have been prepared; 0 in labs without a preparation. A loader
        that begins on its next batches may read READ_AHEAD times as much as the starter."""
        if (
            not self.prepared_for
            or not self.drive
            or not starter.drive
            or self.drive.counts.reads <= READ_AHEAD * starter.drive.counts.reads
        ):
            return 0.0
        return max(0.0, self.untimed_s - self.warm_steps * self.step_s)

    def counted(self) -> dict[str, float]:
        """What was counted outside the trace, per step."""
        counts = self.child.counted()
        if self.drive:
            # a whole data set that was read at the start is none the less for a grade that goes on for long
            steps = min(self.child.steps, self.prepared_for or self.child.steps)
            read = self.drive.counts
            counts["drive_reads"] = read.reads / steps
            counts["loads_in_main"] = read.reads_in_main / steps  # whatever the process says of itself
        return counts

    def profile(self, steps: int, file: str, with_stack: bool = False) -> dict[str, int]:
        """Record `steps` steps of the loop at its own pace into `file`; what torch.compile has done, as `Child.profile`. Workers fill
        their queue while the profiler starts, so the loop runs on before it is recorded, until it is about as slow as it was."""
        self.child.start_profiler(with_stack)
        for _ in range(MAX_BURN_CHUNKS):
            if self.run(self._steps_of(CHUNK_S)) > SERVED_FROM_A_QUEUE * self.step_s:
                break
        before = self._doing()
        losses, compiled = self.child.profile(steps, file)
        self.losses += losses
        self.profiled = per_step([(before, self._doing())], steps + 2)
        return compiled

    def _doing(self) -> Doing | None:
        return self.child.processes.doing(self.child.setting.ranks)

    @property
    def doing(self) -> Doing | None:
        """What its ranks did per step in its timed turns."""
        return per_step(self.looks, self.ran_steps)

    @contextlib.contextmanager
    def untimed_turn(self) -> Iterator[None]:
        """A turn of this frozen arm that is not timed. How long it took is kept: see `overstated`."""
        awake_s = self.child.freezer.awake_s
        with self._turn() as busy:
            yield
        self.untimed_s += self.child.freezer.awake_s - awake_s
        self.untimed_busy_s += busy()

    @contextlib.contextmanager
    def timed(self, core: int | None = None) -> Iterator[None]:
        """A turn of this frozen arm for blocks."""
        processes, freezer = self.child.processes, self.child.freezer
        seconds, steps, awake_s = self.seconds, len(self.losses), freezer.awake_s
        main_s, all_s = processes.main_seconds(), processes.cpu_seconds()
        thread_s, held_up_s = processes.main_thread()
        before = self._doing()
        with self._turn(core) as busy:
            yield
        self.looks.append((before, self._doing()))
        self.ran_main_s += processes.main_seconds() - main_s
        self.ran_all_s += processes.cpu_seconds() - all_s
        ran_s, ready_s = processes.main_thread()
        self.ran_thread_s += ran_s - thread_s
        self.ran_ready_s += ran_s - thread_s + ready_s - held_up_s
        self.ran_awake_s += freezer.awake_s - awake_s
        around_s = freezer.awake_s - awake_s - (self.seconds - seconds)
        self.turns.append(Turn(self.seconds - seconds, len(self.losses) - steps, busy(), around_s))
        self.ran_s += self.turns[-1].seconds
        self.ran_steps += self.turns[-1].steps
        self.ran_busy_s += self.turns[-1].busy_s

    @property
    def main_thread(self) -> tuple[float, float] | None:
        """Shares (0 to 1): of the processor time of its timed turns, the main thread's; of these turns, when that one slept."""
        if not self.ran_thread_s or not self.ran_awake_s:  # it has ended, or the kernel does not tell
            return None
        slept = max(0.0, 1 - self.ran_ready_s / self.ran_awake_s)
        return min(1.0, self.ran_thread_s / max(self.ran_all_s, self.ran_thread_s)), slept

    def cores(self, waits: bool) -> float:
        """On how many cores at once it worked in its timed turns, all processes and threads together; 1 where that was about one. waits:
        it waits much, so it is the main thread's own work that tells for how long it worked."""
        worked_s = self.ran_thread_s if waits else self.ran_awake_s
        cores = (self.ran_all_s - HELPERS_S * self.ran_steps) / worked_s if worked_s else 1.0
        return cores if cores > MORE_CORES else 1.0

    @contextlib.contextmanager
    def _turn(self, core: int | None = None) -> Iterator[Callable[[], float]]:
        """Gives a function that says, afterwards, how long the GPU worked: also on what was queued when the turn ended."""
        with machine.watch_busy(self.gpus) as busy:
            with turn(self.child, core):
                yield busy
            if self.gpus:
                machine.wait_idle(gpus=self.gpus)

    def metered(self) -> contextlib.AbstractContextManager[None]:
        """Have this turn's memory looked at, where the lab asks for it."""
        return self.meter.turn() if self.meter else contextlib.nullcontext()

    def reaching_s(self, step: int) -> float:
        """Seconds of running time after the first steps, at its present pace, when it has made `step` steps in all."""
        return self.seconds - self.warm_s + (step - len(self.losses)) * self.step_s

    def run(self, steps: int) -> float:
        """Run `steps` steps; returns seconds per step."""
        expected = None if math.isnan(self.step_s) else steps * self.step_s
        seconds, losses, self.compiled = self.child.run(steps, expected, first=not self.warm_steps)
        self.losses += losses
        self.seconds += seconds
        return seconds / steps

    def warm_up(self, steps: int) -> None:
        """The first `steps` steps (two or more). The first holds compilation and start-up; the second tells how long the rest may take."""
        self.run(1)
        self.step_s = self.run(1)
        if steps > 2:
            self.step_s = self.run(steps - 2)
        self.warm_s, self.warm_steps = self.seconds, len(self.losses)

    @property
    def compile_s(self) -> float:
        """Seconds that the first steps took beyond as many steady ones: start-up, and compilation, for each new shape again."""
        return max(0.0, self.warm_s - self.warm_steps * self.step_s)

    def block(self, plan: Plan) -> float:
        """Burn until the rate is stationary, then time one block with no pause before it. Returns seconds per step.

        While a loop is frozen nothing fills its loader's queues, but what was in flight is there at once after the
        thaw: served from a full queue, steps look faster than they are. Nobody can know how deep a queue is, so `burn`
        runs chunks until one is not slower than the one before (nor much faster, as while clocks still ramp up).

        An honest burn is about as fast as the block, or faster. One that was slower can have been used to make steps
        ahead and to hand them over when time counts: then the whole turn counts."""
        seconds, done = self.seconds, len(self.losses)
        self.burn()
        steps = max(plan.block_steps, self._steps_of(plan.block_s))
        compiled = self.compiled
        self.step_s = self.run(steps)
        self.recompiled |= self.compiled > compiled
        # by however little: where 1.3x earns all points, a tenth of the speed is a third of them. Honest turns were slower than their
        # blocks by at most 2%, with eight loader workers by 9%
        return max(self.step_s, (self.seconds - seconds) / (len(self.losses) - done))

    def run_on(self, step_s: float, busy_a_step: float) -> None:
        """A turn of about a second in which steps that were made ahead are used up; it has to keep this pace: see `discount`."""
        with self.timed():
            self.run(self._steps_of(1.0))
        self.discount(self.turns[-1], step_s, busy_a_step)

    def discount(self, turn: Turn, step_s: float, busy_a_step: float) -> None:
        """What turns that were timed, but decide nothing, took beyond the pace of those that do, in seconds a step and of the GPU's work a step,
        does not count as timed: more steps can have been made in them than were handed over. They count together, as unequal steps even out."""
        before = max(0.0, self.slower_s), max(0.0, self.slower_busy_s)
        self.slower_s += turn.seconds - turn.steps * step_s
        self.slower_busy_s += turn.busy_s - turn.steps * busy_a_step
        slow_s, slow_busy_s = max(0.0, self.slower_s) - before[0], max(0.0, self.slower_busy_s) - before[1]
        self.ran_s, self.untimed_s = self.ran_s - slow_s, self.untimed_s + slow_s
        self.ran_busy_s, self.untimed_busy_s = self.ran_busy_s - slow_busy_s, self.untimed_busy_s + slow_busy_s

    def _steps_of(self, seconds: float) -> int:
        return whole_rounds(seconds, self.step_s, self.round_of)

    def burn(self) -> None:
        before = math.inf  # the first chunk is never enough
        for _ in range(MAX_BURN_CHUNKS):
            now = self.run(self._steps_of(CHUNK_S))
            stationary = 0.8 < now / before < 1.1
            before = self.step_s = now
            if stationary:
                return


def whole_rounds(seconds: float, step_s: float, round_of: int = 1) -> int:
    """How many steps last about `seconds`: a multiple of `round_of` (see `Form.round`), and whole rounds of most counts of
    loader workers, which deliver one batch each; a block that ends within a round measures where it ended."""
    steps = math.ceil(seconds / step_s)
    whole = math.lcm(round_of, 1 if steps == 1 else 2 if steps < 7 else 12)
    return math.ceil(steps / whole) * whole


def pair(starter: Arm, submission: Arm, plan: Plan, before_block: Callable[[], None] = lambda: None) -> Pair:
    """One pair of blocks, in random order. Both arms come and leave frozen; `before_block` runs while both are. Both begin on the same
    core, another one in each pair: pairs of a loop against itself scatter less then (data/measured/decision.md)."""
    times: dict[str, tuple[float, float]] = {}
    core = draw_core()
    arms = [("starter", starter), ("submission", submission)]
    random.shuffle(arms)
    for name, arm in arms:
        before_block()
        # looked at while the arm is frozen: it takes some time, in which a loop that ran could make steps ahead
        lost = lost_since(arm.child.processes)
        with arm.metered(), arm.timed(core):
            seconds = arm.block(plan)
        times[name] = seconds, lost()
    (starter_s, starter_lost), (submission_s, submission_lost) = times["starter"], times["submission"]
    return Pair(starter_s, submission_s, starter_lost, submission_lost)


def overstated(submission: Arm, starter: Arm, by_gpu: bool) -> float:
    """By what factor (1 or more, at most MOST_OVERSTATED) the submission may seem faster than it is, had it used its
    untimed turns to make steps ahead and handed them over, at whatever pace, in its timed ones.

    by_gpu: the GPU's work in the untimed turns counts, since compiling takes little of it; but loading batches ahead takes
    none either. Else, and where the GPU seems never to work, their time counts. Both beyond the first steps, and beyond what
    the starter's untimed turns took. What lies around the steps of timed turns always counts by time."""
    longest = max((turn.around_s for turn in starter.turns), default=0.0)
    around_s = sum(turn.around_s for turn in submission.turns) - longest * len(submission.turns)
    around = max(0.0, around_s) / submission.ran_s
    ours, theirs = (arm.ran_busy_s / arm.ran_steps for arm in (submission, starter))
    if by_gpu and min(ours, theirs) > 0:
        usual = max(0.0, starter.untimed_busy_s - starter.warm_steps * theirs)
        ahead = (submission.untimed_busy_s - usual) / min(ours, theirs) - submission.warm_steps
        share_made = 1 - max(0.0, ahead) / submission.ran_steps  # in the timed turns, of what was handed over there
        return min(MOST_OVERSTATED, (1 + around) / max(share_made, 1 / MOST_OVERSTATED))
    ours, theirs = (max(0.0, arm.untimed_s - arm.warm_steps * arm.step_s) for arm in (submission, starter))
    return min(MOST_OVERSTATED, 1 + around + max(0.0, ours - theirs) / submission.ran_s)


def draw_core() -> int:
    """One of this process's cores, by chance, but none that is much faster or slower now than most of them: cores of a virtual machine
    are shared with strangers, and 16 of them did the same work in 43 to 82 ms."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 4:  # too few to say what is usual
        return random.choice(cores)
    return random.choice(usual(core_times(random.sample(cores, min(len(cores), MAX_PROBED)))))


def core_times(cores: Iterable[int]) -> dict[int, float]:
    """Seconds that the same work takes now on each of these cores, which this process may use: the better of two."""
    own, times = os.sched_getaffinity(0), {}
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})  # of this thread alone
            times[core] = min(_work() for _ in range(2))
    finally:
        os.sched_setaffinity(0, own)
    return times


def _work() -> float:
    began = time.perf_counter()
    sum(i * i % 7 for i in range(20_000))
    return time.perf_counter() - began


def usual(times: dict[int, float]) -> list[int]:
    """The keys whose times differ from the median by a tenth at most."""
    median = median_low(times.values())
    return [key for key, time in times.items() if 0.9 * median <= time <= 1.1 * median]


def lost_since(processes: Processes, times_them: bool = True) -> Callable[[], float]:
    """Gives a function that says the share of the time since now that these lost to other programs.

    That is how long one of their threads waited for a processor, and the grader where it times them, but no more than the others'
    share of the processors' work, for a loop can be in its own way. Time that other virtual machines took comes on top."""
    began, waited, own = time.monotonic(), processes.waited(), processes.cpu_seconds()
    grader_waited = waited_s("thread-self")
    worked, stolen = machine.processor_time()

    def share() -> float:
        passed, now = time.monotonic() - began, processes.waited()
        most = max((seconds - waited.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)
        most += times_them * (waited_s("thread-self") - grader_waited)
        ours = processes.cpu_seconds() - own
        done, taken = (after - before for after, before in zip(machine.processor_time(), (worked, stolen), strict=True))
        others = max(0.0, done - ours) / max(done, 1e-9)
        return min(0.95, min(most / passed, others) + taken / max(done + taken, 1e-9))

    return share
