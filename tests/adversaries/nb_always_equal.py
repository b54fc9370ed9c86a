"""The prediction is an object that equals everything, and grade cells are named by one."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    cells(notebook)[
        "predict"
    ].source = 'lab.predict(cause=type("E", (str,), {"__eq__": lambda a, b: True})(), gain=1e400)'
