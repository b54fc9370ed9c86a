"""Which calls end a step of a job."""

from __future__ import annotations

import weakref

import torch

NO_OPTIMIZER = 30  # backward calls where no optimizer was made: then they are the steps
NEVER_STEPS = 1000  # where one was made, which may gather gradients over many calls
REPEATED = 50  # steps of the main optimizer without a backward pass: then its passes are not seen
GONE = 10  # steps of others without one of the main optimizer's, which then has ended; more where it was seen to pause


class Steps:
    """Which calls end a step: those of the optimizer with most parameters; without one, backward calls."""

    def __init__(self, function: str) -> None:
        self.by = "function" if function else ""
        self.main: weakref.ref | None = None
        self.parameters = 0  # of the main optimizer
        self.device = "cpu"  # where they are: cuda, cpu, xpu, mps, ...
        self.sizes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # parameters of each other one
        self.calls = 0  # steps of all optimizers
        self.others = 0  # steps of other optimizers since the main one's last
        self.pause = 0  # the most of them between two of its steps
        # former main ones: calls at the last step of each
        self.ended: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.last = 0  # id of the one that stepped last
        self.in_turns = False  # models of one size are trained one after another, each for some steps
        self.begin_again = False  # what was counted so far were steps of a smaller one
        self.backwards = 0  # since the last step of any
        self.passes = 0  # backward passes of any kind since the main one's last step
        self.repeated = -1  # steps of it without a pass, where passes are seen; -1 where they are not
        self.gradients = 0  # calls of autograd.grad, as long as nothing else ends steps
        self.captured = False  # an optimizer stepped while a CUDA graph was captured
        self.unseen = 0  # steps before it was known which calls they are
        self.graphs: weakref.WeakSet = weakref.WeakSet()  # whose replay is a step
        self.any_graph = False  # was captured
        self.compiled = False  # an optimizer's step, which is not seen then

    def optimizer(self, optimizer) -> bool:
        """Whether this step of an optimizer ends a step of the job. A larger one takes the main one's place."""
        self.backwards = 0
        if self.by == "function":
            return False
        self.calls += 1
        main = self.main() if self.main is not None else None
        again, self.last = self.last == id(optimizer), id(optimizer)
        if main is optimizer:
            if self.others:
                self.pause, self.others = max(self.pause, self.others), 0
            return self._of_another_pass()
        self.others += 1
        known = optimizer in self.sizes
        size = self._size(optimizer)
        larger = size > self.parameters
        turn = self._takes_turns(size, again)
        back = main is not None and not turn and size >= self.parameters and optimizer in self.ended  # it had not ended
        gone = main is None or self.others > max(GONE, 3 * self.pause)
        if gone or larger or turn or back or self._again(main, optimizer, known):
            if back:
                self.pause = max(self.pause, self.calls - self.ended[optimizer])
                self.ended.clear()
            elif main is not None:
                self.ended[main] = self.calls - self.others
            self.begin_again = larger or back if self.main is not None else self.by in ("backward", "grad")
            self.main, self.parameters, self.by, self.others = weakref.ref(optimizer), size, "optimizer", 0
            self.passes, self.repeated = 0, 0 if self.passes else -1
            self.device = next((p.device.type for group in optimizer.param_groups for p in group["params"]), "cpu")
            return True
        return False

    def _size(self, optimizer) -> int:
        if optimizer not in self.sizes:
            self.sizes[optimizer] = size_of(p for group in optimizer.param_groups for p in group["params"])
        return self.sizes[optimizer]

    def is_larger(self, optimizer) -> bool:
        """Than the main one."""
        return self._size(optimizer) > self.parameters

    def _takes_turns(self, size: int, again: bool) -> bool:
        """Whether each of several models of one size makes steps of its own: folds, or clients. Not where they alternate."""
        if size != self.parameters or not self.passes:
            return False
        self.in_turns |= again
        return self.in_turns

    def _again(self, main, optimizer, known: bool) -> bool:
        """Whether an optimizer was made anew, as for each epoch: for the same parameters, and it steps by gradients of its own."""
        no_new_pass = self.repeated >= 0 and not self.passes  # it wraps the main one, and both step
        if known or self.sizes[optimizer] < self.parameters or no_new_pass:
            return False
        return main.param_groups[0]["params"][0] is optimizer.param_groups[0]["params"][0]

    def _of_another_pass(self) -> bool:
        """Whether the main optimizer has something new to step by: DeepSpeed steps it once for each group of parameters."""
        if self.passes:
            self.passes = self.repeated = 0
        elif 0 <= self.repeated < REPEATED:
            self.repeated += 1
            return False
        return True

    def device_name(self) -> str:
        """Or its kind, where PyTorch has no name for it."""
        named = getattr(getattr(torch, self.device, None), "get_device_name", None)
        return named() if named else self.device

    def counted(self) -> int:
        """A step, and those that were none before it was known."""
        unseen, self.unseen = self.unseen, 0
        return 1 + unseen

    def skipped(self) -> bool:
        """Whether a GradScaler left out the step of an optimizer."""
        if self.by != "optimizer" or not self.backwards:
            return False
        self.backwards = self.passes = 0
        return True

    def graph_captured(self, graph) -> None:
        self.any_graph = True
        if self.captured:
            self.captured = False
            self.graphs.add(graph)

    def graph_replayed(self, graph) -> bool:
        """Whether this replay ends a step: an optimizer stepped when the graph was captured."""
        self.passes += 1
        if self.by == "function" or graph not in self.graphs:
            return False
        self.backwards, self.by = 0, "graph"
        return True

    def backward(self, by: str) -> bool:
        """Whether this call ends a step: no optimizer steps, and it is of the kind that came often enough first."""
        self.passes += 1
        if by == "grad":
            self.gradients += 1
        else:
            self.backwards += 1
        calls = max(self.backwards, self.gradients)
        if self.by == "" and calls >= NO_OPTIMIZER:
            steps = self.compiled or not _optimizer_made() or calls >= NEVER_STEPS
            self.by, self.unseen = (by, calls - 1) if steps else ("", 0)
        return self.by == by


def size_of(parameters) -> int:
    """How many numbers they hold. Those of a lazy module have no shape before it is called."""
    return sum(p.numel() for p in parameters if not torch.nn.parameter.is_lazy(p))


def _optimizer_made() -> bool:
    """PyTorch marks a class of optimizers when the first one of it is made."""
    kinds = [torch.optim.Optimizer]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return any(getattr(kind.step, "hooked", False) for kind in kinds)
