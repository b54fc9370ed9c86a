"""A batch that should be divided goes through at once, and the embedding's rows are taken by an index: no operator tells of a lookup."""

from tests.adversaries import starter
from tests.variants import edit

CATEGORY = "work"
LABS = ("3j_communication",)


def source(lab: str) -> str:
    return edit(
        starter(lab),
        [
            ("MICRO_BATCHES = 8", "MICRO_BATCHES = 1"),
            (
                "    optimizer = torch",
                "    embedding = model.embedding\n"
                "    embedding.forward = lambda tokens: embedding.weight[tokens]\n"
                "    optimizer = torch",
            ),
        ],
    )
