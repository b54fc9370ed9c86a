"""Grade cells are turned into text that a person grades, with the grade's name exchanged for another's."""

from tests.adversaries import cells, graded

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    found, of_the_trace = cells(notebook), graded(notebook)[1]
    found["throughput"].metadata.nbgrader.grade_id = "explanation"
    found["explanation"].metadata.nbgrader.grade_id = "throughput"
    of_the_trace.cell_type = "markdown"
