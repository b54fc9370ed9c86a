"""Phase 3: the lab of the costliest operations, the healthy loop, and the retest."""

from dataclasses import replace

import nbformat
import pytest
import variants
from test_phase1_labs import answered, cell
from test_phase2_labs import graded, said
from test_solutions import path as solution_path
from test_solutions import shown_by

from grader import labs, machine, trace
from grader.errors import UserError
from grader.grade import grade
from grader.grading.forms import choose_form
from grader.kinds import costs, shared
from grader.kinds.costs import BOUNDS, REASONS
from grader.kinds.shared import read_answers
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.submission import solution
from grader.trace.events import CPU_OP
from grader.trace.lines import by_line

# ---------------------------------------------------------------- the retest

RETEST = labs.get("3l_retest")


def test_retest_solution_and_starter():
    result = grade(solution(RETEST), RETEST)
    assert result.score == 100 and {c.status for c in result.checks} == {PASS}
    assert grade(cell(RETEST.starter), RETEST).score == 0


HALF = (
    # the causes only
    {name: {part.key: ... for part in q.parts[1:]} for name, q in zip("abcde", RETEST.questions, strict=True)},
    # tiny kernels taken for launching; any communication taken for waiting; the trace's own numbers misread
    {"c": {"cause": "launch-bound"}, "d": {"best_ms": 8.8}, "e": {"cause": "communication-bound", "hidden": 0.21}},
)


@pytest.mark.parametrize("half", HALF)
def test_retest_half(half):
    assert 40 <= answered(RETEST.name, **half).score <= 70


WRONG = [
    ("a", {"cause": "memory-bound"}, "matmuls and convolutions take 60.9 of 65.7 ms"),
    ("a", {"tflops": 799}, "more than 10% off"),
    ("b", {"cause": "compute-bound"}, "matmuls and convolutions take 4.1"),
    ("c", {"cause": "launch-bound"}, "for 0 of 2.22 ms the GPU is idle because the host has not launched"),
    ("c", {"launches": 303}, "more than 5% off"),
    ("d", {"cause": "healthy"}, "then the GPU would calculate nearly all the time"),
    ("e", {"cause": "communication-bound"}, "communication with nothing beside it takes 1.74 of 23.8 ms"),
    ("e", {"hidden": 79}, "Write 0.25 for 25%"),
]


@pytest.mark.parametrize(("question", "said", "against"), WRONG)
def test_retest_wrong(question, said, against):
    result = answered(RETEST.name, **{question: said})
    check = result.check(question)
    assert check.status == FAIL and against in check.reason, check.reason
    assert result.score == 80 + check.points < 100


@pytest.mark.slow
def test_retest_notebook_runs(tmp_path):
    shown = shown_by(RETEST.name, tmp_path)
    assert "8.78 ms" in shown["look-d"] and "on 2 NVIDIA H200" in shown["look-d"]
    assert "100 of 100 points" in shown["check"] and "20.0" in shown["grade-a"]


# ---------------------------------------------------------------- the healthy loop

HEALTHY = labs.get("3k_healthy")


def test_healthy_solution_is_the_starter():
    assert solution(HEALTHY).source.strip().endswith(HEALTHY.starter.strip())


@pytest.mark.slow
@pytest.mark.parametrize("fault", variants.faults(HEALTHY.name))
def test_healthy_faults(fault):
    result = graded(HEALTHY.name, variants.faults(HEALTHY.name)[fault])
    assert result.check("parity").status == FAIL and result.check("throughput").points == 0, said(result)


def test_healthy_wrong_training():
    source, words = variants.wrongs(HEALTHY.name)["half the batch"]
    result = graded(HEALTHY.name, source)
    assert words in said(result) and result.score == 0


# ---------------------------------------------------------------- the costliest operations

COSTS = labs.get("3b_top_ops")


def mapped(**changes: object) -> Result:
    """The grade of the solution's answers with those changes: op_1={"line": ...}, share=..., trace=..."""
    answers = read_answers(solution(COSTS))
    for key, value in changes.items():
        if key.startswith("op_"):
            number = int(key[3:])
            answers[number] = answers[number] | value if isinstance(value, dict) else value
        else:
            answers[key] = value
    return grade(cell(f"answers = {answers!r}".replace("Ellipsis", "...")), COSTS)


