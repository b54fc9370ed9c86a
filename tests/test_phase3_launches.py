"""The labs about launches and torch.compile on the CPU: what can be counted there separates starter, half fix and solution,
and what is wrong is rejected with its cause named. What needs a GPU is measured by `tests/benchmarks/measured.py`."""

import json
from dataclasses import replace

import pytest
import test_report
import variants
from helpers import assert_rejected, first, loop, running, said, traced_only, untimed, warmed_up
from kineto import document
from test_bad_input import FORGE, answer

from grader import labs, machine, trace
from grader.checks import trace as trace_check
from grader.frontends import report
from grader.grade import grade
from grader.look import peek
from grader.measure.blocks import Plan
from grader.result import FAIL, INCONCLUSIVE, PASS, Result
from grader.sandbox.child_error import ChildError
from grader.submission import Submission
from grader.trace import Metrics

TINY, COMPILE = "3d_tiny_ops", "3e_compile"
LABS = (TINY, COMPILE)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
PLAN = Plan(block_s=0.6, block_steps=2, min_pairs=3, max_pairs=3, precision=0.12, profile_steps=2)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)


def graded(name: str, source: str, plan: Plan = PLAN) -> Result:
    return grade(Submission(source), labs.get(name), device="cpu", plan=plan)


def counts(name: str, source: str, device: str = "cpu"):
    seen = peek(Submission(source), labs.get(name), device=device)
    assert not seen.message, seen.message
    return seen


@pytest.mark.parametrize(
    "name, what", [case for name in LABS for case in first((name, what) for what in variants.wrongs_on_a_cpu(name))]
)
def test_what_is_wrong_is_rejected_and_named(name, what):
    source, words = variants.wrongs(name)[what]
    assert_rejected(graded(name, traced_only(source), SHORT), words)


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_faults_are_rejected_and_honest_forms_are_not(name):
    lab = untimed(labs.get(name))

    def same(source: str) -> str:
        result = grade(Submission(traced_only(source)), lab, device="cpu")
        assert not result.fatal, result.fatal
        return result.check("parity").status

    assert {what: same(source) for what, source in variants.faults(name).items()} == dict.fromkeys(
        variants.faults(name), FAIL
    )
    honest = variants.honest_on_a_cpu(name)
    assert {what: same(source) for what, source in honest.items()} == dict.fromkeys(honest, PASS)


# ---------------------------------------------------------------- 3d: tiny kernels


@pytest.mark.slow
def test_operators_of_a_step():
    check = next(c for c in labs.get(TINY).trace if c.name == "operators")
    starter, solution = (
        counts(TINY, source).metrics.cpu_ops for source in (variants.starter(TINY), variants.solution(TINY))
    )
    assert starter > check.wanted.none_at and solution < 0.9 * check.wanted.bound
    for what, source in variants.halves(TINY).items():
        assert check.wanted.bound < counts(TINY, source).metrics.cpu_ops < check.wanted.none_at, what


@gpu
def test_launches_on_a_gpu():
    lab = labs.get(TINY)
    starter, solution = (
        counts(TINY, source, "cuda").metrics for source in (variants.starter(TINY), variants.solution(TINY))
    )
    for name in ("launches", "kernels"):
        check = next(c for c in lab.trace if c.name == name)
        assert (
            0.8 * check.wanted.none_at < getattr(starter, name) and getattr(solution, name) < 0.8 * check.wanted.bound
        )
    assert starter.tiny_kernel_share > 0.8


# ---------------------------------------------------------------- 3e: graphs

PLANTS = {
    "print": ("    return loss, torch", "    print(loss.item())\n    return loss, torch"),
    "item": ("largest.append(x.detach().abs().amax())", "largest.append(x.new_tensor(x.detach().abs().max().item()))"),
    "branch": (
        "    logits = logits * (CAP * usual / largest_logit).clamp(max=1)",
        "    if largest_logit > CAP * usual:\n        logits = logits * (CAP * usual / largest_logit)",
    ),
    "check": (
        "        largest.append(",
        "        if torch.isnan(x).any():\n            raise ValueError\n        largest.append(",
    ),
    "numpy": (
        "    weights = (torch.arange(length, device=tokens.device) / (length / 8)).clamp(max=1)",
        "    import numpy\n\n"
        "    weights = numpy.interp(numpy.arange(length), [0, length / 8], [0, 1]).astype(numpy.float32)\n"
        "    weights = torch.from_numpy(weights).to(tokens.device)",
    ),
}


def compiled(source: str) -> dict[str, int]:
    return counts(COMPILE, traced_only(source)).compiled


@pytest.mark.slow
def test_graphs_are_counted():
    assert compiled(variants.starter(COMPILE)) == {"graphs": 0, "graph_breaks": 0, "recompiles": 0}
    assert compiled(variants.solution(COMPILE)) == {"graphs": 1, "graph_breaks": 0, "recompiles": 0}
    each = compiled(variants.honest(COMPILE)["a graph for each length"])
    assert each == {"graphs": 4, "graph_breaks": 0, "recompiles": 3}
    as_it_is = compiled(variants.halves(COMPILE)["compiled as it is"])
    assert as_it_is["graph_breaks"] >= 3 and as_it_is["recompiles"] > 3


SETS_BACK = """
import torch._dynamo


def set_back():
    torch._dynamo.reset()
    torch._dynamo.utils.graph_break_reasons.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER.clear()
"""


@pytest.mark.slow
def test_counts_that_are_set_back_are_known():
    """Those of torch are anybody's to clear."""
    source = "import torch\n" + variants.halves(COMPILE)["compiled as it is"].replace(
        "import torch\n", SETS_BACK + "import torch\n", 1
    )
    as_it_is, set_back = (
        compiled(text)
        for text in (source, source.replace("        yield loss", "        set_back()\n        yield loss"))
    )
    assert set_back["graph_breaks"] >= as_it_is["graph_breaks"] >= 3
    assert set_back["recompiles"] >= as_it_is["recompiles"] > 3


