"""Sixty megabytes of code, which take a machine's memory and a quarter of an hour to parse."""

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    import copy

    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    notebook.cells.append(copy.deepcopy(code))
    notebook.cells[-1].update(id="long", source=f"x = [{'0,' * 30_000_000}]")