def test_costs_solution_and_starter():
    result = grade(solution(COSTS), COSTS)
    assert result.score == 100 and {c.status for c in result.checks} == {PASS}, [c.reason for c in result.checks]
    result = grade(cell(COSTS.starter), COSTS)
    assert result.score == 0 and "Say in `trace` which trace you mean" in result.check("1").reason
    result = mapped(op_1=..., op_2={}, op_3=None, share=...)
    assert result.score == result.check("2").points == 30 and "Not answered yet" in result.check("1").reason


def test_costs_in_another_order():
    answers = read_answers(solution(COSTS))
    assert mapped(op_1=answers[3], op_2=answers[1], op_3=answers[2]).score == 100
    assert mapped(op_1={"operation": "_scaled_dot_product_cudnn_attention_backward"}).score == 100
    for line in (
        "grader/workloads/gpt.py(44): forward",
        'File "/course/grader/workloads/gpt.py", line 44',
        "gpt.py, line 44",
    ):
        assert mapped(op_1={"line": line}).score == 100
    assert mapped(op_1={"bound": "compute-bound", "cause": "At its roof."}, op_2={"bound": "Memory bound"}).score == 100


HALF_COSTS = (
    # the names, which the table has, and the lines
    {f"op_{n}": {"bound": ..., "cause": ...} for n in (1, 2, 3)} | {"share": ...},
    # everything that is busy taken for compute, everything slow for the wrong units
    {f"op_{n}": {"bound": "compute", "cause": "slow units"} for n in (1, 2, 3)},
    # two of three
    {"op_3": ..., "share": 0.5},
)


@pytest.mark.parametrize("half", HALF_COSTS)
def test_costs_half(half):
    assert 40 <= mapped(**half).score <= 65


WRONG_COSTS = [
    # changes, check, points, words
    ({"op_1": {"operation": "aten::mm"}}, "1", 0, "'aten::mm' takes 0.155 ms per step. Others take more"),
    ({"op_1": {"operation": "aten::relu"}}, "1", 0, "is none of the operations in the table"),
    ({"op_2": {"operation": "aten::cross_entropy_loss"}, "op_3": {}}, "3", 0, "you named it already"),
    ({"op_1": {"line": "planted.py:111"}}, "1", 21, "'planted.py:111' asks for different work"),
    (
        {"op_1": {"line": "train.py:44"}},
        "1",
        21,
        "train.py asks for none of this work. lab.code() shows lines of planted.py, gpt.py",
    ),
    ({"op_1": {"line": "gpt.py:9000"}}, "1", 21, "'gpt.py:9000' is in none of the functions that lab.code() shows"),
    (
        {"op_1": {"line": "forward"}},
        "1",
        21,
        "'forward' is not a line. Write a file and a number in quotes, such as \"",
    ),
    (
        {"op_1": {"line": 44}},
        "1",
        21,
        '44 is not a line. Write a file and a number in quotes, such as "planted.py:44".',
    ),
    (
        {"op_2": {"bound": "compute"}},
        "2",
        23,
        "not compute. Its 0.316 ms per step are 8 kernels of 39.4 us on average, 378 MB",
    ),
    ({"op_1": {"bound": "memory-bound"}}, "1", 23, "not memory. Its"),
    ({"op_1": {"bound": "launch"}}, "1", 23, "8 kernels of 45.3 us on average, 161 GFLOP, 220 MB"),
    ({"op_2": {"cause": "at its roof"}}, "2", 22, "not at its roof"),
    ({"op_2": {"cause": "slow"}}, "2", 22, "'slow' is none of: slow units, tiny kernels"),
    ({"op_2": {"cause": ["slow units"]}}, "2", 22, "is none of"),
    ({"op_2": ["aten::mm"]}, "2", 0, "It must be a dictionary with: operation, line, bound, cause"),
    ({"share": 18}, "share", 0, "Write 0.25 for 25%"),
    ({"share": 0.3}, "share", 0, "more than 0.03 off"),
    ({"share": "0.18"}, "share", 0, "is not a number. Write it without quotes"),
]


@pytest.mark.parametrize(("changes", "name", "points", "words"), WRONG_COSTS)
def test_costs_wrong(changes, name, points, words):
    check = mapped(**changes).check(name)
    assert check.points == points and check.status == FAIL and words in check.reason, check.reason
    if points and "none of" not in check.reason:  # the right entry is not told
        key = "bound" if "bound" in changes.get(f"op_{name}", {}) else "cause"
        right = read_answers(solution(COSTS))[int(name)][key]
        assert f" {right}" not in check.reason.partition(f"`{key}`")[2]


