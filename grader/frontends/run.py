"""`grader run -- COMMAND`: a training command as it is, its step time, what holds it back, and what the whole run came to."""

import argparse
import contextlib
import gzip
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader import machine
from grader.data.cache import whole_file
from grader.errors import UserError
from grader.frontends import diagnose, diagnose_job, diagnosis_page
from grader.frontends.options import add_command, command_of, duration, span
from grader.measure import decision
from grader.own.record import against, moved, read_record, record
from grader.own.running import MUCH_LOST, Seen, mean_step_s, never_called, run_watched
from grader.progress import coloured
from grader.result import made_writable, write_json, write_text
from grader.safe_text import clean, one_line
from grader.trace import analyse

SLOWER = 3  # exit status
SELDOM = 1.5  # times as long as the measured steps are all: a rollout before some of them, say
FEW = 10  # steps that may have been parts of the first ones of the main training
BEHIND = 10  # by how much a report lets the job go first, as nice does
ON_CPU = (
    "this job ran on the CPU. Its report says what a step waits for, which operators take most of it, and what the host does between "
    "them. The other causes need a GPU."
)
ELSEWHERE = "this job ran on {}, where work that waits in the device's queue isn't seen. Its steps and their parts are timed by the host's clock."
ROW = "  {:<22} {}"
PARTS = {
    "data_wait": "waiting for data",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest": "forward and the rest",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "grader run [options] -- COMMAND ..."
    parser.epilog = (
        "After a warm-up, some steps are timed, some recorded, and some timed again. The report comes while the job goes on. The exit status is "
        "the command's own, or 3 if --against finds it slower."
    )
    add_command(parser, "look")
    words = "folder for trace, report and run.json (default: grader-run, grader-run-2, ...)"
    parser.add_argument("--out", metavar="FOLDER", help=words)
    parser.add_argument("--stop", action="store_true", help="end the job after the look")
    words = "don't look sooner than after 90s, 10m or 1h"
    parser.add_argument("--after", metavar="10m", type=duration, default=0.0, help=words)
    parser.add_argument("--every", metavar="30m", type=span, default=0.0, help="look again every 30m, for example")
    words = "also record source lines, which slows the recorded steps"
    parser.add_argument("--stacks", action="store_true", help=words)
    earlier = "run.json of an earlier run of the same job. Several of them make the answer surer"
    parser.add_argument("--against", metavar="FILE", action="append", default=[], help=earlier)


def run(options: argparse.Namespace) -> int:
    """The job's exit status; 3 where it was slower than the earlier run. Raises UserError for a command that cannot be started."""
    command = command_of(options, "run")
    earlier = [read_record(path) for path in options.against]
    out = out_folder(options.out)
    looks = Looks(out, options.stop)
    inside = own_folder(out)

    def looked(seen: Seen) -> bool:
        with contextlib.suppress(OSError):
            os.nice(BEHIND)
        return looks(seen)

    try:
        seen = run_watched(command, inside, watching(options), looked=looked, say=say)
    finally:
        shutil.rmtree(inside, ignore_errors=True)
    found = record(seen, command)
    for line in summary(seen, found):
        say(line)
    if looks.before is None and (out / "report.html").exists():
        say(f"{clean(str(out / 'report.html'))} is of an earlier run.")
    try:
        write_json(out / "run.json", found)
    except OSError as error:  # the status is the job's
        say(f"{clean(str(out / 'run.json'))} cannot be written: {error.strerror}.")
    assert seen.status is not None
    if earlier and seen.status == 0:
        return _compared(earlier, found)
    return seen.status


def watching(options: argparse.Namespace) -> dict[str, Any]:
    """What the watcher is asked for."""
    return {
        "after_s": options.after,
        "at_step": options.at_step,
        "every_s": options.every,
        "stacks": options.stacks,
        "step": options.step,
    }


def own_folder(out: Path) -> Path:
    """For what the watcher tells, within `out`, which may hold files of others."""
    return Path(tempfile.mkdtemp(prefix=".watch-", dir=out))


def say(line: str) -> None:
    """The job's own output is left to itself: what is said of it goes to standard error."""
    show(f"grader run: {line}" if line and not line.startswith(" ") else line)


def show(text: str) -> None:
    """On standard error, if it is open."""
    if sys.stderr is not None:  # in its place print() would take standard output
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def out_folder(asked: str | None) -> Path:
    """Made, for this run alone: of several that one launcher starts side by side, each has its own."""
    beside = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") if launched_with_others() else None
    names = (Path(f"grader-run-{n}" if n > 1 else "grader-run") for n in itertools.count(1))
    if asked:
        out = Path(asked, f"rank-{beside}") if beside else Path(asked)
    else:
        try:
            out = next(path for path in names if _made(path))
        except OSError:  # which the next line says
            out = Path("grader-run")
    made_writable(out)
    return out


def _made(path: Path) -> bool:
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        return True
    return False


def launched_with_others() -> bool:
    """Whether a launcher started several of this process: torchrun, or srun with more than one task."""
    step = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    return max((int(n) for n in (os.environ.get("WORLD_SIZE", "1"), step) if n.isdecimal()), default=1) > 1


class Looks:
    """Reports each measurement when it is complete."""

    def __init__(self, out: Path, stop: bool) -> None:
        self.out, self.stop = out, stop
        self.before: float | None = None  # seconds of a step at the look before
        self.pids: set[int] = set()  # of those who trained then
        self.same = False  # they are those of the look before

    def __call__(self, seen: Seen) -> bool:
        """Whether the job is to end. It goes on whatever becomes of the report."""
        try:
            self._look(seen)
        except Exception as error:
            what = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            say(f"there is no report of this look. {what}{one_line(str(error))}")
        return self.stop

    def _look(self, seen: Seen) -> None:
        number = seen.looks
        name = "trace" if number == 1 else f"trace-{number}"
        kept = []
        self._same_training({process["pid"] for process, _ in seen.measured})
        for process, look in seen.measured:
            if look["trace"]:
                target = self.out / (
                    f"{name}.json.gz" if len(seen.measured) == 1 else f"{name}-rank{process['rank']}.json.gz"
                )
                _compress(Path(look["trace"]), target)
                kept.append((target, process, look))
            elif look["why_no_trace"]:
                whose = f" of rank {process['rank']}" if len(seen.measured) > 1 else ""
                say(f"no trace{whose}: {look['why_no_trace']}.")
        if len(kept) > 1:
            self._report_job(kept)
        elif kept:
            self._report(*kept[0])
        else:
            say(f"a step takes {_ms(mean_step_s(seen.measured[0][1]))}.")
        if kept and not any(process["gpu"] for _, process, _ in kept):
            device = kept[0][1]["device"]
            say(ON_CPU if device == "cpu" else ELSEWHERE.format(one_line(device)))
        if (lost := seen.lost[-1] if seen.lost else 0.0) > MUCH_LOST:
            say(
                f"other programs used the processor for {lost:.0%} of the time of this measurement. Without them a step may be shorter by up to this share."
            )

    def _same_training(self, pids: set[int]) -> None:
        """A command may train several times, one after another: their step times say nothing of each other."""
        self.same = bool(self.pids & pids)
        if self.pids and not self.same:
            say("another training of this command:")
        self.pids = pids

    def _report(self, path: Path, process: dict[str, Any], look: dict[str, Any]) -> None:
        """Of the only rank: the diagnosis, on the screen and beside the trace."""
        read, step_s = diagnose.read_trace(str(path), expect_gpu=bool(process["gpu"])), mean_step_s(look)
        a = analyse(read, 1e9 * step_s, wait_ns=_waited_ns(process, step_s))
        with contextlib.suppress(UserError):  # a recording slower than usual is a recording still
            diagnose.check_step(a, str(path))
        names = [path.name]
        self._deliver(
            path.with_name(path.name.replace("trace", "report").replace(".json.gz", ".html")),
            diagnosis_page.page(names, [a]),
            diagnose.as_json(names, [a]),
            lambda width, colour: diagnose.text(names, [a], width, colour),
            look,
        )

    def _report_job(self, kept: list[tuple[Path, dict[str, Any], dict[str, Any]]]) -> None:
        """Of all ranks at once."""
        paths, lengths = [path for path, _, _ in kept], [1e9 * mean_step_s(look) for _, _, look in kept]
        waits = [_waited_ns(process, mean_step_s(look)) for _, process, look in kept]
        slowest = max(kept, key=lambda each: mean_step_s(each[2]))
        try:
            found = diagnose_job.job_of(paths, lengths, lenient=True, waits_ns=waits)
        except UserError as error:
            why = f"the ranks cannot be compared: {error}"
            if all(process["world"] == 1 for _, process, _ in kept):
                why = f"{len(kept)} processes train side by side, each by itself."
            say(f"{why} This is the slowest one.")
            return self._report(*slowest)
        name = paths[0].name.partition("-rank")[0]
        self._deliver(
            self.out / f"{name.replace('trace', 'report')}.html",
            diagnose_job.page(name, found),
            diagnose_job.as_json(name, found),
            lambda width, colour: diagnose_job.text(name, found, width, colour),
            slowest[2],
        )

    def _deliver(
        self, target: Path, page: str, data: dict[str, Any], text: Callable[[int, bool], str], look: dict[str, Any]
    ) -> None:
        """On the screen and beside the traces, with what was measured without the profiler."""
        write_text(target, page)
        write_json(target.with_suffix(".json"), data)
        width = min(100, shutil.get_terminal_size((100, 40)).columns)
        show("\n" + text(width, coloured(sys.stderr)) + "\n")
        step_s = mean_step_s(look)
        windows = " and ".join(_ms(sum(window) / len(window)) for window in look["step_s"] if window)
        say(f"step {look['at_step']:,}: {windows} per step, without the profiler. Report: {target}")
        if not look["stationary"]:
            say("the step time was still changing during the measurement.")
        if self.before is not None and self.same:
            say(f"{self.before / step_s:.2f} times as fast as at the look before.")
        self.before = step_s


def _waited_ns(process: dict[str, Any], step_s: float) -> float | None:
    """For a loader, per step of this length; None where no loader was seen in the timed steps."""
    wait, step = (process["parts"].get(part) for part in ("data_wait", "step"))
    return 1e9 * step_s * min(1.0, wait / step) if wait and step else None


def _compress(source: Path, target: Path) -> None:
    with whole_file(target) as part, source.open("rb") as raw, gzip.open(part, "wb", compresslevel=3) as packed:
        shutil.copyfileobj(raw, packed)
    source.unlink()


# ---------------------------------------------------------------- the whole run


def summary(seen: Seen, found: dict[str, Any]) -> list[str]:
    """Lines on the whole run, or the one that says why there is nothing to say."""
    if seen.left:
        pids = ", ".join(map(str, seen.left[:4]))
        left = f"the command ended, but what it started runs on (process {pids}), and isn't watched any longer."
        return [left, *(_whole(seen, found) if found["ranks"] else [])]
    return _whole(seen, found)


def _whole(seen: Seen, found: dict[str, Any]) -> list[str]:
    if not found["ranks"]:
        if seen.status:
            what = "its first step" if seen.torch else "any Python process of it imported torch"
            return [f"the command ended with exit status {seen.status} before {what}."]
        if seen.full:
            return [f"what this job told is lost. {one_line(seen.full)}"]
        if seen.failed:
            return [f"this job can't be watched. {one_line(seen.failed)}"]
        if not seen.torch:
            return [
                "no Python process of this command imported torch, so there was nothing to see. `grader run` can't look into python -I, -E and -S, an environment or PYTHONPATH that is set anew, containers, and other machines."
            ]
        if said := never_called(seen):
            return [f"torch was imported, but no step was seen. {said}"]
        return [
            "torch was imported, but no step was seen. No optimizer stepped. Backward passes count as steps from the 30th on, or from the 1,000th if an optimizer was made. Use --step to name the function that ends a step."
        ]
    lines = [f"the whole run, {found['seconds']:.0f} s:"]
    each = "rank" if any(process["world"] > 1 for process in seen.processes) else "process"  # which are no group
    for rank in found["ranks"]:
        if len(found["ranks"]) > 1:
            lines.append(f" {each} {rank['rank']}")
        lines += [ROW.format(name, text).rstrip() for name, text in _rows(rank)]
    if machine.has_gpu() and all(rank["device"] == "cpu" for rank in found["ranks"]):
        lines.append(" It trained on the CPU. The GPU of this machine was never used.")
    if (shown := found["gpu_utilisation_as_shown"]) is not None:
        lines.append(
            ROW.format(
                "GPU, as nvidia-smi says", f"{shown:.0%} (a kernel was running, and the report says how much was work)"
            )
        )
    if seen.status and not all(process["over"] for process in seen.processes):
        lines.append(" It was killed, and what it did in the seconds before isn't in these numbers.")
    if seen.full:
        lines.append(f" What it told last is lost, and isn't in these numbers. {one_line(seen.full)}")
    else:
        lines += [f" {line}" for line in _unfinished(seen)]
    return lines


def _unfinished(seen: Seen) -> list[str]:
    """What a job that ended early was still to do, and what helps."""
    slowest = min(seen.processes, key=lambda process: (len(process["looks"]), process["steps"]))
    if not slowest["waits_for"]:
        return []
    how = "It ended before it was measured" if not slowest["looks"] else "It ended within the measurement"
    steps = f"after {slowest['steps']:,} step{'s' * (slowest['steps'] > 1)} in {slowest['stepping_s']:.0f} s"
    advice = "Let it make more steps. With --at-step N it is measured from step N on, without a warm-up."
    if slowest["waits_for"].startswith("--"):
        advice = f"Let it make more steps, or make {slowest['waits_for'].split()[0]} smaller."
    return [
        f"{how}, {steps}. It waited for {slowest['waits_for']}.",
        advice,
    ]


def _rows(rank: dict[str, Any]) -> list[tuple[str, str]]:
    by = {
        "optimizer": "of the optimizer",
        "backward": "backward calls",
        "grad": "calls of autograd.grad",
        "graph": "replays of a CUDA graph",
        "function": "calls of --step's function",
    }
    rows = [
        ("steps", f"{rank['steps']:,} ({by.get(rank['steps_are'], rank['steps_are'])}), on {one_line(rank['device'])}")
    ]
    if (earlier := rank["steps_before"]) >= FEW:
        rows.append(("before that", f"{earlier:,} steps of smaller models, which are not in this table"))
    if rank["step_s_mean"]:
        spread = f"8 of 10 between {_ms(rank['step_s_p10'])} and {_ms(rank['step_s_p90'])}"
        rows.append(
            ("a step", f"{_ms(rank['step_s_mean'])} in the mean, {_ms(rank['step_s_median'])} in the median, {spread}")
        )
        if rank["windows_s"] and rank["step_s_mean"] > SELDOM * rank["step_s"]:
            words = f"{_ms(rank['step_s'])} in the mean. Longer steps come seldom, and the report doesn't see them"
            rows.append(("the measured steps", words))
        if rank["samples_a_step"]:
            rate = rank["samples_a_step"] / rank["step_s_mean"]
            rows.append(("samples", f"{rank['samples_a_step']:,} per step, {rate:,.0f} per second"))
    for part, words in PARTS.items():
        if (seconds := rank["parts_s"].get(part)) and rank["step_s"]:
            rows.append((words, f"{_ms(seconds)}, {min(1.0, seconds / rank['step_s']):.0%} of a step"))
    for part in ("evaluation", "checkpoints"):
        if (count := rank["counts"][part]) and rank["step_s_mean"]:
            rows.append((part, f"{'once' if count == 1 else f'{count} times'}, {rank['share'][part]:.1%} of the time"))
    if memory := rank["memory"]:
        grown = memory.get("growth_a_step", 0)
        leak = f", {grown / 1e6:+.2f} MB per step" if abs(grown) > 1e3 else ""
        held = f", {memory['reserved'] / 1e9:.2f} GB reserved" if "reserved" in memory else ", of the process"
        rows.append(("memory", f"{memory['peak'] / 1e9:.2f} GB at its peak{held}{leak}"))
    if rank["over"] not in ("", "the job ended", "the cell ended"):
        rows.append(("not watched to its end", one_line(rank["over"])))
    return rows


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _compared(earlier: list[dict[str, Any]], found: dict[str, Any]) -> int:
    said, gain, held_up = against(earlier, found)
    say(f"{said}: {gain.factor:.2f} times as fast as before (90% interval {gain.lower:.2f} to {gain.upper:.2f}).")
    if said == decision.UNKNOWN and held_up > MUCH_LOST:
        say(
            f" Other programs used the processor for {held_up:.0%} of the time of one of these runs. Repeat it on a quiet machine."
        )
    elif said == decision.UNKNOWN and len(earlier) == 1:
        say(" One earlier run doesn't show how much runs differ. Give several for a surer answer.")
    for name, before, now in moved(earlier[-1], found):
        say(f" {name.replace('_', ' ')}: {_ms(before)} before, {_ms(now)} now")
    return SLOWER if said == decision.SLOWER else 0
