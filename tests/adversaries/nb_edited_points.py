"""The points of the grade cells are edited, and the grade is written into their source."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    for name in ("throughput", "reads", "pinned", "prediction"):
        cell = cells(notebook)[name]
        cell.source = repr(cell.metadata.nbgrader.points)
        cell.metadata.nbgrader.points = 1000.0
