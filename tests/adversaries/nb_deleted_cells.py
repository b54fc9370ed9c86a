"""The grade cells are deleted: nbgrader gives full points for some that it cannot find."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    for cell in cells(notebook).values():
        if cell.metadata.nbgrader.grade:
            notebook.cells.remove(cell)