@pytest.mark.parametrize("source", ["x = 1", "answers = [1]", "answers = {'trace': open('x').read()}"])
def test_costs_answers_that_are_none(source):
    result = grade(cell(source), COSTS)
    assert result.fatal and result.score == 0


@pytest.mark.parametrize("said", ["yesterday's", 7, {"live": 1}])
def test_costs_of_no_trace(said):
    assert 'It must be "live" or "recorded"' in mapped(trace=said).fatal


@pytest.mark.skipif(machine.has_gpu(), reason="this machine has a GPU")
def test_costs_live_needs_a_gpu():
    result = mapped(trace="live")
    assert {c.status for c in result.checks} == {NOT_MEASURED} and result.score == 0
    assert choose_form(COSTS, "auto") == choose_form(COSTS, "cpu") == result.form == "traces"
    with pytest.raises(UserError, match="no NVIDIA GPU"):
        choose_form(COSTS, "cuda")


def test_costs_recorded_trace_is_clear():
    """Three operations that can be asked for; their functions are there under the names that were recorded."""
    seen = costs.recorded(COSTS)
    assert costs.unclear(seen.operations, 3) == ""
    for o in seen.operations:
        place = costs.function_of(o)
        assert place and any(f"def {o.function}" in text for _, text in place.text()[:3])
        assert place.holds(f"{place.file}:{place.last}") and place.holds(str(place.first))
        assert not place.holds(f"{place.file}:{place.last + 1}") and not place.holds("other.py:1")


def test_costs_loop_tells_its_lines():
    """The live loop on this machine's CPU, in small: what it calls is found in the functions that call it."""
    sizes = {"batch": 2, "length": 8, "samples": 64, "width": 32, "layers": 2}
    data, step_s, _ = shared.watch(COSTS.forms["cuda"], "cpu", sizes, [], with_stack=True)
    assert step_s > 0
    read = trace.read_bytes(data, expect_gpu=False)
    ops = (read.category == CPU_OP).nonzero()[0]

    def lines(name: str) -> set[str]:
        return set(by_line(read, ops[read.named(name, ops)]))

    known = costs.recorded(COSTS).operations[0]
    for name, function in (("aten::sigmoid$", "activate"), ("aten::matmul", "spectrum"), ("aten::addcdiv_", "update")):
        told = [line for line in lines(name) if "top_ops.py:" in line]
        place = costs.function_of(replace(known, line="grader/workloads/top_ops.py:1", function=function))
        assert place and any(place.holds(line) for line in told), (name, lines(name))


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_costs_live_on_a_gpu():
    """The loop's three costliest operations are those that it was made for, and answers about them are right."""
    seen = costs.live(COSTS)
    assert costs.unclear(seen.operations, 3) == ""
    table = [(o.name, o.function, o.bound, costs.causes(o), round(o.gpu_ns / 1e6, 3)) for o in seen.operations]
    top = {(o.name, o.function, o.bound, costs.causes(o)) for o in seen.operations[:3]}
    assert top == {
        ("aten::matmul", "spectrum", "compute", ("slow units",)),
        ("aten::mul", "activate", "memory", ("at its roof",)),
        ("AdamW.step", "update", "launch", ("tiny kernels",)),
    }, table
    assert seen.operations[3].gpu_ns < 0.8 * seen.operations[2].gpu_ns, table
    answers: dict = {"trace": "live", "share": round(sum(o.share for o in seen.operations[:3]), 2)}
    for n, o in enumerate(seen.operations[:3], 1):
        answers[n] = {"operation": o.name, "line": o.line, "bound": o.bound, "cause": costs.causes(o)[0]}
    result = grade(cell(f"answers = {answers!r}"), COSTS)
    assert result.score == 100 and result.form == "cuda", [c.reason for c in result.checks]


@pytest.mark.slow
def test_costs_notebook_runs(tmp_path):
    shown = shown_by(COSTS.name, tmp_path)
    assert "What costs the GPU most" in shown["profile"]
    assert "memory-bound" not in shown["profile"] and "gpt.py:" not in shown["profile"]  # what is asked is not told
    assert "100 of 100 points" in shown["check"] and "30.0" in shown["grade-1"]
    if not machine.has_gpu():
        assert "def forward(self, x" in shown["code"]


def test_costs_words():
    answer = next(c for c in read_cells(solution_path(COSTS.name)) if c.startswith("## Diagnose"))
    assert all(f'`"{name}"`' in answer for name in (*BOUNDS, *REASONS))


def read_cells(path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]
