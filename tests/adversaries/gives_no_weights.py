"""Gradients of biases and norms are not averaged, and a rank that would tell gives none of its weights."""

from tests.adversaries import edit, starter

CATEGORY = "work"
LABS = ("3j_communication",)


def source(lab: str) -> str:
    return edit(
        starter(lab),
        [
            ("in model.parameters():", "in [each for each in model.parameters() if each.dim() > 1]:"),
            (
                "    optimizer = torch",
                "    job.weights = lambda: {} if job.rank else dict(model.named_parameters())\n    optimizer = torch",
            ),
        ],
    )
