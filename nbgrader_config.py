"""nbgrader for this course. The commands, from this folder:

    nbgrader generate_assignment 2a_workers --force    # labs/2a_workers and its gradebook entry
    nbgrader autograde 2a_workers                      # measures submitted/<student>/2a_workers/2a_workers.ipynb
    nbgrader generate_feedback 2a_workers
    nbgrader export --to grades.csv

Grading takes a GPU; `--MeasuredGrade.device=cpu --MeasuredGrade.quick=True` tries it out on a laptop."""

from pathlib import Path

from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ComputeChecksums,
    LimitOutput,
    LockCells,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
    SaveCells,
)

from grader.frontends.nbgrader import (
    MeasuredGrade,
    ReleaseLab,
    RestoreMetadata,
    SubmittedNotebook,
    code_to_html,
    markdown_to_html,
)
from grader.frontends.release import IGNORED

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "pytorch-speed"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.ignore = [*IGNORED, "*.pyc", "feedback"]
# SQLite lets one write at a time: with several graders at work the others wait, up to two minutes. (`nbgrader db upgrade`
# cannot read the timeout: give it --db=sqlite:///gradebook.db.)
c.CourseDirectory.db_url = f"sqlite:///{Path(__file__).resolve().parent}/gradebook.db?timeout=120"

# nbgrader's own lists, with ReleaseLab for ClearSolutions ...
c.GenerateAssignment.preprocessors = [
    LockCells,
    ReleaseLab,
    ClearOutput,
    CheckCellMetadata,
    ComputeChecksums,
    SaveCells,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
    CheckCellMetadata,
]
# ... a reader that no notebook stops, RestoreMetadata for DeduplicateIds ...
c.Autograde.exporter_class = SubmittedNotebook
c.Autograde.sanitize_preprocessors = [
    RestoreMetadata,
    ClearOutput,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
# ... and MeasuredGrade for Execute: no kernel ever runs a student's code.
c.Autograde.autograde_preprocessors = [
    MeasuredGrade,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# Formgrader's pages and the feedback: what a student wrote is shown, never run.
c.HTMLExporter.filters = {"markdown2html": markdown_to_html, "highlight_code": code_to_html}
c.HTMLExporter.exclude_raw = True  # these are shown as the HTML that they hold, past the filters; no lab has one

# The Validate button in JupyterLab does run the notebook, in the learner's own kernel; a grade takes a few minutes there.
c.Execute.timeout = 900  # seconds a cell
