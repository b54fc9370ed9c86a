"""The lab 4f: a script that runs as it is, and three changes that are timed in the order in which they are named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import permutations

import pytest
import variants
from helpers import assert_rejected, assert_told_apart, said
from own_jobs import LOOK

from grader import labs
from grader.checks import order as order_check
from grader.checks import prediction as prediction_check
from grader.grade import Findings, grade, named_changes
from grader.grading import rungs
from grader.grading.arms import Setup
from grader.grading.evidence import Race, Work, Yardstick
from grader.grading.race import decides
from grader.grading.rungs import with_changes
from grader.grading.verdict import judge
from grader.labs.lab import AnyLab
from grader.measure.blocks import Plan
from grader.measure.decision import Pair
from grader.own import trying
from grader.own.running import run_watched
from grader.paths import REPOSITORY
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result, silent
from grader.submission import Submission

NAME = "4f_your_repository"
LAB = labs.get(NAME)
SCRIPT = LAB.folder / "train.py"
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
COMPARED = replace(LAB, forms={"cpu": replace(LAB.forms["cpu"], minimum_gain=None)})  # only the training
ON_A_CPU = ["no_debugging", "attention", "fused"]


def graded(source: str, lab: AnyLab = LAB) -> Result:
    return grade(Submission(source), lab, device="cpu", plan=SHORT)


# ---------------------------------------------------------------- the script


def test_the_script_beside_the_notebook_is_the_one_that_lessons_take():
    for folder in ("solutions", "labs"):
        assert (REPOSITORY / folder / NAME / "train.py").read_text() == SCRIPT.read_text()


def test_its_script_reads_no_module_that_is_a_link(tmp_path):
    """Debian links one of Python's modules to /etc, which a confined job may not read."""
    (tmp_path / "os.py").write_text("text")
    (tmp_path / "sitecustomize.py").symlink_to(tmp_path / "not_there.py")
    program = f"import os, train; os.__file__ = {str(tmp_path / 'os.py')!r}; print(bytes(train.text()).decode())"
    done = subprocess.run([sys.executable, "-c", program], cwd=SCRIPT.parent, capture_output=True, text=True)
    assert done.stdout == "text\n", done.stderr


def test_the_loop_is_the_script_s():
    """Word for word, so that what is learned of the script holds for the loop: attention, anomaly detection, the step."""
    script = [line.strip() for line in SCRIPT.read_text().splitlines()]
    for line in LAB.starter[LAB.starter.index("def attention") :].splitlines():
        own = ("def ", '"""', "length =", "model = job", "for ", "block.", "optimizer = ", "tokens, targets", "yield")
        assert not line.strip() or line.strip().startswith(own) or line.strip() in script, line


@pytest.mark.slow
def test_the_script_trains(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "2"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("step 0: loss 5.") and not done.stderr


@pytest.mark.slow
def test_the_levers_of_a_cpu_find_what_they_change_in_the_script(tmp_path):
    asked = {**LOOK, "record": False, "levers": ON_A_CPU}
    seen = run_watched([sys.executable, str(SCRIPT)], tmp_path / "watch", asked, looked=lambda seen: True, cwd=tmp_path)
    (process,) = seen.processes
    assert len(process["notes"]) == len(ON_A_CPU) and not process["failed"], process["notes"]


# ---------------------------------------------------------------- the levers


def test_each_lever_is_one_of_grader_try_and_changes_the_starter():
    known = {lever.name for lever in trying.levers(8, [0])}
    for lever in LAB.order.levers:
        assert lever.name in known
        changed = with_changes(LAB.starter, LAB.order, frozenset([lever.name]))
        assert changed != LAB.starter
        compile(changed, lever.name, "exec")


@pytest.mark.parametrize("said, points", [("compute-bound", 5), ("host-bound", 5), ("input-bound", 0)])
def test_who_names_the_stacks_that_anomaly_detection_writes_down_is_right(said, points):
    """On a CPU they take about as long as the model."""
    causes = (LAB.cause, *LAB.close)
    assert prediction_check.judge(LAB.prediction, causes, {}, (("cause", said), ("gain", 3.0))).points == points


def test_levers_that_do_not_exclude_each_other_go_together():
    names = [lever.name for lever in LAB.order.levers if lever.name != "foreach"]
    text = with_changes(LAB.starter, LAB.order, frozenset(names))
    compile(text, "all", "exec")
    assert all(word in text for word in ("autocast", "scaled_dot", "fused=True", ".compile()", '"high"'))
    assert "anomaly" not in text


def test_two_changes_of_one_line_are_said_and_end_no_grade():
    setup = Setup(LAB.forms["cpu"], "cpu", {}, [])
    result = rungs.order(LAB, setup, 1, {"cpu": ["no_debugging", "fused", "foreach"]}, SHORT, silent)
    assert result.status == FAIL and result.points == 0 and "change the same line" in result.reason


# ---------------------------------------------------------------- the verdict on an order

STEP_S = {(): 8.0, ("a",): 2.0, ("b",): 4.0, ("c",): 7.9, ("a", "b"): 1.0, ("a", "c"): 1.95, ("b", "c"): 3.9}
CHECK = replace(LAB.order, levers=tuple(replace(LAB.order.levers[0], name=name) for name in "abcd"))


def judged(names, step_s=STEP_S, last=0.9, spread=1.01):
    steps = {**step_s, tuple("abc"): last}
    known = {frozenset(done): order_check.Timed(seconds, spread) for done, seconds in steps.items()}
    assert set(order_check.rungs(names)) <= set(known)
    return order_check.judge(CHECK, names, known)


def test_the_greedy_order_has_all_points_and_no_other_one_has():
    points = {names: judged(names).points for names in permutations("abc")}
    assert points.pop(("a", "b", "c")) == 24 and max(points.values()) <= 16
    assert judged(("a", "b", "c")).status == PASS and judged(("b", "a", "c")).status == FAIL
    assert "a would have gained 4.00x there" in judged(("b", "a", "c")).reason


def test_a_change_that_gains_nothing_where_it_stands_does_not_count():
    result = judged(("a", "b", "c"), last=0.98)
    assert result.points == 16 and "c gains 1.02x where it stands, which is too little to count" in result.reason


def test_of_two_that_gain_about_the_same_either_may_come_first():
    close = {**STEP_S, ("a",): 2.0, ("b",): 2.05}
    assert judged(("a", "b", "c"), close).points == judged(("b", "a", "c"), close).points == 24


def test_a_process_that_was_slow_once_makes_its_time_uncertain():
    assert order_check.Timed(2.0, 1.01).beside(order_check.Timed(1.0, 1.2)) == (1.0, 2.0)
    assert order_check.Timed(1.0, 1.3).beside(order_check.Timed(1.01, 1.0)) == (1.0, 1.3)


def test_where_blocks_differ_nothing_is_held_against_an_order():
    right, wrong = judged(("a", "b", "c"), spread=1.5), judged(("b", "a", "c"), spread=1.5)
    assert right.status == PASS and wrong.status == INCONCLUSIVE and wrong.points == judged(("b", "a", "c")).points
    assert "two blocks of the same loop differ by 50%" in wrong.reason


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "No changes are named for a CPU"),
        ({"cpu": []}, 'answers["cpu"]'),
        ({"cpu": ["a", "b"]}, "a list of 3 different names"),
        ({"cpu": ["a", "b", "b"]}, "a list of 3 different names"),
        ({"cpu": "abc"}, "a list of 3 different names"),
        ({"cpu": ["a", "b", "loader"]}, "'loader' is none of: a, b, c, d"),
        ({"cpu": ["a", ["b"], {}]}, "a list of 3 different names"),
        ({"cpu": ["a", "b", 1 << 20_000]}, "a list of 3 different names"),  # no int of so many digits can be printed
    ],
)
def test_answers_that_name_no_order_say_why(answers, words):
    names, problem = order_check.chosen(CHECK, answers, "cpu")
    assert names == () and words in problem


