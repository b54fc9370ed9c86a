"""The cells stand in reverse order."""

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    notebook.cells.reverse()
