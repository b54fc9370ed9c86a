"""The points of the grade cells are edited, and the grade is written into their source."""

from tests.adversaries import graded

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    for cell in graded(notebook):
        cell.source = repr(cell.metadata.nbgrader.points)
        cell.metadata.nbgrader.points = 1000.0
