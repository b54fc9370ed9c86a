"""The first steps are whole; after that one of eight micro-batches is left out of the backward pass, in every fourth step."""

from tests.adversaries import edit, solution

CATEGORY = "work"
LABS = ("3j_communication",)
CONTROL = "solution"


def source(lab: str) -> str:
    return edit(
        solution(lab),
        [
            ("    for tokens, targets in loader:\n", "    for step, (tokens, targets) in enumerate(loader):\n"),
            (
                "                loss.backward()\n",
                "                if n > 1 or step % 4 or step <= (25 if cuda else 13):\n                    loss.backward()\n",
            ),
        ],
    )
