"""The order of a submission's changes: the untouched loop is timed with them, one set after another, in trusted processes."""

from collections.abc import Mapping
from typing import Any

from grader.checks import order as order_check
from grader.grading.arms import Setup, open_arm
from grader.labs.lab import Lab, Order
from grader.measure.blocks import Plan
from grader.result import CheckResult, Progress, scored

WARM_STEPS = 4  # after the first
BLOCKS = 6


def order(lab: Lab, setup: Setup, seed: int, answers: Mapping[Any, Any], plan: Plan, progress: Progress) -> CheckResult:
    """Raises ChildError where a loop of the course's own does not run."""
    check = lab.order
    assert check is not None
    names, problem = order_check.chosen(check, answers, setup.form_name)
    if problem:
        return scored(check, 0, problem)
    try:
        with_changes(lab.starter, check, frozenset(names))
    except ValueError:
        return scored(
            check, 0, f"{', '.join(names)}: two of these change the same line, so only one of the two can be made."
        )

    def times() -> dict[frozenset[str], order_check.Timed]:
        made: dict[frozenset[str], order_check.Timed] = {}
        for done in order_check.rungs(names):
            progress(0.9 + 0.01 * len(made), f"the starter with {' and '.join(sorted(done)) or 'no change'}")
            made[done] = _timed(with_changes(lab.starter, check, done), setup, seed, plan.block_s)
        return made

    timed = times()
    judged = order_check.judge(check, names, timed)
    if judged.points == check.points:
        return judged
    # others may have slowed a whole process down: nothing is held against an order that is seen once
    return order_check.judge(check, names, {done: timed[done].beside(again) for done, again in times().items()})


def with_changes(starter: str, check: Order, names: frozenset[str]) -> str:
    """The starter's text with these changes. Raises ValueError where one of them leaves another nothing to change."""
    for name in sorted(names):
        for old, new in check.lever(name).changes:
            if old not in starter:
                raise ValueError(f"the starter has no {old!r} for {name}")
            starter = starter.replace(old, new)
    return starter


def _timed(source: str, setup: Setup, seed: int, block_s: float) -> order_check.Timed:
    """The fastest of some blocks, as others on the machine only ever make one slower."""
    with open_arm(source, setup, trusted=True) as arm:
        arm.child.load()
        arm.child.start(seed)
        arm.warm_up(1 + WARM_STEPS)
        steps = max(4, round(block_s / 2 / arm.step_s))
        first, second, *_ = sorted(arm.run(steps) for _ in range(BLOCKS))
        return order_check.Timed(first, second / first)