# ---------------------------------------------------------------- grades


@pytest.mark.slow
@pytest.mark.parametrize("named", [[], ON_A_CPU])
def test_the_untouched_loop_earns_nothing(named):
    result = graded(variants.edit(LAB.starter, [('"cpu": []', f'"cpu": {named}')]))
    assert not result.fatal and result.score <= 10, said(result)
    assert named or "No changes are named for a CPU" in result.check("order").reason


@pytest.mark.parametrize(("gain", "share"), [(1.0, 0.0), (4.0, 1.0)])
def test_an_order_counts_as_far_as_the_loop_got_faster(gain, share):
    """Whoever only names three changes has made none."""
    form, target = LAB.forms["cpu"], 2.6
    pairs = (Pair(gain, 1.0),) * 5
    race = Race(pairs=pairs, decided=decides(False, target, form, SHORT)(pairs))
    order = CheckResult("order", LAB.order.title, PASS, LAB.order.points, LAB.order.points, "Measured here.")
    work = Work(parity=CheckResult("parity", "", PASS, 0, 0, ""))
    findings = Findings(LAB, "cpu", yardstick=Yardstick(target), work=work, race=race, order=order)
    judged = next(check for check in judge(findings, Submission(LAB.starter)) if check.name == "order")
    assert judged.points == pytest.approx(share * LAB.order.points, abs=0.05 * LAB.order.points), judged
    assert (judged.status == PASS) == (share == 1) == ("The untouched loop with the same answers " not in judged.reason)


@pytest.mark.slow
def test_solution():
    """Points are for an idle machine; what is counted holds on any."""
    result = graded(variants.solution(NAME))
    assert not result.fatal and result.check("parity").status == PASS, said(result)
    assert result.check("scores").evidence["score_matrices"] == 0
    order = result.check("order")
    assert len(order.evidence["rungs_ms"]) == 7 and list(order.evidence["on_top"]) == ON_A_CPU, order.reason
    assert [result.check(name).status for name in ("half_precision", "syncs")] == [NOT_MEASURED] * 2


def test_answers_that_are_no_literals_cost_their_own_points_only():
    """The loop runs, and what is asked for the order cannot be read."""
    findings = Findings(LAB, "cpu")
    read = named_changes(findings, Submission(variants.edit(variants.solution(NAME), [('"fused"]', "str(1)]")])))
    assert read == {} and "written out" in findings.warnings[0]


@pytest.mark.slow
def test_another_training_earns_nothing_for_its_order():
    source, words = variants.wrongs(NAME)["the loss of every second token"]
    result = graded(source)
    assert_rejected(result, words)
    assert result.check("order").status == FAIL and not result.check("order").evidence


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[NAME])
def test_what_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(NAME)[what]
    assert_rejected(graded(source, COMPARED), words)


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    assert_told_apart(variants.faults(NAME), variants.honest_on_a_cpu(NAME), lambda source: graded(source, COMPARED))


def test_without_a_measured_gain_no_changes_are_timed():
    result = graded(variants.solution(NAME), COMPARED)
    assert result.check("parity").status == PASS and result.check("order").status in (NOT_MEASURED, INCONCLUSIVE)
