"""The first steps are whole; after that gradients are averaged in every second step, and weights when somebody looks at them."""

from tests.adversaries import edit, solution

CATEGORY = "work"
LABS = ("3j_communication",)
CONTROL = "solution"


def source(lab: str) -> str:
    return edit(
        solution(lab),
        [
            ("    for tokens, targets in loader:\n", "    for step, (tokens, targets) in enumerate(loader):\n"),
            ("if n < MICRO_BATCHES else", "if n < MICRO_BATCHES or (step > (25 if cuda else 13) and step % 2) else"),
            (
                "    optimizer = torch",
                "    job.weights = lambda: [torch.distributed.broadcast(p.data, 0) for p in model.parameters()] and dict(model.named_parameters())\n"
                "    optimizer = torch",
            ),
        ],
    )
