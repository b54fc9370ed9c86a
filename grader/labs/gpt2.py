"""GPT-2 with 124 million weights, which 4b and 4d train: its forms, but for the starters' memory and gain."""

from grader.labs.lab import Form, Parity

VOCABULARY = 50257


def flops(layers: int, width: int, length: int, batch: int) -> float:
    """2 operations forward and 4 backward for each weight of a matrix product and each token, and for each of the two products of an
    attention, of which a causal one needs half."""
    return 6 * batch * length * (12 * layers * width**2 + VOCABULARY * width + layers * length * width)


def on_gpu(gpu_memory: float, minimum_gain: float) -> Form:
    return Form(
        workload="grader.workloads.gpt",
        options={
            "layers": 12,
            "width": 768,
            "heads": 12,
            "length": 1024,
            "batch_size": 32,  # keeps a grade within three minutes; a larger batch gains a few per cent
            "lr": 3e-5,  # as low as 3a's, and for the same reason
            "vocabulary": VOCABULARY,
            "bias": False,
            "bare": True,
        },
        data="tokens",
        gpu_memory=gpu_memory,
        minimum_gain=minimum_gain,
        noise=0.005,
        block_s=1.0,
        flops=flops(12, 768, 1024, 32),
        # another attention shows in the direction of the update: honest forms of 3f's stay above 0.9998
        parity=Parity(steps=10, loss=0.003, norm=0.005, cosine=0.997, drift=0.01, held_out=0.03),
    )


# a CPU gains nothing by most of what the labs are about: only the training is compared, and in 4b the logs
CPU = Form(
    workload="grader.workloads.gpt",
    options={
        "layers": 2,
        "width": 32,
        "heads": 2,
        "length": 64,
        "batch_size": 12,
        "lr": 1e-3,
        "vocabulary": 509,
        "bias": False,
        "bare": True,
    },
    data="tokens 509",
    minimum_gain=None,
    parity=Parity(steps=10, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
    threads=1,
)
