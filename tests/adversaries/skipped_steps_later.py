"""The first steps are whole; after that the optimizer steps only every second time, and no gradient is made in between."""

from tests.adversaries import INPUTS, edit, starter

CATEGORY = "work"


def source(lab: str) -> str:
    head = f"    for {INPUTS[lab]} in loader:\n"
    return edit(
        starter(lab),
        [
            (head, head.replace(INPUTS[lab], f"step, ({INPUTS[lab]})").replace("loader", "enumerate(loader)")),
            (
                "        loss.backward()\n",
                "        if step >= 30 and step % 2:\n            yield loss.detach()\n            continue\n        loss.backward()\n",
            ),
        ],
    )
