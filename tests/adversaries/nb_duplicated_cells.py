"""The grade cells are there three times, each copy with full points in its output."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    import copy

    for name, cell in cells(notebook).items():
        for i in range(2):
            notebook.cells.append(copy.deepcopy(cell))
            notebook.cells[-1].id = f"{name}-copy-{i}"
