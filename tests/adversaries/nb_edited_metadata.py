"""Grade cells are declared solutions, and solutions grades worth a thousand points."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    for cell in cells(notebook).values():
        ours = cell.metadata.nbgrader
        ours.grade, ours.solution, ours.locked, ours.points = not ours.grade, not ours.solution, False, 1000.0
