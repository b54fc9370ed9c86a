"""The grade cells bring outputs with full points along."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    from nbformat.v4 import new_output

    for cell in cells(notebook).values():
        if cell.cell_type == "code":
            cell.outputs = [new_output("execute_result", {"text/plain": "50.0"}, execution_count=1)]
