"""What is said while the reference solution trains, and what the demo shows."""

import time

import pytest

from grader import labs, submission
from grader.checks import prediction
from grader.frontends.commands.grade import DEMO, demonstrated
from grader.frontends.notebook.note import ProgressBar
from grader.frontends.terminal import AGAIN_S, Terminal
from grader.grading import replay
from grader.grading.arms import set_up
from grader.grading.evidence import Checkpoint
from grader.labs.lab import Lab

LAB = labs.get("3d_tiny_ops")
assert isinstance(LAB, Lab)


def reference(passed_s: float = 0.0) -> replay.Reference:
    return replay.Reference(LAB, set_up(LAB.forms["cpu"], "cpu", True), 1, time.monotonic() - passed_s)


def test_the_reference_s_training_says_how_far_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(replay, "TELL_S", 0.0)  # after every step
    monkeypatch.setattr(replay, "ROUNDED", 1)
    first = LAB.forms["cpu"].parity.steps
    steps, said = (first + 3, first + 8), []
    checkpoints = [Checkpoint(step, tmp_path / str(step), 1) for step in steps]
    found = replay.twins(reference(), checkpoints, steps[0], lambda share, what: said.append((share, what)))
    assert found.keys() == set(steps), "the same trainings as without a word"
    once, rounded = ([share for share, what in said if words in what] for words in ("once more", "rounded weights"))
    assert len(once) == len(rounded) == steps[-1] - first + len(steps)
    assert once[0] < once[-1] < rounded[-1] == 0.99 and rounded[0] < 0.99


def test_a_bar_says_the_seconds_that_are_left(capsys):
    bar = Terminal("3d_tiny_ops")
    bar(0.1, "loading the starter")
    bar.began -= 100
    reference(passed_s=100).saying(bar, "the reference solution trains as long")(50)
    assert "trains as long, about 50 s left" in capsys.readouterr().err
    bar.printed -= AGAIN_S
    reference(passed_s=100).saying(bar, "the reference solution trains as long")(0)
    assert "trains as long, about 1 s left" in capsys.readouterr().err


class Shown:
    """The words of a notebook's bar."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, page: str, text: str) -> None:
        self.lines.append(text)


def test_data_that_are_made_once_are_not_in_the_time_left(capsys):
    page = Shown()
    for bar in (Terminal("2a_workers"), ProgressBar(page)):
        for at, what in ((0.0, "preparing data"), (0.02, "looking at the machine")):
            bar.began -= 1000
            bar(at, what)
        bar.began -= 50
        bar(0.5, "timing pair 1")
    look = ProgressBar(page)  # which shows nothing while data are made
    look.began -= 1000
    look(0.1, "loading")
    look.began -= 10
    look(0.5, "the first step")
    assert "timing pair 1, about 50 s left" in capsys.readouterr().err
    assert [line for line in page.lines if "left" in line] == [
        "[ 50%] Timing pair 1, about 50 s left",
        "[ 50%] The first step, about 10 s left",
    ]


@pytest.mark.parametrize("name", DEMO)
def test_the_demo_s_solution_predicts_for_the_device_that_grades(name):
    lab = labs.get(name)
    assert isinstance(lab, Lab)
    for form in lab.forms:
        (_, starter), (_, solution) = demonstrated(lab, form)
        said = dict(solution.prediction or ())
        graded_on = form if lab.scored_on_both else ""
        judged = prediction.judge(
            lab.prediction, (lab.cause, *lab.close), {"": said["gain"]}, solution.prediction, graded_on
        )
        assert judged.points == judged.max_points and not judged.unmeasured
        assert not starter.prediction and len(said) == 3
    assert dict(submission.solution(lab).prediction or ())["gain"] == DEMO[name]["cuda"]
