"""Are the answers to requests those of the untouched loop? The gate of labs that serve in place of training."""

import math
from collections.abc import Sequence
from statistics import fmean

from grader.checks.parity import NAME, WINDOW
from grader.labs.lab import Answers
from grader.result import FAIL, PASS, CheckResult

TITLE = "Same answers"
HINT = (
    "Answer every request in full, and in its order. The score of a byte depends on all of the text before it and on no "
    "padding. Each picture keeps its full size. Models may run in 16 bits, but log-probabilities are taken in fp32."
)


def judge(answers: Answers, right: Sequence[float], submission: Sequence[float], whose: str = "starter") -> CheckResult:
    """The looks at the submission's answers beside those of a loop that is trusted, for as many requests as both have answered.

    A look is a sum over all answers to a request with random signs. One wrong answer changes it by a random number of about 1
    or more, rounding by one that is smaller but never zero: of some in a row the root mean square tells the two apart."""
    off = [a - b for a, b in zip(submission, right, strict=False)]
    windows = [off[i : i + WINDOW] for i in range(0, max(1, len(off) - WINDOW + 1), WINDOW)]
    windows[-1] = off[WINDOW * (len(windows) - 1) :]
    found = [math.sqrt(fmean(d * d for d in window)) for window in windows]
    worst = max(range(len(found)), key=found.__getitem__)
    evidence = {
        "requests": len(off),
        f"worst_beside_the_{whose.replace(' ', '_')}": found[worst],
        "within": answers.within,
    }
    if found[worst] <= answers.within:
        reason = "Every request gets the answers that the untouched loop gives."
        return CheckResult(NAME, TITLE, PASS, 0, 0, reason, "", evidence)
    first = WINDOW * worst + 1
    reason = (
        f"These are not the same answers. Those to requests {first} to {first + len(windows[worst]) - 1} "
        f"differ from the {whose}'s by {found[worst]:.2g}, and at most {answers.within:.2g} is allowed. One "
        "wrong answer in each request makes a difference of about 1 or more."
    )
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, HINT, evidence)


def too_many(requests: int) -> CheckResult:
    reason = (
        f"The loop claims to have answered {requests} requests. The reference solution could not answer as many "
        "in the longest time that a grade may take."
    )
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, HINT, {"requests": requests})
