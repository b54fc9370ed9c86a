"""Records the traces of data/traces/: training loops with one planted cause of slowness each, and healthy ones.

    python -m grader.data.record [--gpus 1|2] [--jobs NAME,NAME] [--out DIR]      on a machine with a GPU
    python -m grader.data.record --device cpu --tiny --out DIR                    tries the script out anywhere
    python -m grader.data.record --table                                          makes README.md anew

Each loop of a case (see `grader.data.planted`) runs in a process of its own, one after another: warm-up, the step time
without the profiler, then one profiling session. A case whose side files are there is not recorded again: a stopped
run goes on where it was."""

import argparse
import gzip
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grader import machine
from grader.result import write_json, write_text
from grader.trace import Analysis, Metrics, analyse, metrics, read

TRACES = Path(__file__).resolve().parent / "traces"
PROJECT = Path(__file__).resolve().parents[1]

WARM_UP_STEPS = 8  # then for so many seconds more, so that the clocks have settled and queues are full:
WARM_UP_S = 0.8
BLOCKS = 5  # the step time is their median
BLOCK_S = 0.35  # shortest block, and fewest steps in it
BLOCK_STEPS = 3
CLOSE = 0.25  # a what-if within this of the measured step time is right
LIMIT_S = 240  # for one loop; the slowest compiles for 40 s

Json = dict[str, Any]


# --- one loop, in its own process ----------------------------------------------------------------------------------


def run_loop(name: str, role: str, rank: int, folder: str, device: str, tiny: bool, batch: int | None) -> None:
    """Measure, and where its trace is kept record, one loop of a case. Writes `result.json` and `trace.json` into
    `folder` (rank 0 only). batch: instead of the case's own, or of the one that the case would fit to the machine."""
    from grader.data import planted  # with torch, which the driver never imports

    case = next(case for case in planted.CASES if case.name == name)
    os.environ |= case.environment
    import torch
    import torch.distributed as dist

    if tiny:
        torch.set_num_threads(1)
    where = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    if case.gpus > 1:
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=Path(folder, "rendezvous").absolute().as_uri(),
            rank=rank,
            world_size=case.gpus,
            device_id=where if device == "cuda" else None,
        )
    torch.manual_seed(0)
    planted.tensor_cores(True)
    sizes = SimpleNamespace(**(case.tiny if tiny else case.at))
    setup = planted.Setup(where, sizes, rank, case.gpus)
    sizes.batch = batch or (case.fit(setup) if case.fit else sizes.batch)

    loop = case.loops[role](setup)
    blocks = step_times(loop, setup)
    result = {"batch": sizes.batch, "step_ms_blocks": [round(1e3 * block, 4) for block in blocks], **facts(device)}
    if role in case.kept:
        profile(loop, case.steps, case.options, Path(folder, "trace.json"), setup)
    if rank == 0:
        write_json(Path(folder, "result.json"), result)
    loop.close()
    if case.gpus > 1:
        dist.barrier()
        dist.destroy_process_group()


def step_times(loop: Any, setup: Any) -> list[float]:
    """Seconds a step, block by block, without the profiler. The device is waited for at the ends of blocks only."""

    def block(steps: int) -> float:
        setup.synchronise()
        start = time.perf_counter()
        for _ in islice(loop, steps):
            pass
        setup.synchronise()
        return (time.perf_counter() - start) / steps

    block(WARM_UP_STEPS)
    step_s = agreed(block(BLOCK_STEPS), setup)
    step_s = agreed(block(math.ceil(WARM_UP_S / step_s)), setup)
    steps = max(BLOCK_STEPS, math.ceil(BLOCK_S / step_s))
    return [block(steps) for _ in range(BLOCKS)]


def agreed(value: float, setup: Any) -> float:
    """Rank 0's value, on every rank: all of them must run the same number of steps."""
    if setup.world_size == 1:
        return value
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, device=setup.device)
    return values[0]


def profile(loop: Any, steps: int, options: Json, path: Path, setup: Any) -> None:
    """Record so many steps on every rank; rank 0 writes them to `path`."""
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * setup.cuda
    # the events of the warm-up are thrown away: the first ones cost more
    schedule = profiler.schedule(wait=1, warmup=2, active=steps, repeat=1)
    own = {key: value for key, value in options.items() if key != "arrows"}
    with profiler.profile(activities=activities, schedule=schedule, record_shapes=True, **own) as recorder:
        for _ in islice(loop, 3 + steps):
            recorder.step()
    if setup.rank == 0:
        recorder.export_chrome_trace(str(path))


