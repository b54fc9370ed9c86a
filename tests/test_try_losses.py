"""`grader try`: the losses of a job are seen however it makes its gradients, and what a lever does to them is told."""

import json
import math

from grader.frontends.try_levers import text
from grader.own import trying
from grader.own.trying import Rung, Tried
from tests.own_jobs import LOOK, MODEL, watched_all
from tests.test_try import lever

TRAIN = """
    import json
    true, parameters = [], list(model.parameters())
    def batch():
        return torch.randn(4, 8), torch.randn(4, 1)
    def loss_of(values, x, y):
        return nn.functional.mse_loss(torch.func.functional_call(model, values, (x,)), y)
    def descend(gradients):
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients): p -= 0.01 * gradient
"""
BODIES = {
    "backward": """
        loss = loss_of({}, *batch()); loss.backward(); true.append(loss.item())
        descend([p.grad for p in parameters]); model.zero_grad()
    """,
    "several losses at once": """
        losses = [loss_of({}, *batch()) for _ in range(2)]; true += [loss.item() for loss in losses]
        torch.autograd.backward(tensors=losses); descend([p.grad for p in parameters]); model.zero_grad()
    """,
    "a loss of each sample": """
        x, y = batch(); loss = (model(x) - y).square(); loss.backward(torch.full_like(loss, 0.25)); true.append(loss.mean().item())
        descend([p.grad for p in parameters]); model.zero_grad()
    """,
    "autograd.grad": """
        loss = loss_of({}, *batch()); true.append(loss.item())
        descend(torch.autograd.grad(outputs=loss, inputs=parameters))
    """,
    "a step of its own within": """
        loss = loss_of({}, *batch()); inner = torch.autograd.grad(loss, parameters, create_graph=True)
        loss = loss + sum(each.square().sum() for each in inner); true.append(loss.item()); loss.backward()
        descend([p.grad for p in parameters]); model.zero_grad()
    """,
    "torch.func.grad": """
        gradients, loss = torch.func.grad_and_value(loss_of)(dict(model.named_parameters()), *batch())
        true.append(loss.item()); descend(gradients.values())
    """,
    "torch.func.vmap": """
        each = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0, 0))
        gradients, losses = each(dict(model.named_parameters()), *batch())
        true.append(losses.mean().item()); descend(gradient.mean(0) for gradient in gradients.values())
    """,
}


def test_losses_are_seen_however_gradients_are_made(tmp_path):
    """The loss of a job that calls backward() is what that is called on: gradients on the way are none."""
    turn = "    for _ in range(80):{}\n    json.dump(true, open(f'{{os.getpid()}}.json', 'w'))\n"
    bodies = {name: turn.format(body) for name, body in BODIES.items()}
    model = MODEL.replace("optimizer = ", "optimizer = None  # ") + TRAIN
    found = watched_all(tmp_path, bodies, model, {**LOOK, "losses": 20})
    for name, each in found.items():
        true = json.loads((tmp_path / f"{each['pid']}.json").read_text())[:20]
        assert each["losses"] == true or trying._apart(each["losses"], true) < 1e-6, name
        assert (len(each["losses"]), each["over"]) == (20, "the job ended"), name


def judged(base: list[float], other: list[float]) -> str:
    below, rung = Rung((), [0.1, 0.1], [0.0] * 2, losses=base), Rung((lever("x"),), [0.05] * 2, [0.0] * 2, losses=other)
    found = Tried(below, [rung])
    trying._judge(found, rung, below)
    return text(found)


def test_losses_that_are_no_numbers_any_longer_are_marked():
    base = [1.0, 0.9, 0.8]
    said = judged(base, [1.0, math.nan, math.nan])
    assert "its first losses are no numbers any longer" in said and "Don't keep it." in said
    assert "no numbers" not in judged([1.0, math.nan, math.nan], [1.0, math.nan, math.nan])


def test_losses_that_were_not_seen_are_not_taken_for_equal():
    assert "No losses of this job were seen" in judged([], [])
    assert "No losses of this job were seen" not in judged([1.0], [1.0])
