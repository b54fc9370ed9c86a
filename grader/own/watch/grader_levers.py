"""What `grader try` changes in a job from outside, one lever at a time. Each is a patch that the job's Python makes to its own
torch when it is imported; nothing on disk changes. A lever writes down what it changed, or why it could not."""

from __future__ import annotations

import functools
import gc
import inspect
import os

import torch
from torch import nn
from torch.optim import optimizer as optimizers

changed_kinds: list[type] = []  # optimizers
notes: list[str] = []  # what the levers changed, each once
failed: list[str] = []  # what could not be applied, and why
reasons: list[str] = []  # why a lever had nothing to change
GC_AFTER_STEP = 10  # the collector is frozen when what lasts has been made


def note(text: str) -> None:
    if text not in notes:
        notes.append(text)


def no_need(why: str) -> None:
    if why not in reasons:
        reasons.append(why)


def pull(levers: list[str], values: dict) -> None:
    """Apply levers by name. values: what some of them need, such as a number of workers."""
    outermost = _Outermost()
    for name in levers:
        try:
            LEVERS[name](values, outermost)
        except Exception as error:  # the job goes on without it
            failed.append(f"{type(error).__name__}: {error}")
    outermost.install()


class _Outermost:
    """The model's outermost module, seen when it is first called in training: what is done to it, and around its forward."""

    def __init__(self) -> None:
        self.once: list = []  # called with the module before its first forward
        self.inputs: list = []  # each maps an argument
        self.around: list = []  # context managers, made for each forward
        self.depth, self.seen, self.open = 0, set(), []

    def install(self) -> None:
        if self.once or self.inputs or self.around:
            nn.modules.module.register_module_forward_pre_hook(self._before)
            nn.modules.module.register_module_forward_hook(self._after, always_call=True)

    def _before(self, module, arguments):
        self.depth += 1
        if self.depth > 1 or not module.training or isinstance(module, nn.modules.loss._Loss):
            return None
        if id(module) not in self.seen:
            self.seen.add(id(module))
            if next(module.parameters(), None) is not None:
                for call in self.once:
                    call(module)
        if next(module.parameters(), None) is None:
            return None
        self.open = [make() for make in self.around]
        for context in self.open:
            context.__enter__()
        for change in self.inputs:
            arguments = tuple(change(each) for each in arguments)
        return arguments if self.inputs else None

    def _after(self, module, arguments, output):
        self.depth -= 1
        if self.depth == 0 and self.open:
            for context in reversed(self.open):
                context.__exit__(None, None, None)
            self.open = []


# ---------------------------------------------------------------- the levers


def _before_ampere() -> bool:
    """torch.cuda.is_bf16_supported() counts emulation, so it is not asked."""
    return torch.version.hip is None and torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)


def tf32(values, outermost) -> None:
    def change(module) -> None:
        if _before_ampere():
            return no_need("this GPU has no TF32")
        try:
            if torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32:
                return no_need("the script sets it itself")
        except RuntimeError:  # it cannot be read where the newer settings were used
            return no_need("the script sets fp32_precision itself")
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        note("TF32 for float32 matmuls and convolutions")

    outermost.once.append(change)


def autocast(values, outermost) -> None:
    """bf16 where the GPU has it, else fp16."""
    kind = torch.float16 if _before_ampere() else torch.bfloat16
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = "bfloat16" if kind is torch.bfloat16 else "float16 (add a GradScaler)"

    def change(module) -> None:
        kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
        if torch.is_autocast_enabled(device):
            no_need("the script runs its model under autocast itself")
        elif torch.float32 not in kinds:
            no_need(f"the weights of {type(module).__name__} are not float32")
        else:
            outermost.around[:] = [lambda: torch.autocast(device, kind)]
            note(f"autocast to {name} around {type(module).__name__}")

    outermost.once.append(change)


def channels_last(values, outermost) -> None:
    def change(module) -> None:
        weights = [each.weight for each in module.modules() if isinstance(each, nn.Conv2d)]
        if not weights:
            return no_need(f"{type(module).__name__} has no Conv2d")
        if all(each.is_contiguous(memory_format=torch.channels_last) for each in weights):
            return no_need("the script has it already")
        module.to(memory_format=torch.channels_last)
        outermost.inputs[:] = [images]
        note(f"channels_last for {type(module).__name__} and its images")

    def images(value):
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    outermost.once.append(change)


def benchmark(values, outermost) -> None:
    def change(module) -> None:
        if torch.backends.cudnn.benchmark:
            no_need("the script sets it itself")
        elif any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules()):
            torch.backends.cudnn.benchmark = True
            note("cudnn.benchmark")
        else:
            no_need(f"{type(module).__name__} has no convolution")

    outermost.once.append(change)


def attention(values, outermost) -> None:
    import grader_attention

    grader_attention.pull(note)


def _optimizers(option: str) -> None:
    for kind in vars(torch.optim).values():
        if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
            continue
        if option in inspect.signature(kind.__init__).parameters:
            _with_option(kind, option)


