"""How fast the step of 4a's solution can be, and whether a CUDA graph helps: edits of it, for `tests/benchmarks/resnet_rate.py`."""

from .common import Edits

# nothing is decoded, cropped or sent: what the step itself can train, whatever feeds it
RESIDENT: Edits = [
    (
        "        images = cropped(stored[chosen[:, 0]], chosen[:, 1:], job.size).float().div(64).sub(2)\n",
        "        images = stored.float().div(64).sub(2)\n",
    ),
    (
        "        # all that a step needs from the host: six integers a picture\n"
        "        chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, job.dataset.sizes[batch])], dim=1)\n"
        "        if cuda:\n"
        "            chosen = chosen.pin_memory().to(job.device, non_blocking=True)\n",
        "        if not step:\n"
        "            chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, job.dataset.sizes[batch])], dim=1)\n"
        "            chosen = chosen.to(job.device)\n"
        "            images = cropped(pictures[chosen[:, 0]], chosen[:, 1:], job.size).round().to(torch.uint8)\n",
    ),
    ("compiled(pictures, chosen)", "compiled(images, chosen)"),
]
# the pictures are chosen outside: what a graph is given anew is copied, and all of them are 7 GB
RESNET_GRAPHED: Edits = [
    ("cropped(stored[chosen[:, 0]], ", "cropped(stored, "),
    ("compiled(pictures, chosen)", "compiled(pictures[chosen[:, 0]], chosen)"),
    ("torch.compile(loss_of)", 'torch.compile(loss_of, mode="reduce-overhead")'),
    ("yield loss.detach()", "yield loss.detach().clone()"),
]
RESIDENT_GRAPHED: Edits = [*RESIDENT, *RESNET_GRAPHED[2:]]


def _compiled_with(options: str) -> tuple[str, str]:
    return "torch.compile(loss_of)", f"torch.compile(loss_of, options={{{options}}})"


_BENCHMARK = "    torch.backends.cudnn.benchmark = True\n"
_EVERY_ALGORITHM = (_BENCHMARK, _BENCHMARK + "    torch.backends.cudnn.benchmark_limit = 0\n")  # 10 of them otherwise
# the first convolution on four channels, one of them zero: three are no size that tensor cores read
_FOUR_CHANNELS = (
    "    compiled = torch.compile",
    """    fourth = (0, 0, 0, 0, 0, 1)
    first = model.conv1
    first.forward = lambda images: F.conv2d(F.pad(images, fourth), F.pad(first.weight, fourth), stride=2, padding=3)
    compiled = torch.compile""",
)
_SEARCHED, _AS_PRODUCTS = '"coordinate_descent_tuning": True', '"conv_1x1_as_mm": True'
# what could make the step itself faster, each alone and all together
RESIDENT_TRIED: dict[str, Edits] = {
    "every algorithm of cuDNN's tried": [*RESIDENT, _EVERY_ALGORITHM],
    "a first convolution of four channels": [*RESIDENT, _FOUR_CHANNELS],
    "the compiler searches block sizes": [*RESIDENT, _compiled_with(_SEARCHED)],
    "1x1 convolutions as matrix products": [*RESIDENT, _compiled_with(_AS_PRODUCTS)],
    "all of these": [
        *RESIDENT,
        _EVERY_ALGORITHM,
        _FOUR_CHANNELS,
        _compiled_with(f"{_SEARCHED}, {_AS_PRODUCTS}"),
    ],
}