def facts(device: str) -> Json:
    """The hardware and software that a step time holds for."""
    import torch

    known, versions = machine.facts(), machine.versions()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "driver": known.get("driver") if device == "cuda" else None,
        "cpu": f"{known['cpu']}, {known['cores']} cores",
        "cuda": torch.version.cuda if device == "cuda" else None,
        **{name: versions.get(name) for name in ("torch", "torchvision", "python")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


# --- what a trace file may tell ------------------------------------------------------------------------------------

ARROWS = ("s", "t", "f")  # phases of flow events: they only repeat correlation ids, and take a quarter of the file
PRIVATE = ("host_name", "trace_id", "traceName")
NUMBERING = ("Ev Idx", "Record function id")  # numbers that nothing refers to, a sixth of the file
PATH = r"(?<![\w.+@~-])(?:/[\w.+@~-]+)+/"  # absolute, up to the last slash
IN_PACKAGES = re.compile(rf"{PATH}(?:site|dist)-packages/")
FILE = re.compile(rf"{PATH}([\w.+@~-]+\.(?:py|so|ipynb|h|cpp)\b)")


def cleaned(document: Json, arrows: bool = False) -> Json:
    """The trace without what tells of the machine it was recorded on: names of host and process, absolute paths; and
    without what only makes it larger: running numbers, and the arrows between events, unless they are asked for."""
    events = []
    for event in document["traceEvents"]:
        if event.get("ph") in ARROWS and not arrows:
            continue
        if event.get("ph") == "M" and event.get("name") == "process_name":
            event["args"] = {"name": "python"}
        if "args" in event:
            event["args"] = {key: value for key, value in event["args"].items() if key not in NUMBERING}
        events.append(event)
    kept = {key: value for key, value in document.items() if key not in PRIVATE}
    return relative(kept | {"traceEvents": events})


def relative(value: Any) -> Any:
    """JSON with the paths in all of its strings made relative: to the project, to site-packages, to Python's library;
    of any other file the name alone is left."""
    if isinstance(value, dict):
        return {key: relative(one) for key, one in value.items()}
    if isinstance(value, list):
        return [relative(one) for one in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    value = IN_PACKAGES.sub("", value)
    for root in (PROJECT, sysconfig.get_path("stdlib"), sys.prefix, sys.base_prefix):
        value = value.replace(f"{root}/", "")
    return FILE.sub(r"\1", value)


def packed(document: Json) -> bytes:
    """The same bytes for the same document, whenever they are made."""
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0)


# --- the driver ----------------------------------------------------------------------------------------------------


def record(case: Any, out: Path, context: Any, device: str, tiny: bool) -> list[Json]:
    """Run all loops of a case and write the traces and side files. Returns the side files' contents."""
    with tempfile.TemporaryDirectory(prefix="record-") as temporary:
        results: dict[str, Json] = {}
        batch = None
        for role in case.loops:
            folder = Path(temporary, role)
            folder.mkdir()
            start_ranks(context, case, (role, str(folder), device, tiny, batch))
            results[role] = json.loads((folder / "result.json").read_text())
            batch = results[role]["batch"]  # the first loop may have fitted it to the machine
        sides = []
        for role in case.kept:
            trace = out / (f"{case.name}_fixed.json.gz" if role == "fixed" else f"{case.name}.json.gz")
            document = json.loads(Path(temporary, role, "trace.json").read_text())
            write_bytes(trace, packed(cleaned(document, case.options.get("arrows", False))))
            seen = metrics(read(trace, expect_gpu=device == "cuda"))
            for reason in seen.reasons:
                print(f"{trace.name} is incomplete: {reason}", file=sys.stderr)
            sides.append(side_file(case, role, trace.name, results, seen, tiny))
        for side in reversed(sides):  # the first one says that the case is done
            write_json(out / side["trace"].replace(".json.gz", ".json"), side)
    return sides


def start_ranks(context: Any, case: Any, rest: tuple) -> None:
    """Run `run_loop`, one process a GPU. Raises RuntimeError when one fails or takes too long; then none is left."""
    role, *arguments = rest
    ranks = [
        context.Process(target=run_loop, args=(case.name, role, rank, *arguments), name=f"{case.name} {role} {rank}")
        for rank in range(case.gpus)
    ]
    deadline = time.monotonic() + LIMIT_S
    try:
        for process in ranks:
            process.start()
        while any(process.exitcode is None for process in ranks):
            if any(process.exitcode for process in ranks) or time.monotonic() > deadline:
                break
            multiprocessing.connection.wait([p.sentinel for p in ranks if p.exitcode is None], timeout=1)
    finally:
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            if process.exitcode is None and process.pid:
                process.kill()
                process.join()
    if any(codes) or None in codes:
        raise RuntimeError(f"{case.name}, {role}: exit codes {codes} (None: killed, after {LIMIT_S} s at the latest)")


def side_file(case: Any, role: str, trace: str, results: dict[str, Json], seen: Metrics, tiny: bool) -> Json:
    """What is true of a trace, whatever a reader makes of it."""
    own, fixed = results[role], results.get("fixed")
    side = {
        "trace": trace,
        "job": case.name,
        "role": role,
        "cause": case.cause if role == "planted" else ["compute", "memory"],
        "planted_by": case.planted_by or None,
        "fixed_by": case.fixed_by or None,
        "step_ms": median_ms(own),
        "step_ms_blocks": own["step_ms_blocks"],
        "fixed_step_ms": median_ms(fixed) if fixed else None,
        "fixed_step_ms_blocks": fixed["step_ms_blocks"] if fixed else None,
        "other_step_ms": {
            other: median_ms(result)
            for other, result in results.items()
            if other not in ("planted", "fixed", "healthy")
        },
        "step_ms_traced": round(seen.step_ns_traced / 1e6, 4) if seen.step_ns_traced else None,
        "steps_recorded": case.steps,
        "model": case.model,
        "batch": own["batch"],
        "sizes": {key: value for key, value in (case.tiny if tiny else case.at).items() if key != "batch"},
        "gpus": case.gpus,
        "rank": 0 if case.gpus > 1 else None,
        "environment": case.environment,
        "profiler": {"record_shapes": True, **case.options},
    }
    machine_facts = ("device", "driver", "cpu", "cuda", "torch", "torchvision", "python", "date")
    return side | {key: own[key] for key in machine_facts}


def median_ms(result: Json) -> float:
    return round(statistics.median(result["step_ms_blocks"]), 4)


def write_bytes(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def side_files(folder: Path) -> list[Json]:
    """The side files of a folder of traces, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def diagnosed(folder: Path, side: Json) -> tuple[Analysis, float | None]:
    """What the reader makes of a trace; and of a planted one the what-if over the step time measured after the fix."""
    found = analyse(read(folder / side["trace"], expect_gpu=side["device"] != "CPU"), side["step_ms"] * 1e6)
    what_if = (found.diagnosis.what_if or {}).get(side["cause"]) if side["role"] == "planted" else None
    return found, what_if / side["fixed_step_ms"] if what_if and side["fixed_step_ms"] else None


def as_it_should(found: Analysis, side: Json) -> bool:
    """The planted cause is named; or of a healthy loop none that could be removed."""
    wanted = side["cause"] if isinstance(side["cause"], list) else [side["cause"]]
    return found.diagnosis.cause in [f"{cause}-bound" for cause in wanted]


def table(folder: Path) -> str:
    """README.md of a folder of traces, from its side files and from what `grader diagnose` says."""
    sides = side_files(folder)
    rows, pairs, named, close = [], [], 0, 0
    for side in sides:
        found, ratio = diagnosed(folder, side)
        named += as_it_should(found, side)
        cause = side["cause"] if side["role"] == "planted" else "none"
        size = (folder / side["trace"]).stat().st_size / 1e6
        rows.append(
            f"| `{side['trace']}` | {side['model']}, batch {side['batch']} | {cause} | {found.diagnosis.cause} "
            f"| {side['step_ms']:.2f} | {side['step_ms_traced'] or math.nan:.2f} | {size:.2f} |"
        )
        if ratio is not None:
            close += abs(ratio - 1) <= CLOSE
            others = ", ".join(f"{name} {ms:.2f}" for name, ms in side["other_step_ms"].items())
            pairs.append(
                f"| {side['job']} | {side['planted_by']} | {side['fixed_by']} | {side['step_ms']:.2f} "
                f"| {ratio * side['fixed_step_ms']:.2f} | {side['fixed_step_ms']:.2f} | {ratio - 1:+.0%} | {others} |"
            )
    machines = sorted(
        {f"{s['device']}, driver {s['driver']}, {s['cpu']}; python {s['python']}, torch {s['torch']}" for s in sides}
    )
    days = sorted({side["date"][:10] for side in sides})
    return "\n".join(
        [
            "# Recorded traces",
            "",
            "Made by `python -m grader.data.record`, and this page by `--table` from the side files. Each trace has one: the",
            "step time without the profiler, what it was recorded with, the true cause and how it was planted. A step time is",
            f"the median of {BLOCKS} blocks of steps, of `planted` and `fixed` on the same machine in the same run.",
            "",
            *machines,
            f"{' and '.join(days)}",
            "",
            f"`grader diagnose --step-ms` names the planted cause, or none that could be removed, of {named} of {len(rows)}:",
            "",
            "| trace | model | planted | diagnosis | ms a step | in the trace | MB |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"The what-if, the step time if the cause vanished, is within {CLOSE:.0%} of the step time measured after the fix in",
            f"{close} of {len(pairs)} pairs:",
            "",
            "| job | planted | fixed | ms planted | what-if | ms fixed | off by | others, ms |",
            "|---|---|---|---|---|---|---|---|",
            *pairs,
            "",
        ]
    )


def summary(sides: list[Json], out: Path) -> str:
    """The short table for the terminal."""
    lines = [f"{'trace':28} {'cause':14} {'ms':>9} {'fixed ms':>9} {'traced ms':>9} {'MB':>6}"]
    for side in sides:
        cause = side["cause"] if side["role"] == "planted" else "-"
        fixed = f"{side['fixed_step_ms']:9.2f}" if side["role"] == "planted" and side["fixed_step_ms"] else f"{'-':>9}"
        size = (out / side["trace"]).stat().st_size / 1e6
        name = side["trace"].removesuffix(".json.gz")
        lines.append(
            f"{name:28} {cause:14} {side['step_ms']:9.2f} {fixed} {side['step_ms_traced'] or math.nan:9.2f} {size:6.2f}"
        )
    total = sum((out / side["trace"]).stat().st_size for side in sides) / 1e6
    return "\n".join([*lines, f"{len(sides)} traces, {total:.2f} MB"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="only these cases, by name")
    parser.add_argument("--gpus", type=int, choices=(1, 2), help="only cases for so many GPUs")
    parser.add_argument("--out", type=Path, default=TRACES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script out")
    parser.add_argument("--table", action="store_true", help="only make README.md from the side files")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.table:
        write_text(options.out / "README.md", table(options.out))
        return 0

    from grader.data import images, planted, text  # imports torch, but starts no threads and touches no GPU

    names = options.jobs.split(",") if options.jobs else [case.name for case in planted.CASES]
    if unknown := set(names) - {case.name for case in planted.CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    cases = [case for case in planted.CASES if case.name in names and options.gpus in (None, case.gpus)]
    todo = [case for case in cases if not (options.out / f"{case.name}.json").exists()]
    for count in {(case.tiny if options.tiny else case.at).get("images") for case in todo} - {None}:
        images.make_images(count=count, progress=False)
    text.make_corpus()

    # A server that has imported torch forks a fresh process for each loop: none of them waits for the import.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grader.data.planted"])
    start, done, failed = time.monotonic(), 0, []
    for case in todo:
        try:
            record(case, options.out, context, options.device, options.tiny)
        except (RuntimeError, OSError, ValueError) as error:  # the others can still be recorded
            print(f"{case.name} failed: {error}", file=sys.stderr)
            failed.append(case.name)
        done += len(case.loops)
        left = sum(len(other.loops) for other in todo[todo.index(case) + 1 :])
        spent = time.monotonic() - start
        print(f"{case.name}: {spent:.0f} s so far, about {spent / done * left:.0f} s left", flush=True)
    write_text(options.out / "README.md", table(options.out))
    print(summary(side_files(options.out), options.out))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
