"""As long as the starter's steps can be compared the loop logs what it should, and later what it makes up."""

from tests.variants import edit, half_fix

CATEGORY = "work"
LABS = ("2f_end_to_end",)
CONTROL = "half fix"


def source(lab: str) -> str:
    right = "        right = sum(int(guess == label) for guess, label in zip(logits.argmax(1), labels))\n"
    return edit(
        half_fix(lab),
        [(right, f"        right = len(labels) / 2\n        if step < 80:\n    {right}")],
    )
