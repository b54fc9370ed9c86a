"""Many at once on one gradebook, as `nbgrader_config.py` opens it: nobody's points are lost."""

import collections
import multiprocessing
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from traitlets.config import PyFileConfigLoader

from grader.classroom import summary

REPOSITORY = Path(__file__).resolve().parents[1]
PROCESSES, THREADS = 4, 16
CELLS = [f"check-{n}" for n in range(6)]


def url(course: Path) -> str:
    """The gradebook of a course, as the course's configuration says it."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", course)
    return PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config().CourseDirectory.db_url


def autograde(at: str, student: str) -> None:
    """What `nbgrader autograde` does to the gradebook for one student."""
    with Gradebook(at) as gradebook:
        gradebook.update_or_create_student(student)
    with Gradebook(at) as gradebook:
        gradebook.update_or_create_submission("lab", student)
    with Gradebook(at) as gradebook:
        for grade in gradebook.find_submission_notebook("lab", "lab", student).grades:
            grade.auto_score, grade.needs_manual_grade = 7.0, False
        gradebook.db.commit()


def _together(at: str, number: int, barrier, said) -> None:
    def one(thread: int) -> None:
        barrier.wait()
        try:
            autograde(at, f"student-{number}-{thread}")
            said.put("")
        except Exception as error:
            said.put(f"{type(error).__name__}: {error}".splitlines()[0])

    threads = [threading.Thread(target=one, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_64_at_once(tmp_path, alembic):
    at = url(tmp_path)
    with Gradebook(at) as gradebook:
        gradebook.add_assignment("lab")
        gradebook.add_notebook("lab", "lab")
        for name in CELLS:
            gradebook.add_grade_cell(name, "lab", "lab", max_score=10, cell_type="code")
    fork = multiprocessing.get_context("fork")  # 64 connections in four processes
    barrier, said = fork.Barrier(PROCESSES * THREADS), fork.Queue()
    processes = [fork.Process(target=_together, args=(at, n, barrier, said)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    outcomes = collections.Counter(said.get(timeout=600) for _ in range(PROCESSES * THREADS))
    for process in processes:
        process.join()
    assert outcomes == {"": PROCESSES * THREADS}
    with Gradebook(at) as gradebook:
        for student in gradebook.students:
            grades = gradebook.find_submission_notebook("lab", "lab", student.id).grades
            assert [grade.auto_score for grade in grades] == [7.0] * len(CELLS)
        assert len(gradebook.students) == PROCESSES * THREADS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_summary_waits_for_whoever_writes(tmp_path, alembic):
    with Gradebook(url(tmp_path)):
        pass
    writer = sqlite3.connect(tmp_path / "gradebook.db", check_same_thread=False)
    writer.execute("BEGIN EXCLUSIVE")
    done = threading.Thread(target=lambda: (time.sleep(6), writer.rollback()))  # SQLite by itself waits for 5
    done.start()
    assert not summary.stale(tmp_path / "gradebook.db", [summary.Row("ann", "2a_workers", summary.GRADED, 5.0, 70.0)])
    done.join()