def _with_option(kind, option: str) -> None:
    original = kind.__init__
    changed_kinds.append(kind)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if kind is not next(each for each in type(self).__mro__ if each in changed_kinds):
            return original(self, *args, **kwargs)  # AdamW is an Adam: once is enough
        given = {"fused": None, "foreach": None, **kwargs}
        if given[option]:
            no_need(f"{kind.__name__} has {option}=True already")
        if given[option] is None and not kwargs.get("differentiable"):
            changed = {**kwargs, option: True, ("foreach" if option == "fused" else "fused"): False}
            names = inspect.signature(original).parameters
            try:
                original(self, *args, **{name: value for name, value in changed.items() if name in names})
                return note(f"{option}=True for {kind.__name__}")
            except (RuntimeError, TypeError, ValueError) as error:
                no_need(f"not {option} for {kind.__name__}: {error}"[:200])
        original(self, *args, **kwargs)

    kind.__init__ = __init__


def fused(values, outermost) -> None:
    _optimizers("fused")


def foreach(values, outermost) -> None:
    _optimizers("foreach")


def _compile(**options):
    def lever(values, outermost) -> None:
        def change(module) -> None:
            if getattr(module, "_compiled_call_impl", None) is None and not isinstance(
                module, torch._dynamo.OptimizedModule
            ):
                module.compile(**options)
                return note(f"torch.compile of {type(module).__name__}" + (f", {options['mode']}" if options else ""))
            no_need(f"{type(module).__name__} is compiled already")

        outermost.once.append(change)

    return lever


def loader(values, outermost) -> None:
    """More workers that stay, with pinned memory."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        given = {**dict(zip(names, args)), **kwargs}  # noqa: B905
        if isinstance(given.get("dataset"), torch.utils.data.IterableDataset):
            no_need("an IterableDataset keeps its workers: more of them would repeat samples")
            return original(self, *args, **kwargs)
        given["num_workers"] = values["workers"]
        given["persistent_workers"] = values["workers"] > 0
        if values["workers"]:
            given["prefetch_factor"] = values.get("prefetch", 4)
        given["pin_memory"] = torch.cuda.is_available()
        note(f"DataLoader: num_workers={given.get('num_workers', 0)}, persistent_workers, pin_memory")
        original(self, **given)

    DataLoader.__init__ = __init__


def non_blocking(values, outermost) -> None:
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)

        def copy(tensor, *args, __original=original, **kwargs):
            if tensor.device.type == "cpu" and tensor.is_pinned():
                kwargs.setdefault("non_blocking", True)
                note("non_blocking copies from pinned memory")
            return __original(tensor, *args, **kwargs)

        setattr(torch.Tensor, name, functools.wraps(original)(copy))


def frozen_collector(values, outermost) -> None:
    calls = [0]

    def freeze(*_) -> None:
        calls[0] += 1
        if calls[0] == GC_AFTER_STEP:
            gc.collect()
            gc.freeze()
            gc.disable()
            note("gc.freeze() and gc.disable() once what lasts is made")

    optimizers.register_optimizer_step_post_hook(freeze)


def threads(values, outermost) -> None:
    torch.set_num_threads(values["threads"])
    note(f"{values['threads']} threads for the CPU's operators")


def affinity(values, outermost) -> None:
    os.sched_setaffinity(0, values["near"])
    note(f"{len(values['near'])} cores near the GPU")


def no_debugging(values, outermost) -> None:
    """What people forget to switch off."""
    for name in values.get("was_on", []):
        note(f"{name} was set")
    _off(torch, "set_anomaly_enabled", "anomaly detection was on")
    _off(torch.cuda, "set_sync_debug_mode", "torch.cuda.set_sync_debug_mode was on")
    if torch.is_anomaly_enabled():
        torch.set_anomaly_enabled(False)
    start = torch.profiler.profile.__init__

    @functools.wraps(start)
    def never(self, *args, **kwargs):
        note("torch.profiler was on")
        start(self, *args, **{**kwargs, "schedule": lambda step: torch.profiler.ProfilerAction.NONE})

    torch.profiler.profile.__init__ = never
    initialise = torch.cuda._lazy_init

    @functools.wraps(initialise)
    def without_blocking():
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):  # by the script, too late for our environment
            os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
            note("CUDA_LAUNCH_BLOCKING was set")
        initialise()

    torch.cuda._lazy_init = without_blocking


def _off(owner, name: str, words: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def off(mode, *args, **kwargs):
        if mode and mode != "default":
            note(words)
        return original(type(mode)() if isinstance(mode, (bool, int)) else "default", *args, **kwargs)

    setattr(owner, name, off)


def expandable_segments(values, outermost) -> None:
    note("expandable segments of the allocator")  # set by the environment, before torch is loaded


LEVERS = {
    "tf32": tf32,
    "autocast": autocast,
    "channels_last": channels_last,
    "benchmark": benchmark,
    "attention": attention,
    "fused": fused,
    "foreach": foreach,
    "compile": _compile(),
    "compile_graphs": _compile(mode="reduce-overhead"),
    "loader": loader,
    "non_blocking": non_blocking,
    "collector": frozen_collector,
    "threads": threads,
    "affinity": affinity,
    "no_debugging": no_debugging,
    "expandable_segments": expandable_segments,
}
