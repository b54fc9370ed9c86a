"""What the harness reads of a loop: its numbers and logs, a trace, and what torch.compile did."""

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._guards

from grader.sandbox.contract import ContractError

MAX_LOGGED = 20_000  # steps whose logs are read; what does not fit into a reply is left out


def in_clean_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a new thread: what the loop left on (autocast, grad mode, streams, function modes, device) is per thread."""
    box: list[Any] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # a new thread begins on the first one

    def call() -> None:
        try:
            torch.cuda.set_device(device)  # -1 changes nothing
            with torch.no_grad():
                box.append((True, function()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    worked, value = box[0]
    if not worked:
        raise value
    return value


def read(numbers: list[torch.Tensor], device: torch.device) -> list[float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return torch.stack([number.float().to(device) for number in numbers]).tolist()


def sent(number: torch.Tensor) -> torch.Tensor:
    """A 0-d float32 tensor in main memory that holds `number` once the device is done with it, and NaN until then; infinite for NaN."""
    value = torch.full((), math.nan, dtype=torch.float32, device="cpu", pin_memory=number.is_cuda)
    return value.copy_(number.detach().nan_to_num(math.inf, math.inf, -math.inf), non_blocking=True)


def arrived(value: torch.Tensor) -> float:
    """Wait for what `sent` returned. Memory is looked at, since a trace would count a call of CUDA's that waits as the loop's."""
    looks, memory = 0, value.numpy()
    while math.isnan(number := float(memory)):
        time.sleep(5e-5)
        looks += 1
        if looks % 10_000 == 0:
            torch.cuda.current_stream().query()  # raises what went wrong on the device
    return number


def finite(answer: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: say null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in answer.items()}


class Recorder:
    """torch.profiler, which is started here and records later."""

    def __init__(self, device: torch.device, with_stack: bool) -> None:
        if torch.autograd._profiler_enabled():
            raise ContractError(
                "The loop's own profiler is on, and only one can be on at a time. Take it out. "
                "`lab.profile()` records for you"
            )
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.last_recorded = 0  # of the profiler's steps; `record` knows it
        self.profiler = torch.profiler.profile(
            activities=activities, schedule=self._schedule, record_shapes=True, with_stack=with_stack
        )
        self.profiler.start()

    def _schedule(self, step: int) -> torch.profiler.ProfilerAction:
        """Step 0 lasts until `record`."""
        action = torch.profiler.ProfilerAction
        if step == 0:
            return action.WARMUP
        if step > self.last_recorded:
            return action.NONE
        return action.RECORD_AND_SAVE if step == self.last_recorded else action.RECORD

    def record(
        self,
        steps: int,
        file: Path,
        step: Callable[[], torch.Tensor],
        read: Callable[[list[torch.Tensor]], list[float]],
    ) -> list[float]:
        """Record `steps` steps after one that the reader discards, and one more in which the harness waits, and write the trace;
        returns the losses. One profiling session a process: a second one can lose its first kernels."""
        self.last_recorded = steps + 2
        self.profiler.step()
        losses = []
        for i in range(steps + 2):
            losses.append(step())
            if i == steps + 1:  # the last step's kernels must end inside the recording
                read(losses)
            self.profiler.step()
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(file))
        return read(losses)


def compiled_graphs() -> int:
    """How many graphs torch.compile has made so far: a rise inside a timed block is a recompilation."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils else 0


class Compilations:
    """What torch.compile has done in this process since: counted by an audit hook, as its own counts can be set back."""

    def __init__(self) -> None:
        seen: list[Any] = []  # the context of each time that code was compiled
        lines: set[tuple[str, int]] = set()

        def hook(event: str, _: Any) -> None:
            if event == "code.__new__" and (guards := sys.modules.get("torch._dynamo.utils") and torch._guards):
                context = guards.CompileContext.try_get()
                if context and context.compile_id and not any(each is context for each in seen):
                    seen.append(context)
                    lines.update(_broken())

        def count() -> dict[str, int]:
            """Graphs made; source lines that ended one or kept a function out, each once; times that an assumption no longer held."""
            times = Counter(each.compile_id.frame_id for each in seen)
            lines.update(_broken())
            again = max(_again(), sum(number - 1 for number in times.values()))
            return {"graphs": compiled_graphs(), "graph_breaks": len(lines), "recompiles": again}

        sys.addaudithook(hook)
        self.count = count


def _broken() -> set[tuple[str, int]]:
    utils, frames = (sys.modules.get(f"torch._dynamo.{name}") for name in ("utils", "convert_frame"))
    if not utils or not frames:
        return set()
    # not its own counter, which leaves out branches on a tensor, and breaks in a for loop
    ended = {(frame.filename, frame.lineno) for why in utils.graph_break_reasons for frame in why.user_stack[-1:]}
    failed = {(m.fail_user_frame_filename, m.fail_user_frame_lineno) for m in utils.get_compilation_metrics()}
    return {(file, line) for file, line in ended | failed if line is not None}


def _again() -> int:
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return sum(times - 1 for times in frames.FRAME_COMPILE_COUNTER.values() if times) if frames else 0


def read_logs(
    logs: dict[int, dict[str, torch.Tensor]], steps: int, device: torch.device
) -> list[dict[str, float | None]]:
    """What job.log was given, step by step; None for what is no finite number."""
    kept = [logs.get(step, {}) for step in range(min(steps, MAX_LOGGED))]
    flat = [value for values in kept for value in values.values()]
    for value in flat:
        if value.dim():
            raise ContractError(
                f"job.log was given a tensor of shape {tuple(value.shape)}, but it takes single numbers"
            )

    def read() -> list[float]:
        return torch.stack([value.to(device, torch.float64) for value in flat]).tolist() if flat else []

    numbers = iter(in_clean_thread(read))
    return [finite({name: next(numbers) for name in values}) for values in kept]
