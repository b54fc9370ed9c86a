"""nbgrader for this course. The commands, from this folder:

    grader calibrate 2a_workers --for-class            # once on each kind of machine
    nbgrader generate_assignment 2a_workers --force    # its gradebook entry; labs/2a_workers is there already
    grader class labs submitted                        # measures submitted/STUDENT/2a_workers/2a_workers.ipynb
    nbgrader autograde 2a_workers                      # takes over what was measured, and measures what was not
    nbgrader generate_feedback 2a_workers --force
    nbgrader export --to grades.csv

Without a GPU labs are graded in their CPU forms; `--MeasuredGrade.quick=True` is for trying out. The whole round:
grader/classroom/README.md."""

from pathlib import Path

from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ComputeChecksums,
    GetGrades,
    LimitOutput,
    LockCells,
    OverwriteCells,
    OverwriteKernelspec,
    SaveCells,
)

from grader.frontends.gradebook import SaveGrades
from grader.frontends.nbgrader import (
    FeedbackPage,
    MeasuredGrade,
    ReadablePage,
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
# ... MeasuredGrade for Execute, so no kernel ever runs a student's code, and SaveGrades for SaveAutoGrades.
c.Autograde.autograde_preprocessors = [
    MeasuredGrade,
    LimitOutput,
    SaveGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# Formgrader's pages and the feedback: what a student wrote is shown, never run.
c.HTMLExporter.filters = {"markdown2html": markdown_to_html, "highlight_code": code_to_html}
c.HTMLExporter.preprocessors = [ReadablePage]  # in place of the one that comes after it
c.CSSHTMLHeaderPreprocessor.enabled, c.ReadablePage.enabled = False, True
c.GenerateFeedback.exporter_class = FeedbackPage
c.GenerateFeedback.preprocessors = [GetGrades, ReadablePage]
c.HTMLExporter.exclude_raw = True  # these are shown as the HTML that they hold, past the filters; no lab has one

# The Validate button in JupyterLab does run the notebook, in the learner's own kernel; a grade takes a few minutes there.
c.Execute.timeout = 900  # seconds a cell
