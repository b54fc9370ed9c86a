"""What `grader try` changes in a job from outside, one lever at a time. Each is a patch that the job's Python makes to its own
torch when it is imported; nothing on disk changes. A lever writes down what it changed, or why it could not."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
import threading

import torch
from grader_levers_words import as_written
from torch import nn
from torch.optim import optimizer as optimizers

changed_kinds: list[type] = []  # optimizers
pulled: list[Lever] = []
ALWAYS = {"non_blocking", "collector", "threads", "affinity", "expandable_segments"}  # nothing can be asked
GC_AFTER_STEP = 10  # the collector is frozen when what lasts has been made
SOFTMAX = re.compile("SoftmaxBackward|Checkpoint")  # nodes of autograd's graph


class Lever:
    """One of them. Where it is only asked whether it could change something, it changes nothing."""

    def __init__(self, name: str, values: dict, asked: bool) -> None:
        self.name, self.values, self.asked = name, {"workers": 0, "prefetch": 4, **values}, asked
        self.notes: list[str] = []  # what it changed, or could, each once
        self.write: list[str] = []  # what to write in the script to have that, where it is known better than in general
        self.reasons: list[str] = []  # why there is nothing to change
        self.failed = ""  # why it could not be applied
        self.looked = True  # whether it can be known
        self.once = self.image = self.around = None  # see `_Outermost`

    def may(self, text: str, write: str = "") -> bool:
        """Write down a change, and say whether to make it."""
        if text not in self.notes:
            self.notes.append(text)
        write = as_written(self.name, write, self.values) if write else ""
        if write and write not in self.write:
            self.write.append(write)
        return not self.asked

    def no_need(self, why: str) -> None:
        if why not in self.reasons:
            self.reasons.append(why)


def pull(names: list[str], values: dict, asked: bool) -> _Outermost:
    """Apply levers by name, or only ask them. values: what some of them need, such as a number of workers."""
    for name in names:
        if asked and name in ALWAYS:
            continue
        pulled.append(Lever(name, values, asked))
        try:
            LEVERS[name](pulled[-1])
        except Exception as error:  # the job goes on without it
            pulled[-1].failed = f"{type(error).__name__}: {error}"
        if pulled[-1].once:  # until a module is called
            pulled[-1].looked = False
    return _Outermost(pulled)


def told() -> dict:
    """Of levers that were pulled: what they changed, and why not all. Of asked ones: whether they could change something, why not."""
    if any(lever.asked for lever in pulled):
        return {
            "asked": {
                lever.name: [bool(lever.notes or lever.failed or not lever.looked), lever.reasons] for lever in pulled
            }
        }
    return {
        "notes": [note for lever in pulled for note in lever.notes],
        "write": {lever.name: "; ".join(lever.write) for lever in pulled if lever.write},
        "failed": [lever.failed for lever in pulled if lever.failed],
        "reasons": [why for lever in pulled for why in lever.reasons],
    }


class _Call(threading.local):
    """Of the outermost module, in the thread that calls it."""

    depth, open = 0, ()


class _Outermost:
    """The model's outermost module, seen when it is called in training: what a lever does to it `once`, before its first forward,
    to an `image` that it is given, and `around` each forward: makes a context manager."""

    call = _Call()

    def __init__(self, levers: list[Lever]) -> None:
        self.levers = [lever for lever in levers if lever.once]
        self.asked = all(lever.asked for lever in levers)
        self.seen = set()
        self.hooks: list = []
        if self.levers:
            self.hooks = [
                nn.modules.module.register_module_forward_pre_hook(self._before),
                nn.modules.module.register_module_forward_hook(self._after, always_call=True),
            ]
            self._compiled_by_itself()

    def let_go(self) -> None:
        """Where levers were only asked: the job's modules are called as without us again."""
        if self.asked:
            while self.hooks:
                self.hooks.pop().remove()

    def _compiled_by_itself(self) -> None:
        """model.compile() compiles its hooks as well, where ours do nothing: so they are called around it."""
        original = nn.Module.compile

        @functools.wraps(original)
        def compile_module(module, *args, **kwargs):
            original(module, *args, **kwargs)
            compiled = module._compiled_call_impl

            def call(*arguments, **named):
                if torch.compiler.is_compiling() or not self.hooks:
                    return compiled(*arguments, **named)
                changed = self._before(module, arguments)
                try:
                    return compiled(*(arguments if changed is None else changed), **named)
                finally:
                    self._after(module)

            module._compiled_call_impl = call

        nn.Module.compile = compile_module

    def loss_seen(self, loss) -> None:
        """In the first steps of a job whose levers are asked: looks through autograd's graph."""
        lever = next((lever for lever in pulled if lever.asked and lever.name == "attention"), None)
        losses = [
            each for each in (loss if isinstance(loss, (list, tuple)) else [loss]) if isinstance(each, torch.Tensor)
        ]
        if lever is None or not losses:
            return
        lever.looked, waiting, seen = True, [each.grad_fn for each in losses], set()
        while waiting and not lever.notes:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if SOFTMAX.match(node.name()):  # what a checkpoint holds is not seen
                lever.may("a softmax")
            waiting += [each for each, _ in node.next_functions]

    def _before(self, module, arguments):
        if torch.compiler.is_compiling():  # nothing may break a graph
            return _is_compiled()
        self.call.depth += 1
        inner = self.call.depth > 1 or getattr(module, "_is_replica", False)  # DataParallel calls those in threads
        if inner or not module.training or isinstance(module, nn.modules.loss._Loss):
            return None
        if id(module) not in self.seen:
            self.seen.add(id(module))
            if next(module.parameters(), None) is not None:
                for lever in self.levers:
                    lever.looked = True
                    try:
                        lever.once(module)
                    except Exception as error:  # the job goes on without it
                        lever.failed = f"{type(error).__name__}: {error}"
        if next(module.parameters(), None) is None:
            return None
        self.call.open = [lever.around() for lever in self.levers if lever.around]
        for context in self.call.open:
            context.__enter__()
        changes = [lever.image for lever in self.levers if lever.image]
        for change in changes:
            arguments = tuple(change(each) for each in arguments)
        return arguments if changes else None

    def _after(self, module, *_):
        if torch.compiler.is_compiling():
            return
        call = self.call
        call.depth = max(0, call.depth - 1)  # a call may have begun before this hook was there
        if call.depth == 0:
            for context in reversed(call.open):
                context.__exit__(None, None, None)
            call.open = ()


