"""Weights of a loop: read from it, written to a file and read from one, and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from grader.sandbox.contract import ContractError, some, type_in_words
from grader.sandbox.reading import finite
from grader.workloads.job import Job

SAME_WEIGHT = 0.05  # of an update
SMALLEST = 1e-300  # what nothing is divided by
SAMPLED = 4096  # numbers of a tensor that are compared between ranks


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and floating-point buffers by name, tied ones once."""
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    return dict(model.named_parameters()) | buffers


def trained_tensors(job: Job, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The trained tensors under the job's names and shapes."""
    if not job.weights:
        return named_tensors(model)
    rule = "job.weights must be a function that returns a dict of tensors by parameter name"
    if not callable(job.weights):
        raise ContractError(f"{rule}, but it is {type_in_words(job.weights)}")
    tensors = job.weights()
    if not isinstance(tensors, dict):
        raise ContractError(f"{rule}, but it returned {type_in_words(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ContractError(f"{rule}, but for {name!r} it returned {type_in_words(tensor)}")
    return tensors


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Some of its numbers, evenly taken: enough to compare ranks by."""
    return tensor.detach().flatten()[:: math.ceil(max(1, tensor.numel()) / SAMPLED)]


def of_rank_weights(job: Job, model: torch.nn.Module, rank: int, each: bool) -> dict[str, torch.Tensor]:
    """The trained tensors; each: of ranks other than the first samples, and of the model's own tensors where they give none, for some
    gather whole weights on the first rank alone. Called by all ranks, as shards must be gathered."""
    given = trained_tensors(job, model)
    own = named_tensors(model) if each and job.weights else {}
    samples = {name: sampled(whole(tensor)) for name, tensor in own.items()}
    return samples | {name: sampled(tensor) for name, tensor in given.items()} if each and rank else given


def whole(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)  # of a shard
    return gather() if gather else tensor


def received(file: Path) -> dict[str, torch.Tensor]:
    """The tensors in a file that comes from the submission, and may be anything."""
    try:
        given = safetensors.torch.load_file(file)
        for tensor in given.values():
            tensor.flatten()[:1].double()  # of a type that nothing can be compared with, as 4 bits
        return given
    except Exception as error:  # whatever the reader makes of it
        raise ContractError(
            f"The weights that the submission returned cannot be read: {error}", kind="weights"
        ) from None


def received_for(tensors: dict[str, torch.Tensor], file: Path) -> dict[str, torch.Tensor]:
    """Those of the weights in `file` that the job's model has, `tensors`."""
    given = received(file)
    bad = [n for n, t in tensors.items() if n not in given or given[n].shape != t.shape]
    if bad:
        raise ContractError(
            "The weights that the submission returned lack these, or have them in another shape: "
            + ", ".join(some(bad)),
            kind="weights",
        )
    return {name: given[name] for name in tensors}


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def comparison_of(
    model: torch.nn.Module, groups: Sequence[str], initial: dict[str, torch.Tensor], nudged: bool
) -> Comparison:
    """For a loop that begins with the model as it is. nudged: that is not with `initial`."""
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    own, given = ({n: b.clone() for n, b in model.named_buffers() if b.is_floating_point()} for _ in range(2))
    return Comparison(groups, initial, copies(model) if nudged else initial, trained, Statistics(own, given))


@dataclass
class Comparison:
    """A trusted loop's updates beside a submission's."""

    groups: Sequence[str]  # how the names begin of weights that are compared for themselves
    initial: dict[str, torch.Tensor]  # the job's weights
    own_start: dict[str, torch.Tensor]  # those that this loop has begun with: the same but for a nudge
    trained: set[str]  # names of those that the optimizer updates
    statistics: Statistics | None = None
    previous: dict[str, torch.Tensor] | None = None  # this loop's, a step before they are compared
    # this loop's and the submission's, where the last stretch ended
    before: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None = None

    def remember(self, trained: dict[str, torch.Tensor]) -> None:
        """Keep this loop's weights, a step before they are compared."""
        self.previous = {name: trained[name].detach().to("cpu", copy=True) for name in self.initial}

    def compare(
        self,
        trained: dict[str, torch.Tensor],
        given: dict[str, torch.Tensor],
        stretch: bool,
        rate: float,
        others: Sequence[dict[str, torch.Tensor]] = (),
    ) -> dict[str, Any]:
        """The total updates, that in `given` from the job's weights; stretch: likewise those since this was asked before.
        rate: the sum of the learning rates of all steps. others: samples of the weights of the submission's other ranks."""
        own = {name: trained[name].detach() for name in self.initial}
        answer: dict[str, Any] = {
            "missing": some(sorted(own.keys() - given.keys()) + _lacking(own, others)),
            "shapes": some([n for n in own if n in given and given[n].shape != own[n].shape]),
            "types": some([f"{n}: {given[n].dtype}" for n in own if n in given and given[n].dtype != own[n].dtype]),
        }
        if answer["missing"] or answer["shapes"] or answer["types"]:
            return answer
        if self.statistics:
            answer["statistics"] = self.statistics.apart(trained, given)
        # onto the device, where all that follows is fast; as copies, for the file is written over
        given = {name: given[name].to(tensor.device, copy=True) for name, tensor in own.items()}
        updates, vectors, decay, missed = Updates(self.groups), Updates(()), Decay(rate), Slope()
        still, apart = [], []
        for name, tensor in own.items():
            own_start, initial = (first[name].to(tensor.device) for first in (self.own_start, self.initial))
            a, b = updates.add(name, tensor - own_start, given[name] - initial)
            if tensor.dim() < 2:
                vectors.add(name, a, b)
            if name in self.trained:
                decay.add(own_start + tensor, b - a)
            if name in self.trained and self.previous:
                missed.add(_own_last(tensor.double() - self.previous[name].to(tensor.device).double(), a), b - a)
            if any(_differ(other[name], sampled(given[name]), sampled(b)) for other in others):
                apart.append(name)
            if a.any() and not b.any():
                still.append(name)
            elif b.any() and tensor.numel() >= 64:  # fp32 weights that moved to a shorter type's grid were kept in it
                for short in (torch.bfloat16, torch.float16):
                    if torch.equal(given[name].to(short).float(), given[name]):
                        answer["types"].append(f"{name}: values of {short} in float32")
        answer["norm_ratio"], answer["cosine"] = updates.norm_ratio(), updates.cosine()
        answer["vectors_cosine"], answer["decay"] = vectors.known_cosine(), decay.certain()
        answer["ahead"], self.previous = missed.certain(), None
        answer["still"], answer["types"], answer["apart"] = some(still), some(answer["types"]), some(apart)
        if stretch:
            answer |= self._stretch(own, given)
        return finite(answer)

    def _stretch(self, own: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> dict[str, float | None]:
        """Cosines of both updates since the last call, from the initial weights at first: of all weights, and of vectors."""
        own_before, given_before = self.before or (self.own_start, self.initial)
        updates, vectors = Updates(self.groups), Updates(())
        for name, tensor in own.items():
            at = tensor.device
            a, b = updates.add(name, tensor - own_before[name].to(at), given[name] - given_before[name].to(at))
            if tensor.dim() < 2:
                vectors.add(name, a, b)
        self.before = {name: tensor.clone() for name, tensor in own.items()}, given  # its own go on training
        return {"stretch_cosine": updates.cosine(), "vectors_stretch": vectors.known_cosine()}


@dataclass
class Statistics:
    """What models keep beside their weights, and change by themselves, as BatchNorm's running means do: two loops'."""

    own: dict[str, torch.Tensor]  # where they were compared last
    given: dict[str, torch.Tensor]

    def apart(self, own: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> float | None:
        """How far the changes since the last comparison are from one another, in units of the first: so much or more for a quarter of
        the tensors. 1 where they have stayed; None where nothing changes."""
        apart = []
        for name in self.own.keys() & own.keys() & given.keys():  # who lacks some is told when they are evaluated
            if given[name].shape != own[name].shape:
                continue
            change, other = (
                now[name].cpu().double() - before[name].cpu() for now, before in ((own, self.own), (given, self.given))
            )
            if change.any():
                apart.append(min(2.0, float((other - change).norm() / change.norm())))  # 2 where it is not finite
            self.own[name], self.given[name] = own[name].detach().clone(), given[name].clone()
        return sorted(apart)[3 * len(apart) // 4] if apart else None


def _lacking(own: dict[str, torch.Tensor], others: Sequence[dict[str, torch.Tensor]]) -> list[str]:
    """The weights that a rank does not give, or not whole, such as a shard, and whose."""
    return [
        f"{name} (rank {rank})"
        for rank, other in enumerate(others, 1)
        for name in sorted(own)
        if name not in other or other[name].shape != sampled(own[name]).shape
    ]


def _own_last(step: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """What the last step has for itself, beside the whole update: a training that is a little slower than another lacks no step."""
    return step - update * float((step * update).sum()) / max(float((update * update).sum()), SMALLEST)


def _differ(other: torch.Tensor, given: torch.Tensor, update: torch.Tensor) -> bool:
    """Whether samples of a weight on two ranks differ by more than SAME_WEIGHT of the update. Those of the same steps are equal."""
    return not (other.to(given.device).double() - given.double()).norm() <= SAME_WEIGHT * update.norm()


class Updates:
    """Length and direction of two updates, tensor by tensor: those of the group in which the two are furthest from each other."""

    def __init__(self, groups: Sequence[str]) -> None:
        self.sums = {group: [0.0, 0.0, 0.0] for group in (*groups, "")}  # products, squares of the one, of the other

    def add(self, name: str, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = one.double(), other.double()
        group = next(group for group in self.sums if name.startswith(group))
        for i, (x, y) in enumerate(((a, b), (a, a), (b, b))):
            self.sums[group][i] += float((x * y).sum())
        return a, b

    def norm_ratio(self) -> float | None:
        ratios = [math.sqrt(other / one) if one else math.inf for _, one, other in self.sums.values() if one or other]
        return max(ratios, key=lambda ratio: abs(ratio - 1) if ratio == ratio else math.inf, default=None)

    def cosine(self) -> float:
        cosines = [dot / math.sqrt(a * b) if a and b else 0.0 for dot, a, b in self.sums.values() if a or b]
        return min(cosines, key=lambda cosine: cosine if cosine == cosine else -math.inf, default=0.0)

    def known_cosine(self) -> float | None:
        """None where the one update is nothing, for then it has no direction."""
        return self.cosine() if any(one for _, one, _ in self.sums.values()) else None


class Slope:
    """How much of a direction is in the difference of two loops' updates, told tensor by tensor."""

    def __init__(self) -> None:
        self.tensors: list[
            tuple[float, float]
        ] = []  # of each: products of direction and difference, squares of the direction

    def add(self, direction: torch.Tensor, difference: torch.Tensor) -> None:
        self.tensors.append((float((direction * difference).sum()), float((direction * direction).sum())))

    def certain(self) -> float:
        """The difference as far as it is certain, towards 0: three standard errors less, told by how tensors differ."""
        squares = sum(square for _, square in self.tensors)
        if not squares:
            return 0.0
        found = sum(product for product, _ in self.tensors) / squares
        error = math.sqrt(sum((product - found * square) ** 2 for product, square in self.tensors)) / squares
        return math.copysign(max(0.0, abs(found) - 3 * error), found)


class Decay(Slope):
    """How much more weight decay one loop has than another. A step takes rate * weight decay * weight from a weight: too little for
    the update's direction to show, but it alone points where the weights do. rate: the sum of the learning rates of all steps."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def add(self, first_and_last: torch.Tensor, difference: torch.Tensor) -> None:
        """first_and_last: the sum of a weight as it was before all steps and after them. difference: of both loops' updates of it."""
        super().add(-self.rate / 2 * first_and_last.double(), difference)


def add_round_off(model: torch.nn.Module, draw: int) -> None:
    """Put round-off, drawn from `draw`, into a model's weights: each is off by up to 2**-9 of itself, two thirds of what rounding to bfloat16 does
    (root mean square). Weights that are copies of others stay so: an average begins as one."""
    random = torch.Generator().manual_seed(draw)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []  # as it was, as it is
    with torch.no_grad():
        for weight in model.parameters():
            before = weight.clone()
            new = next((new for old, new in made if torch.equal(old, before)), None)
            if new is None:
                new = before * (1 + 2**-9 * (2 * torch.rand(weight.shape, generator=random) - 1).to(weight.device))
                made.append((before, new))
            weight.copy_(new)
