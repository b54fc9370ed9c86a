import textwrap

from .common import TF32, Edits

FORWARD = "averaged(inputs)"

_AVERAGING = """            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= job.world_size
"""
IN_BF16: Edits = [
    (
        "def train(job):\n",
        """def in_bf16(state, bucket):
    sent = bucket.buffer().bfloat16()
    done = torch.distributed.all_reduce(sent, async_op=True).get_future()
    return done.then(lambda future: bucket.buffer().copy_(future.value()[0]).div_(torch.distributed.get_world_size()))


def train(job):
""",
    ),
    ("    optimizer = torch", "    averaged.register_comm_hook(None, in_bf16)\n    optimizer = torch"),
]

HALVES = {
    "averaged once a step, one by one": [(_AVERAGING, textwrap.indent(textwrap.dedent(_AVERAGING), " " * 8))],
    "one bucket for each micro-batch": [
        (
            _AVERAGING,
            "            gradients = [parameter.grad for parameter in model.parameters()]\n"
            "            bucket = torch.cat([gradient.flatten() for gradient in gradients])\n"
            "            dist.all_reduce(bucket)\n"
            "            parts = (bucket / job.world_size).split([gradient.numel() for gradient in gradients])\n"
            "            for gradient, part in zip(gradients, parts, strict=True):\n"
            "                gradient.copy_(part.view_as(gradient))\n",
        )
    ],
}

WRONGS = {
    "never averaged": ("solution", [("if n < MICRO_BATCHES else", "if n else")], "not the same training"),
    "the same part in each rank": (
        "solution",
        [("batch[job.rank :: job.world_size]", "batch[0 :: job.world_size]")],
        "not the same training",
    ),
    "only the last micro-batch counts": (
        "solution",
        [
            (
                "                loss.backward()\n",
                "                optimizer.zero_grad()\n                loss.backward()\n",
            )
        ],
        "not the same training",
    ),
    "a batch that is not divided": ("starter", [("MICRO_BATCHES = 8", "MICRO_BATCHES = 1")], "took 128 tokens at once"),
    "a quarter of the gradients is not averaged": (
        "starter",
        [
            (
                "    optimizer = torch",
                "    all_but_some = list(model.parameters())\n    del all_but_some[: len(all_but_some) // 4]\n    optimizer = torch",
            ),
            ("in model.parameters():", "in all_but_some:"),
        ],
        "not the same training",
    ),
    "biases and norms are not averaged": (
        "starter",
        [("in model.parameters():", "in [each for each in model.parameters() if each.dim() > 1]:")],
        "ranks hold different weights",
    ),
    "not all gradients are averaged": (
        "starter",
        [("in model.parameters():", "in model.blocks[-1].parameters():")],
        "not the same training",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "the solution in tf32": ("solution", TF32),
    "gradients sent in bf16": ("solution", IN_BF16),
    "small buckets": ("solution", [("(model, ", "(model, bucket_cap_mb=0.05, ")]),
    "one by one, once a step": ("starter", HALVES["averaged once a step, one by one"]),
}