def _is_compiled() -> None:
    """Called once, by the compiler. If a function that is compiled calls the model, nobody else sees that."""
    if _Outermost.call.depth == 0:
        for lever in pulled:
            if lever.once:
                lever.looked = True
                lever.no_need("the model is called within a function that is compiled")


_is_compiled._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result


# ---------------------------------------------------------------- the levers


def _before_ampere() -> bool:
    """torch.cuda.is_bf16_supported() counts emulation, so it is not asked."""
    return torch.version.hip is None and torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)


def tf32(lever) -> None:
    def change(module) -> None:
        if _before_ampere():
            return lever.no_need("this GPU has no TF32")
        try:
            if torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32:
                return lever.no_need("the script sets it itself")
        except RuntimeError:  # it cannot be read where the newer settings were used
            return lever.no_need("the script sets fp32_precision itself")
        convolutions = "" if torch.backends.cudnn.allow_tf32 else "; torch.backends.cudnn.allow_tf32 = True"
        write = f'torch.set_float32_matmul_precision("high"){convolutions}'
        if lever.may("TF32 for float32 matmuls and convolutions", write):
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True

    lever.once = change


def autocast(lever) -> None:
    """bf16 where the GPU has it, else fp16."""

    def change(module) -> None:
        device = "cuda" if torch.cuda.is_initialized() else next(module.parameters()).device.type
        kind = torch.float16 if device == "cuda" and _before_ampere() else torch.bfloat16
        name = "bfloat16" if kind is torch.bfloat16 else "float16 (add a GradScaler)"
        scaler = "" if kind is torch.bfloat16 else ", and a GradScaler"
        write = f'with torch.autocast("{device}", {kind}): around the model and the loss{scaler}'
        short = "bf16" if kind is torch.bfloat16 else "fp16"
        lever.values = {**lever.values, "kind": short, "mixed": f"{'16' if short == 'fp16' else short}-mixed"}
        kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
        if torch.is_autocast_enabled(device):
            lever.no_need("the script runs its model under autocast itself")
        elif torch.float32 not in kinds:
            lever.no_need(f"the weights of {type(module).__name__} are not float32")
        elif lever.may(f"autocast to {name} around {type(module).__name__}", write):
            lever.around = lambda: torch.autocast(device, kind)

    lever.once = change


