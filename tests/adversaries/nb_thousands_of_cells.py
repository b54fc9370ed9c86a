"""Thousands of text cells that take seconds each to show, so that nobody gets feedback."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    import copy

    cell = copy.deepcopy(cells(notebook)["explanation"])
    cell.source = "<ul><li>" * 2500
    for i in range(3000):
        notebook.cells.append(copy.copy(cell))
        notebook.cells[-1].id = f"copy-{i}"
