from grader.labs import get

from .common import NO_ATTENTION, Edits

FORWARD = "model(tokens)"


def _levers(*names: str) -> Edits:
    """The lab's own changes of the starter, which a grade times."""
    return [edit for name in names for edit in get("4f_your_repository").order.lever(name).changes]


HALVES = {
    "anomaly detection off": _levers("no_debugging"),
    "a fused attention": _levers("attention"),
    "bf16 autocast": _levers("autocast"),
    "bf16 autocast, anomaly detection off": _levers("autocast", "no_debugging"),
    "anomaly detection off, a fused optimizer": _levers("no_debugging", "fused"),
}

WRONGS = {
    "the future is seen": ("solution", [(", is_causal=True", "")], "not the same training"),
    "the mean of what came before, in place of attention": ("solution", NO_ATTENTION, "not the same training"),
    "weights in bf16, in place of autocast": (
        "solution",
        [
            ("job.model.to(job.device)", "job.model.to(job.device, torch.bfloat16)"),
            ("logits = model(tokens)", "logits = model(tokens).float()"),
        ],
        "float32",
    ),
    "the loss of every second token": (
        "solution",
        [("logits.flatten(0, 1), targets.flatten()", "logits[:, ::2].flatten(0, 1), targets[:, ::2].flatten()")],
        "not the same training",
    ),
}

HONEST = {
    "as it is": ("solution", []),
    "TF32, fp32 matmuls": (
        "solution",
        [
            ('enabled=job.device.type == "cuda"', "enabled=False"),
            ("    model = job", '    torch.set_float32_matmul_precision("high")\n    model = job'),
        ],
    ),
    "foreach": ("solution", [("fused=True", "foreach=True")]),
    "written out": ("starter", []),
    "written out, in bf16": ("starter", _levers("autocast")),
}
