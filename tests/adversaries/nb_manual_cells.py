"""Grade cells are turned into text that a person grades, with the grade's name exchanged for another's."""

from tests.adversaries import cells

CATEGORY = "nbgrader"


def tamper(notebook) -> None:
    found = cells(notebook)
    found["throughput"].metadata.nbgrader.grade_id = "explanation"
    found["explanation"].metadata.nbgrader.grade_id = "throughput"
    found["reads"].cell_type = "markdown"
