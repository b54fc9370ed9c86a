"""`grader try` on jobs that compile their model, or what calls it, in real processes. Nothing of a lever may break a graph."""

import pytest

from tests.own_jobs import MODEL, watched

TRAIN = """
    def loss_of(x):
        return model(x).square().mean()
    COMPILED
    for _ in range(80):
        optimizer.zero_grad(); loss_of(data[:16][0]).backward(); optimizer.step()
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"], file=open("graphs", "w"))
"""
WHOLE = 'backend="eager", fullgraph=True'
AROUND = ["autocast to bfloat16 around Sequential"]
WITHIN = ["the model is called within a function that is compiled"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiled", "notes", "reasons"),
    [
        (f"model.compile({WHOLE})", AROUND, []),
        (f"model[0].compile({WHOLE})", AROUND, []),
        (f"loss_of = torch.compile(loss_of, {WHOLE})", [], WITHIN),
    ],
)
def test_autocast_stands_around_what_is_compiled_or_says_why_not(tmp_path, compiled, notes, reasons):
    body = TRAIN.replace("COMPILED", compiled)
    options = {"record": False, "at_step": 6, "window_s": 0.0, "levers": ["autocast"]}
    process, seen = watched(tmp_path, MODEL, body, options=options, cwd=tmp_path)
    assert seen.status == 0
    assert (process["steps"], process["notes"], process["reasons"]) == (80, notes, reasons)
    assert (tmp_path / "graphs").read_text() == "1\n"
