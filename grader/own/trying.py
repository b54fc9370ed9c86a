"""Each lever alone on a job, in fresh processes in turns with the job as it is; then those that paid, on top of each other."""

import contextlib
import math
import os
import re
import select
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, geometric_mean, median
from typing import Any

from grader.errors import UserError
from grader.measure import decision
from grader.own.running import Files, Seen, end, mean_step_s, never_called, of_the_job, run_watched
from grader.paths import temporary

NOISE = 0.015  # least relative sd between two processes of one job to believe
PROMISING = 1.03  # a lever that gains less in its first run is not measured again
RUNS = 3  # of each lever that is promising, and as many as it is beside them
BASELINE_EVERY = 4  # runs, so that a machine that gets warm does not look like a gain
LOSSES = 20  # the first ones, that are compared
ROUNDING = 2**-7  # by how much losses may part for rounding: a few of bfloat16's steps
SPENT = "the budget was spent"
NO_OPTION = "no optimizer of torch.optim with this option was made"
NO_ATTENTION = "no softmax chain of attention was seen outside of compiled code"
NO_GPU = "it is for CUDA's GPUs, and this job used none"
DEBUGGING = {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF"}  # switched off
INPUT_S, INPUT = 1.0, 1 << 26  # of waiting for standard input, and bytes of it
LEAST_S = 5.0  # of budget, for one more run to be begun


@dataclass(frozen=True)
class Lever:
    """What can be changed from outside."""

    name: str  # in watch/grader_levers.py
    title: str
    write: str  # what to write in the script to have it
    gpu: bool = False  # does nothing without one
    values: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    absent: str = "no module was called in training"  # where it found nothing to change and said no more


def levers(cores: int, near: Sequence[int] = ()) -> list[Lever]:
    """All of them, for a job that may use so many cores."""
    allocator = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    found = [
        Lever("no_debugging", "debugging switched off", "no anomaly detection, profiler, CUDA_LAUNCH_BLOCKING, sync debug mode or TORCH_DISTRIBUTED_DEBUG", environment=DEBUGGING, absent="none was switched on"),
        *_loaders(cores),
        Lever("tf32", "TF32", 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True', gpu=True),
        Lever("autocast", "autocast", "with torch.autocast(device, torch.bfloat16): around the model and the loss (a GPU older than Ampere: torch.float16 and a GradScaler)"),
        Lever("channels_last", "channels_last", "model.to(memory_format=torch.channels_last), and the images too"),
        Lever("benchmark", "cudnn.benchmark", "torch.backends.cudnn.benchmark = True", gpu=True),
        Lever("attention", "fused attention", "F.scaled_dot_product_attention(q, k, v, ...) for softmax(q @ k.T) @ v; is_causal=True where the mask is causal", absent=NO_ATTENTION),
        Lever("fused", "fused optimizer", "optimizer = torch.optim.AdamW(..., fused=True)", absent=NO_OPTION),
        Lever("foreach", "foreach optimizer", "optimizer = torch.optim.AdamW(..., foreach=True)", absent=NO_OPTION),
        Lever("compile", "torch.compile", "model.compile()"),
        Lever("compile_graphs", "torch.compile with CUDA graphs", 'model.compile(mode="reduce-overhead")', gpu=True),
        Lever("non_blocking", "non_blocking copies", "batch.to(device, non_blocking=True)", gpu=True, absent="no tensor in pinned memory was copied"),
        Lever("collector", "collector frozen", "after the first steps: gc.collect(); gc.freeze(); gc.disable()", absent="too few steps of an optimizer"),
        Lever("expandable_segments", "expandable segments", "PYTORCH_ALLOC_CONF=expandable_segments:True", gpu=True, environment=allocator),
    ]  # fmt: skip
    if near:
        shown = f"taskset -c {','.join(map(str, near))} before the command"
        found.append(Lever("affinity", "cores near the GPU", shown, gpu=True, values={"near": list(near)}))
    if cores > 4:
        found.append(Lever("threads", "4 threads", "torch.set_num_threads(4)", values={"threads": 4}))
    return found


def _loaders(cores: int) -> list[Lever]:
    """A small sweep."""
    counts = sorted({max(1, cores // 4), max(1, cores // 2), max(1, cores - 1)})
    write = "DataLoader(..., num_workers={}, persistent_workers=True, pin_memory=True, prefetch_factor=4)"
    return [
        Lever(
            "loader",
            f"{n} worker{'s' * (n > 1)}",
            write.format(n),
            values={"workers": n},
            absent="no DataLoader of torch.utils.data was made",
        )
        for n in counts
    ]


@dataclass
class Rung:
    """Some levers at once, and what they came to."""

    levers: tuple[Lever, ...]
    step_s: list[float] = field(default_factory=list)  # of each run
    lost: list[float] = field(default_factory=list)  # share of its time, 0 to 1, that other programs took
    peak: float = 0.0  # bytes of GPU memory
    losses: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    write: dict[str, str] = field(
        default_factory=dict
    )  # by a lever's name, where the job shows more than `Lever.write` says
    why_not: str = ""  # nothing was measured
    gain: decision.Gain | None = None  # over the job as it is; or over the rung below
    said: str = ""
    apart: float | None = None  # how far its losses part from those of the job as it is, relative; None for unknown

    @property
    def mean_s(self) -> float:
        """Seconds per step, over its runs: such that a gain is the ratio of two of them."""
        return geometric_mean(self.step_s)

    @property
    def alone_s(self) -> list[float]:
        """Of each run, without the time that other programs took."""
        return [step_s * (1 - lost) for step_s, lost in zip(self.step_s, self.lost, strict=True)]

    @property
    def broken(self) -> bool:
        """Whether its losses became NaN or infinite, and those of the job as it is did not."""
        return self.apart == math.inf

    @property
    def to_write(self) -> list[str]:
        """In the script, a line for each lever."""
        return [self.write.get(lever.name, lever.write) for lever in self.levers]

    @property
    def title(self) -> str:
        return " + ".join(lever.title for lever in self.levers) or "as it is"


@dataclass
class Tried:
    baseline: Rung = field(default_factory=lambda: Rung(()))
    alone: list[Rung] = field(default_factory=list)
    ladder: list[Rung] = field(default_factory=list)  # each on top of the one before
    comparable: bool = True  # two runs as it is have the same losses
    seconds: float = 0.0
    complete: bool = True  # the budget was enough
    longest_s: float = 0.0  # that one run took

    @property
    def needed_s(self) -> float:
        """About how long it takes to run those once that had no run, and to measure those that pay again."""
        left = sum(rung.why_not == SPENT for rung in self.alone) or 1
        return self.seconds + (RUNS + left + left // (BASELINE_EVERY - 1)) * self.longest_s

    @property
    def runs(self) -> int:
        return sum(len(rung.step_s) for rung in [self.baseline, *self.alone, *self.ladder])


class _Budget:
    def __init__(self, seconds: float) -> None:
        self.until, self.longest = time.monotonic() + seconds, LEAST_S

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    def enough(self) -> bool:
        """For one more run as long as the longest so far."""
        return self.left_s > self.longest


def try_levers(
    command: Sequence[str],
    chosen: Sequence[Lever],
    *,
    budget_s: float,
    options: dict[str, Any] | None = None,
    cwd: Path | None = None,
    place: Callable[[], contextlib.AbstractContextManager[Path]] | None = None,
    progress: Callable[[float, str], None] = lambda share, what: None,
) -> Tried:
    """Measure each lever on a command that trains. options: as `run_watched` takes them. cwd: the working folder; place: gives
    each run one of its own. Raises UserError where the job as it is makes no steps that can be timed."""
    found, budget, began = Tried(), _Budget(budget_s), time.monotonic()

    asked: dict[str, Any] = {}

    def run(rung: Rung, ask: Sequence[str] = ()) -> bool:
        progress(min(0.99, (time.monotonic() - began) / budget_s), rung.title)
        at = time.monotonic()
        with place() if place else contextlib.nullcontext(cwd) as folder:
            asked.update(_run(rung, command, options or {}, folder, max(LEAST_S, budget.left_s), ask))
        found.longest_s = max(found.longest_s, time.monotonic() - at)
        budget.longest = max(budget.longest, found.longest_s)
        return not rung.why_not

    if not run(found.baseline, [lever.name for lever in chosen]):
        raise UserError(f"The command as it is was not measured: {found.baseline.why_not}")
    first_losses = list(found.baseline.losses)
    run(found.baseline)
    differ = _apart(first_losses, found.baseline.losses)
    found.comparable = differ is not None and differ < ROUNDING / 4
    on_gpu = found.baseline.peak > 0
    found.alone = [Rung((each,), why_not=_no_use(each, asked) if on_gpu or not each.gpu else NO_GPU) for each in chosen]
    for number, rung in enumerate(rung for rung in found.alone if not rung.why_not):
        if not budget.enough():
            rung.why_not, found.complete = SPENT, False
            continue
        if number % BASELINE_EVERY == BASELINE_EVERY - 1:
            run(found.baseline)
        if run(rung):
            _judge(found, rung, found.baseline)
    _again(found, run, budget)
    climbed: set[str] = set()
    _climb(found, run, budget, climbed)
    _undecided(found, run, budget)
    _climb(found, run, budget, climbed)  # what was undecided before may have paid after all
    found.seconds = time.monotonic() - began
    progress(1.0, "done")
    return found


def _no_use(lever: Lever, asked: dict[str, Any]) -> str:
    """Why it has nothing to change in this job, as the first run of it as it is showed; "" if it may have."""
    able, reasons = asked.get(lever.name, (True, []))
    return "" if able else "; ".join(reasons) or lever.absent


def _again(found: Tried, run: Callable[[Rung], bool], budget: _Budget) -> None:
    """Those that may have paid, in turns with the job as it is."""
    promising = [rung for rung in found.alone if rung.step_s and _ratio(found.baseline, rung) > PROMISING]
    promising = _best_loaders(found.baseline, promising)
    for _ in range(RUNS - 1):
        for rung in promising:
            if not budget.enough():
                found.complete = False
                break
            run(rung)
        if promising and budget.enough():
            run(found.baseline)
    for rung in found.alone:
        if rung.step_s:
            _judge(found, rung, found.baseline)


def _best_loaders(baseline: Rung, rungs: list[Rung]) -> list[Rung]:
    """One number of workers, the best."""
    by_name: dict[str, Rung] = {}
    for rung in rungs:
        name = rung.levers[0].name
        if name not in by_name or _ratio(baseline, rung) > _ratio(baseline, by_name[name]):
            by_name[name] = rung
    return sorted(by_name.values(), key=lambda rung: -_ratio(baseline, rung))


def _climb(found: Tried, run: Callable[[Rung], bool], budget: _Budget, climbed: set[str]) -> None:
    """Greedily: the best one, then each of the others that is faster on top. climbed: names of levers that had their turn."""
    paid = [rung for rung in found.alone if rung.said == decision.FASTER and not rung.broken]
    paid = [rung for rung in _best_loaders(found.baseline, paid) if rung.levers[0].name not in climbed]
    for rung in paid:
        if found.ladder and not budget.enough():
            found.complete = False
            break
        climbed.add(rung.levers[0].name)
        higher = _on_top(found, rung, run, budget) if found.ladder else rung
        if higher is not None:
            found.ladder.append(higher)


def _on_top(found: Tried, rung: Rung, run: Callable[[Rung], bool], budget: _Budget) -> Rung | None:
    """A lever with all those of the ladder, if that is faster than the ladder."""
    below = found.ladder[-1]
    higher = Rung((*below.levers, *rung.levers))
    for _ in range(2):
        if budget.enough() and not run(higher):
            break
    if higher.why_not or not higher.step_s:
        return None
    _judge(found, higher, below)
    pays = higher.gain is not None and higher.gain.factor >= PROMISING and not higher.broken
    return higher if pays else None


def _undecided(found: Tried, run: Callable[[Rung], bool], budget: _Budget) -> None:
    """What is left of the budget goes to those of which it is not known."""
    for _ in range(RUNS - 1):
        undecided = [rung for rung in found.alone if rung.said == decision.UNKNOWN and len(rung.step_s) < RUNS]
        for rung in [*undecided, found.baseline] if undecided else []:
            if budget.enough():
                run(rung)
    for rung in found.alone:
        if rung.step_s:
            _judge(found, rung, found.baseline)


def _ratio(below: Rung, rung: Rung) -> float:
    return median(below.step_s) / median(rung.step_s)


def _wider(levers: int) -> float:
    """How much wider (Bonferroni) an interval of so many is: https://www.itl.nist.gov/div898/handbook/prc/section4/prc473.htm"""
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.05 / max(1, levers)) / normal.inv_cdf(1 - 0.05)


def _judge(found: Tried, rung: Rung, below: Rung) -> None:
    """By how much runs of all rungs differ. A gain counts if it is there with the time that other programs took and without."""
    rung.apart = _apart(found.baseline.losses, rung.losses) if found.comparable else None
    all_rungs = {id(each): each for each in [found.baseline, *found.alone, *found.ladder]}
    others = [each for each in all_rungs.values() if each is not rung and each is not below]
    wider = _wider(sum(bool(each.step_s) for each in found.alone))
    gain, alone = (
        decision.of_runs(times(below), times(rung), [times(each) for each in others], NOISE, wider)
        for times in (lambda each: each.step_s, lambda each: each.alone_s)
    )
    rung.gain = replace(gain, lower=min(gain.lower, alone.lower), upper=max(gain.upper, alone.upper))
    rung.said = decision.direction(rung.gain)


def _apart(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The median relative difference of the first losses; infinite where those of only one became NaN, None where there are none."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if math.isfinite(a) or math.isfinite(b)]
    if not pairs:
        return None
    apart = [abs(a - b) / max(abs(a), abs(b), 1e-12) if math.isfinite(a + b) else math.inf for a, b in pairs]
    return max(median(apart), apart[-1] if math.isinf(apart[-1]) else 0.0)


def _run(
    rung: Rung,
    command: Sequence[str],
    options: dict[str, Any],
    cwd: Path | None,
    limit_s: float,
    ask: Sequence[str] = (),
) -> dict[str, Any]:
    """One process of the job with these levers, to the end of its measurement. Adds what it found to the rung. ask: names of
    levers; returns, for each that can be known, whether it could change something, and why not."""
    values = {key: value for lever in rung.levers for key, value in lever.values.items()}
    environment = {key: value for lever in rung.levers for key, value in lever.environment.items()}
    values["was_on"] = [name for name, off in DEBUGGING.items() if os.environ.get(name, off) not in ("", off)]
    asked = {
        **options,
        "record": False,
        "losses": LOSSES,
        "levers": [lever.name for lever in rung.levers],
        "ask": list(ask),
        "values": values,
    }
    with tempfile.TemporaryDirectory(prefix="grader-try-", dir=temporary()) as folder:
        log = Path(folder) / "output"
        seen = run_watched(
            command,
            Path(folder),
            asked,
            looked=lambda seen: True,
            environment=environment,
            cwd=cwd,
            files=Files(given_input(), log),
            limit_s=limit_s,
        )
        why_not = _why_not(seen, log)
        end(of_the_job(Path(folder)))
    if why_not:
        rung.why_not = "" if rung.step_s else why_not  # what an earlier run found stands
        return {}
    slowest = max((each for each in seen.processes if each["looks"]), key=lambda each: mean_step_s(each["looks"][0]))
    look = slowest["looks"][0]
    rung.step_s.append(mean_step_s(look))
    rung.lost.append(seen.lost[0])
    if slowest["gpu"]:
        rung.peak = max(rung.peak, look["memory"].get("peak", 0))
    rung.losses, rung.notes, rung.write = slowest["losses"], slowest.get("notes", []), slowest.get("write", {})
    if rung.levers and (slowest.get("failed") or not rung.notes):
        rung.why_not = "; ".join(slowest.get("failed") or slowest.get("reasons", ())) or rung.levers[-1].absent
        rung.step_s.clear()
        rung.lost.clear()
    return dict(slowest.get("asked", {}))


@lru_cache(maxsize=1)
def given_input() -> bytes:
    """What stands in this process's standard input, for each run anew. A terminal is not asked, and a pipe not waited for long."""
    given = bytearray()
    with contextlib.suppress(OSError):
        if stat.S_ISCHR(os.fstat(0).st_mode):
            return b""
        until = time.monotonic() + INPUT_S
        while (left := until - time.monotonic()) > 0 and len(given) < INPUT and select.select([0], [], [], left)[0]:
            if not (part := os.read(0, 1 << 16)):
                break
            given += part
    return bytes(given)


def _why_not(seen: Seen, log: Path) -> str:
    if seen.looks:
        return ""
    if seen.cut_short:
        return SPENT
    broken = [process["over"] for process in seen.processes if process["over"] not in ("", "the job ended")]
    if broken:
        return broken[0]
    if seen.status:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = next(
            (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)), ""
        )
        return last or f"exit status {seen.status}{': ' + lines[-1] if lines else ''}"
    if seen.left:
        return "the command ended while its training went on in the background, where it can't be measured"
    if seen.full:
        return f"what it told last is lost. {seen.full}"
    if not seen.processes and seen.failed:
        return f"it can't be watched. {seen.failed}"
    if not seen.processes:
        return (
            (never_called(seen) or "no step of an optimizer was seen")
            if seen.torch
            else "no Python of the command imported torch"
        )
    return "it ended before it was measured. Let it make more steps. With --at-step N it is measured from step N on"
