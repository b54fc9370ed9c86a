"""What nbgrader's gradebook keeps of a notebook: no explanation gets its points, or loses them, unread."""

from pathlib import Path

from nbformat.notebooknode import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import SaveAutoGrades
from nbgrader.utils import is_solution
from traitlets import Unicode

from grader.classroom.cells import digest, written
from grader.classroom.people import LONGEST
from grader.frontends.nbgrader import ADDED, UNREADABLE, released_cells
from grader.result import write_text


class SaveGrades(SaveAutoGrades):
    """nbgrader's own, which gives 0 for an answer whose cell was left as it was, and flags all that a person has marked. Here a person
    looks where the student wrote text anywhere; what was marked is flagged again where text or points are others than those."""

    texts = Unicode("measured", help="Folder that keeps which texts were seen, from the course's folder").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        theirs = [cell for cell in nb.cells if not (cell.metadata.get(ADDED) and nb.metadata.get(UNREADABLE))]
        found = written(theirs, released_cells(self, about["assignment"]))
        self._wrote, now = bool(found), digest(found)
        folder = Path(CourseDirectory(parent=self).root) / self.texts / "explanations"
        student = about["student"]
        own = (
            student if len(student.encode()) <= LONGEST else digest([student])
        )  # beside which there is room for an ending
        kept = folder / about["assignment"] / f"{own}.txt"
        self._same = kept.exists() and kept.read_text(encoding="utf-8").strip() == now
        nb, resources = super().preprocess(nb, resources)
        write_text(kept, f"{now}\n")
        return nb, resources

    def _add_score(self, cell: NotebookNode, resources: dict) -> None:
        name = cell.metadata["nbgrader"]["grade_id"]
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        points, flagged, marked = grade.auto_score, grade.needs_manual_grade, grade.manual_score is not None
        super()._add_score(cell, resources)
        if is_solution(cell) and self._wrote:
            grade.auto_score = None
            grade.needs_manual_grade = True
        same = self._same if is_solution(cell) else grade.auto_score == points
        if marked and same:
            grade.needs_manual_grade = flagged
        self.gradebook.db.commit()

    def _add_comment(self, cell: NotebookNode, resources: dict) -> None:
        super()._add_comment(cell, resources)
        if self._wrote:  # there is a response, in another cell
            name = cell.metadata["nbgrader"]["grade_id"]
            comment = self.gradebook.find_comment(name, self.notebook_id, self.assignment_id, self.student_id)
            comment.auto_comment = None
            self.gradebook.db.commit()
