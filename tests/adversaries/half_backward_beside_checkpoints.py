"""After 30 whole steps half of each batch is left out of the backward pass, not of the loss."""

from tests.adversaries import edit, starter

CATEGORY = "work"
LABS = ("2j_checkpoint",)
LOSS = "F.cross_entropy(model({0}).flatten(0, 1), {1}.flatten())"
WHOLE = f"        loss = {LOSS.format('tokens', 'targets')}\n        loss.backward()\n"
HALF = f"""        if step > 30:
            half = {LOSS.format("tokens[::2]", "targets[::2]")}
            half.backward()
            with torch.no_grad():
                loss = (half + {LOSS.format("tokens[1::2]", "targets[1::2]")}) / 2
        else:
            loss = {LOSS.format("tokens", "targets")}
            loss.backward()
"""


def source(lab: str) -> str:
    return edit(starter(lab), [(WHOLE, HALF)])