def channels_last(lever) -> None:
    def change(module) -> None:
        weights = [each.weight for each in module.modules() if isinstance(each, nn.Conv2d)]
        if not weights:
            return lever.no_need(f"{type(module).__name__} has no Conv2d")
        if all(each.is_contiguous(memory_format=torch.channels_last) for each in weights):
            return lever.no_need("the script has it already")
        if lever.may(f"channels_last for {type(module).__name__} and its images"):
            module.to(memory_format=torch.channels_last)
            lever.image = image

    def image(value):
        if isinstance(value, torch.Tensor) and value.dim() == 4:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    lever.once = change


def benchmark(lever) -> None:
    def change(module) -> None:
        if torch.backends.cudnn.benchmark:
            lever.no_need("the script sets it itself")
        elif not any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules()):
            lever.no_need(f"{type(module).__name__} has no convolution")
        elif lever.may("cudnn.benchmark"):
            torch.backends.cudnn.benchmark = True

    lever.once = change


def attention(lever) -> None:
    """Asked by what the first losses were computed with, see `_Outermost`."""
    lever.looked = not lever.asked
    if not lever.asked:
        import grader_attention

        grader_attention.pull(lever.may)


def _optimizers(lever) -> None:
    option = lever.name
    for kind in vars(torch.optim).values():
        if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
            continue
        if option in inspect.signature(kind.__init__).parameters:
            _with_option(kind, lever)


def _with_option(kind, lever) -> None:
    option, original = lever.name, kind.__init__
    changed_kinds.append(kind)

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if kind is not next(each for each in type(self).__mro__ if each in changed_kinds):
            return original(self, *args, **kwargs)  # AdamW is an Adam: once is enough
        given = {"fused": None, "foreach": None, **kwargs}
        if given[option]:
            lever.no_need(f"{kind.__name__} has {option}=True already")
        if given[option] is None and not kwargs.get("differentiable") and lever.asked:
            lever.may(option)
        elif given[option] is None and not kwargs.get("differentiable"):
            changed = {**kwargs, option: True, ("foreach" if option == "fused" else "fused"): False}
            names = inspect.signature(original).parameters
            try:
                original(self, *args, **{name: value for name, value in changed.items() if name in names})
                lever.may(f"{option}=True for {kind.__name__}", f"torch.optim.{kind.__name__}(..., {option}=True)")
                return
            except (RuntimeError, TypeError, ValueError) as error:
                lever.no_need(f"not {option} for {kind.__name__}: {error}"[:200])
        original(self, *args, **kwargs)

    kind.__init__ = __init__


def _compile(**options):
    def compiled(lever) -> None:
        def change(module) -> None:
            if getattr(module, "_compiled_call_impl", None) is None and not isinstance(
                module, torch._dynamo.OptimizedModule
            ):
                how = ", ".join(f'{key}="{value}"' for key, value in options.items())
                if lever.may(f"torch.compile of {type(module).__name__}{how and ', '}{how}", f"model.compile({how})"):
                    module.compile(**options)
            else:
                lever.no_need(f"{type(module).__name__} is compiled already")

        lever.once = change

    return compiled


