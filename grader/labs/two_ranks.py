"""The GPT that two ranks train in 3j and 3o: its forms, but for batch, memory and gain."""

from typing import Any

from grader.devices import NO_MULTICAST
from grader.labs import gpt
from grader.labs.lab import Form, Parity

MICRO_BATCHES = 8  # as in the starters


def _work(weights: float, width: int, length: int, batch_size: int) -> dict[str, Any]:
    """2 operations forward and 4 backward for each weight and each of a rank's tokens."""
    tokens = batch_size // 2 * length
    return {"flops": 6 * weights * tokens, "matrix": 4 * width**2, "max_tokens_per_forward": tokens // MICRO_BATCHES}


def on_gpus(batch_size: int, gpu_memory: float, minimum_gain: float, **more: Any) -> Form:
    """Few tokens for many weights: a micro-batch is computed in about the time that its messages take, or in less."""
    return gpt.on_gpu(
        options={"layers": 2, "width": 3072, "heads": 24, "length": 256, "batch_size": batch_size, "lr": 5e-5},
        gpu_memory=gpu_memory,
        minimum_gain=minimum_gain,
        noise=0.05,
        # 1 - cosine: 3j's solution 0.00001, only one of two layers averaged 0.018 (H200, torch 2.11); gradients sent in bf16 0.00001 (CPU)
        parity=Parity(steps=24, loss=0.003, norm=0.01, cosine=0.998, drift=0.02, held_out=0.05),
        environment=NO_MULTICAST,
        ranks=2,
        exchanged=57_000_000,
        **_work(226e6, 3072, 256, batch_size),
        **more,
    )


def small(full: Form) -> Form:
    """On each GPU twice 102 million weights at 16 bytes (fp32, gradient, Adam's two moments), a tenth more for their copies in bf16 or
    for messages, 0.2 GB of activations, CUDA's half GB and NCCL's."""
    work = _work(100.7e6, 2048, 256, full.options["batch_size"])
    return full.smaller("small", 5.9e9, {"width": 2048, "heads": 16}, exchanged=25_400_000, **work)


def on_cpu(layers: int, width: int, weights: int, minimum_gain: float, cosine: float, exchanged: int) -> Form:
    """Two processes that talk by gloo: what a message costs is larger, what is counted is the same.

    exchanged: a quarter of the gradients. One rank that trains alone, and sends nothing, is faster here than two."""
    return gpt.on_cpu(
        options={"layers": layers, "width": width, "heads": 4, "length": 16, "batch_size": 16, "lr": 2e-4},
        minimum_gain=minimum_gain,
        noise=0.05,
        parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=cosine, drift=0.02, held_out=0.1),
        ranks=2,
        exchanged=exchanged,
        **_work(weights, width, 16, 16),
    )