@pytest.mark.parametrize("plant", first(PLANTS))
def test_each_plant_breaks_the_graph(plant):
    source = variants.edit(variants.solution(COMPILE), [PLANTS[plant], ("fullgraph=True, ", "")])
    assert compiled(source)["graph_breaks"] == 1


HARDLY = (
    (  # a graph, without a break, of what nobody uses
        "compiled = torch.compile(loss_of, fullgraph=True, dynamic=True)",
        'compiled, little = loss_of, torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)',
    ),
    ("        loss.backward()\n", "        little(loss.detach())\n        loss.backward()\n"),
)


def test_a_graph_of_next_to_nothing_is_none():
    source = variants.edit(variants.solution(COMPILE), HARDLY)
    lab = labs.get(COMPILE)
    lab = replace(lab, forms={"cpu": replace(lab.forms["cpu"], minimum_gain=4.0)})
    plan = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
    result = grade(Submission(source), lab, device="cpu", plan=plan)
    for name in ("breaks", "recompiles"):
        check = result.check(name)
        assert check.status == FAIL and check.points == 0 and "hardly any of the forward pass" in check.reason


def test_what_the_compiler_holds_of_a_step():
    sources = {1.0: traced_only(variants.solution(COMPILE)), 0.0: variants.edit(variants.solution(COMPILE), HARDLY)}
    for share, source in sources.items():
        assert counts(COMPILE, source).metrics.compiled_products == share


@pytest.mark.parametrize("kernel", ["", "triton_tem_fused_mm_0", "cudaGraphLaunch"])
def test_matmuls_that_no_operator_shows_are_not_taken_for_none(tmp_path, kernel):
    """Blocks compiled with max-autotune or reduce-overhead beside a head that is not: the head's matmul is the only operator."""
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        event | more
        for n in range(3)
        for more in (
            {"cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": 100 * n, "dur": 100},
            {"name": "Torch-Compiled Region: 0/0", "ts": 100 * n + 10, "dur": 30},
            {"name": kernel or "triton_poi_fused_gelu_0", "ts": 100 * n + 15, "dur": 10},
            {"name": "aten::mm", "ts": 100 * n + 50, "dur": 30},
        )
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document(events)))
    found = trace.metrics(trace.read(path, expect_gpu=False))
    assert found.compiled_products == (None if kernel else 0)


def test_nothing_compiled_has_no_whole_graph():
    for check in labs.get(COMPILE).trace[:2]:
        result = trace_check.judge(check, Metrics(compiled=None), [], supported=1.0)
        assert result.status == FAIL and result.points == 0 and "Nothing was compiled" in result.reason


@pytest.mark.slow
def test_breaks_are_judged_and_capped_by_the_gain():
    """As on a GPU, with graphs that are made and gain next to nothing."""
    lab = labs.get(COMPILE)
    lab = replace(lab, forms={"cpu": replace(lab.forms["cpu"], minimum_gain=4.0)})
    plan = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
    sources = {"broken": variants.halves(COMPILE)["compiled as it is"], "whole": variants.solution(COMPILE)}
    seen = {
        name: grade(Submission(traced_only(source)), lab, device="cpu", plan=plan) for name, source in sources.items()
    }
    for result in seen.values():
        assert result.check("parity").status == result.check("logs").status == PASS, said(result)
        assert result.check("breaks").points < 0.5 * result.check("breaks").max_points
        assert result.check("throughput").evidence["compile_s"] > 0
    assert "lines at which torch.compile gave up" in seen["broken"].check("breaks").reason
    assert seen["broken"].check("recompiles").evidence["compiled.recompiles"] > 3
    whole, speed = (seen["whole"].check(name) for name in ("breaks", "throughput"))
    assert whole.status == (INCONCLUSIVE if speed.status == INCONCLUSIVE else FAIL), said(seen["whole"])
    assert "For your gain you can get at most" in whole.reason


@pytest.mark.parametrize("counts", ["null", "{}", '{"graphs": 1, "graph_breaks": 0, "recompiles": 0.5}', "[1, 0, 0]"])
def test_forged_counts(counts):
    forged = answer('{"losses": [1.0], "compiled": ' + counts + "}")
    with running(loop(f"yield torch.ones(())\nreply({forged!r})", FORGE)) as child:
        child.load()
        child.start(1)
        child.run(1)
        child.start_profiler()
        with pytest.raises(ChildError, match="wrong form"):
            child.profile(2, "trace.json")


def test_compiling_again_in_a_later_step_is_told_apart_too():
    source = loop(
        "import time\nfor i in range(10**6):\n    time.sleep(1 if i in (0, 2) else 0.002)\n    yield torch.ones(())"
    )
    with warmed_up(source, 6) as arm:
        arm.burn()
    assert arm.compile_s > 1.5


def test_the_report_says_when_compiling_pays():
    check = test_report.throughput(2.0, starter_ms=40.0)
    check.evidence["compile_s"] = 10.0
    text = " ".join(report.text(test_report.make([check])).split())
    assert "Compiling took 10 s, which these times don't include. It pays for itself after 500 steps." in text


@gpu
def test_graphs_on_a_gpu():
    check = next(c for c in labs.get(COMPILE).trace if c.name == "kernels")
    starter, solution = (
        counts(COMPILE, source, "cuda") for source in (variants.starter(COMPILE), variants.solution(COMPILE))
    )
    assert 0.9 * check.wanted.none_at < starter.metrics.kernels and solution.metrics.kernels < 0.9 * check.wanted.bound
    assert solution.compiled["graph_breaks"] == 0
