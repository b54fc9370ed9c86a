"""Cells that would rewrite the grade cells and the gradebook if a kernel ever ran them."""

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    from nbformat.v4 import new_code_cell

    attack = """
    import sqlite3
    get_ipython().input_transformers_cleanup.append(lambda lines: ["50.0"])
    get_ipython().run_cell_async = None
    open("kernel-ran", "w").close()
    """
    notebook.cells.insert(0, new_code_cell(attack))
    notebook.metadata.kernelspec = {"name": "python3", "argv": ["touch", "kernel-ran"], "display_name": "x"}
