"""Where the job is seen: PyTorch's own hooks where there are any, else a wrapper around one of its functions."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import sys
import threading
import time
from multiprocessing import queues

import torch
import torch.jit._builtins as scripted
import torch.utils.data.dataloader as loading
from grader_watch_steps import backward_runs_in, never_compiled
from torch.optim import optimizer as optimizers

SENT_EVERY_S = 0.1  # some send each loss
watching: list = []  # the one watcher
compiling = torch.compiler.is_compiling


def install(watch) -> None:
    watching.append(watch)
    _see_optimizers(watch)
    for by in ("backward", "grad"):
        _patch(torch.autograd, by, _backward(watch, by))
    for method, seen in (("capture_end", watch.graph_captured), ("replay", watch.graph_replayed)):
        _patch(torch.cuda.CUDAGraph, method, _then(seen))
    _patch(torch.amp.GradScaler, "step", _then(lambda *_: watch.scaler_done()))
    _patch(torch, "save", _checkpoint(watch))
    _patch(torch.nn.Module, "train", _evaluation(watch))
    _patch(torch.autograd.profiler.profile, "_prepare_trace", _first(watch.profiler_wanted))  # ours gives way
    _patch(loading._BaseDataLoaderIter, "__next__", _data_wait(watch))
    if watch.options.step:
        _follow(watch, watch.options.step)
    atexit.register(watch.at_exit)
    _patch(queues.SimpleQueue, "put", _first(_result_sent(watch)))
    _patch(os, "_exit", _first(lambda *_: watch.at_once()))


def _see_optimizers(watch) -> None:
    """Before and after each step. Where one is compiled, the compiler traces these hooks and finds nothing in them."""

    def begins(*_) -> None:
        if not compiling() and watch.timing:
            watch.part_begins("optimizer")

    def done(optimizer, *_) -> None:
        if compiling():
            is_compiled()
        else:
            watch.optimizer_done(optimizer)

    def is_compiled() -> None:
        watch.steps.compiled = True

    is_compiled._dynamo_marked_constant = True  # called once, by the compiler: torch.compiler.assume_constant_result
    never_compiled(begins.__code__)
    never_compiled(done.__code__)
    optimizers.register_optimizer_step_pre_hook(begins)
    optimizers.register_optimizer_step_post_hook(done)


def _result_sent(watch):
    """To the process that started this one, which may kill it now: so ends a pool that is left."""
    told_at = 0.0

    def sent(*_) -> None:
        nonlocal told_at
        now = time.perf_counter()
        if watch.step and not watch.over and now - told_at > SENT_EVERY_S:
            told_at = now
            with contextlib.suppress(OSError):
                watch.tell()

    return sent


def saves(module, name: str) -> None:
    """A function of a module that writes checkpoints. Nothing before `install`."""
    if watching:
        _patch(module, name, _checkpoint(watching[0]))


def _patch(owner, name: str, wrap) -> None:
    """wrap: gives what takes the original's place. All of these begin alike: what is compiled is compiled as without us."""
    original = getattr(owner, name, None)
    if original is None:
        return
    patched = functools.wraps(original)(wrap(original))
    never_compiled(patched.__code__)  # where it is called between two compiled parts
    setattr(owner, name, patched)
    home = sys.modules.get(getattr(original, "__module__", ""))  # where pickle looks for it
    if getattr(home, name, None) is original:
        setattr(home, name, patched)
    for known, operator in list(getattr(scripted, "_builtin_ops", ())):  # torch.jit.script knows them by identity
        if known is original:
            scripted._register_builtin(patched, operator)


def _then(seen):
    """A function, and then `seen` with its first argument if it has any."""

    def wrap(original):
        def call(*args, **kwargs):
            if compiling():
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                seen(*args[:1])

        return call

    return wrap


def _first(seen):
    """As `_then`, but before the function, and where it is compiled too."""

    def wrap(original):
        def call(*args, **kwargs):
            seen(*args[:1])
            return original(*args, **kwargs)

        return call

    return wrap


def _backward(watch, by: str):
    def wrap(original):
        def backward(*args, **kwargs):
            if compiling() or backward_runs_in() >= 0:  # checkpointing calls it within a backward pass
                return original(*args, **kwargs)
            if watch.timing or watch.losses.wanted(by) or watch.apart.began is not None:
                watch.backward_begins(args[0] if args else kwargs.get("tensors", kwargs.get("outputs")), by)
            try:
                return original(*args, **kwargs)
            finally:
                watch.backward_done(by)

        return backward

    return wrap


def _checkpoint(watch):
    """It belongs to no step. One kind of saving may call another: the outermost counts."""

    def wrap(original):
        def save(*args, **kwargs):
            if compiling() or watch.saving:
                return original(*args, **kwargs)
            watch.saving, began = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                watch.saving = False
                watch.saved(time.perf_counter() - began)

        return save

    return wrap


def _data_wait(watch):
    def wrap(original):
        def __next__(iterator):
            if compiling():
                return original(iterator)
            if watch.timing:
                watch.part_begins("data_wait")
            began, came = time.perf_counter(), False
            try:
                batch = original(iterator)
                came = True
                return batch
            finally:
                watch.waited(iterator, time.perf_counter() - began, came)

        return __next__

    return wrap


def _evaluation(watch):
    """From model.eval(), which is model.train(False), to model.train() or the next step: the outermost of nested calls counts."""
    switching = False

    def wrap(original):
        def train(module, mode=True):
            nonlocal switching
            if (mode and watch.apart.began is None) or switching or compiling():  # for each layer: the usual case first
                return original(module, mode)
            if mode:
                watch.evaluation_ends(module)
                return original(module, mode)
            switching = True
            try:
                watch.evaluation_begins(module)
                return original(module, mode)
            finally:
                switching = False

        return train

    return wrap


def _follow(watch, name: str) -> None:
    """The steps are the calls of a function, `module:function`, once its module is there."""
    module, _, function = name.partition(":")
    *path, last = function.split(".")

    def look() -> None:
        while not watch.over:
            for owner in _modules(module):
                with contextlib.suppress(AttributeError):
                    for each in path:
                        owner = getattr(owner, each)
                    return _follow_calls(owner, last, _then(lambda *_: watch.tick()))
            time.sleep(0.02)

    threading.Thread(target=look, name="grader-watch", daemon=True).start()


def _modules(name: str) -> list:
    """Those of this name. The script is one as well, which Python calls __main__."""
    main, name = sys.modules.get("__main__"), os.path.basename(name)
    known = getattr(getattr(main, "__spec__", None), "name", "") or os.path.basename(
        getattr(main, "__file__", None) or ""
    )
    is_main = name in {known, known.removesuffix(".py"), known.removesuffix(".__main__")}
    return [each for each in (sys.modules.get(name), main if is_main else None) if each is not None]


def _follow_calls(owner, name: str, wrap) -> None:
    """Of a function that its users may have imported by name; of a method as what it is. Raises AttributeError for none."""
    static = inspect.getattr_static(owner, name)
    if isinstance(static, (staticmethod, classmethod)):
        patched = functools.wraps(static.__func__)(wrap(static.__func__))
        never_compiled(patched.__code__)
        return setattr(owner, name, type(static)(patched))
    original = getattr(owner, name)
    _patch(owner, name, wrap)
    for module in list(sys.modules.values()):
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, key, getattr(owner, name))