def loader(lever) -> None:
    """More workers that stay, with pinned memory."""
    from torch.utils.data import DataLoader

    original, values = DataLoader.__init__, lever.values
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        given = {**dict(zip(names, args)), **kwargs}  # noqa: B905
        if isinstance(given.get("dataset"), torch.utils.data.IterableDataset):
            lever.no_need("an IterableDataset keeps its workers: more of them would repeat samples")
            return original(self, *args, **kwargs)
        pinned = ", pin_memory=True" if torch.cuda.is_available() else ""
        prefetch = f", prefetch_factor={values['prefetch']}"
        write = f"DataLoader(..., num_workers={values['workers']}, persistent_workers=True{pinned}{prefetch})"
        if not lever.may(f"DataLoader: num_workers={values['workers']}, persistent_workers, pin_memory", write):
            return original(self, *args, **kwargs)
        given["num_workers"] = values["workers"]
        given["persistent_workers"] = values["workers"] > 0
        if values["workers"]:
            given["prefetch_factor"] = values["prefetch"]
        given["pin_memory"] = torch.cuda.is_available()
        return original(self, **given)

    DataLoader.__init__ = __init__


def non_blocking(lever) -> None:
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)

        def copy(tensor, *args, __original=original, **kwargs):
            if not torch.compiler.is_compiling() and tensor.device.type == "cpu" and tensor.is_pinned():
                kwargs.setdefault("non_blocking", True)
                lever.may("non_blocking copies from pinned memory")
            return __original(tensor, *args, **kwargs)

        setattr(torch.Tensor, name, functools.wraps(original)(copy))


def frozen_collector(lever) -> None:
    calls = [0]

    def freeze(*_) -> None:
        calls[0] += 1
        if calls[0] == GC_AFTER_STEP:
            gc.collect()
            gc.freeze()
            gc.disable()
            lever.may("gc.freeze() and gc.disable() once what lasts is made")

    optimizers.register_optimizer_step_post_hook(freeze)


def threads(lever) -> None:
    torch.set_num_threads(lever.values["threads"])
    lever.may(f"{lever.values['threads']} threads for the CPU's operators")


def affinity(lever) -> None:
    os.sched_setaffinity(0, lever.values["near"])
    lever.may(f"{len(lever.values['near'])} cores near the GPU")


def no_debugging(lever) -> None:
    """What people forget to switch off."""
    for name in lever.values.get("was_on", []):
        lever.may(f"{name} was set", f"no {name}")
    _off(lever, torch, "set_anomaly_enabled", "anomaly detection was on", "no anomaly detection")
    _off(lever, torch.cuda, "set_sync_debug_mode", "torch.cuda.set_sync_debug_mode was on", "no sync debug mode")
    if not lever.asked and torch.is_anomaly_enabled():
        torch.set_anomaly_enabled(False)
    start = torch.profiler.profile.__init__

    @functools.wraps(start)
    def never(self, *args, **kwargs):
        if lever.may("torch.profiler was on", "no profiler"):
            kwargs["schedule"] = lambda step: torch.profiler.ProfilerAction.NONE
        start(self, *args, **kwargs)

    torch.profiler.profile.__init__ = never
    initialise = torch.cuda._lazy_init

    @functools.wraps(initialise)
    def without_blocking():
        # by the script, too late for our environment
        blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        if blocking and lever.may("CUDA_LAUNCH_BLOCKING was set", "no CUDA_LAUNCH_BLOCKING"):
            os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
        initialise()

    torch.cuda._lazy_init = without_blocking


def _off(lever, owner, name: str, words: str, write: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def off(mode, *args, **kwargs):
        if mode and mode != "default" and lever.may(words, write):
            mode = type(mode)() if isinstance(mode, (bool, int)) else "default"
        return original(mode, *args, **kwargs)

    setattr(owner, name, off)


def expandable_segments(lever) -> None:
    lever.may("expandable segments of the allocator")  # set by the environment, before torch is loaded


LEVERS = {
    "tf32": tf32,
    "autocast": autocast,
    "channels_last": channels_last,
    "benchmark": benchmark,
    "attention": attention,
    "fused": _optimizers,
    "foreach": _optimizers,
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
