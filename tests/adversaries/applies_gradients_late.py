"""The first steps are whole; after that each step applies the gradients of the batch before."""

from tests.adversaries import edit, solution

CATEGORY = "work"
LABS = ("4f_your_repository",)
CONTROL = "solution"


def source(lab: str) -> str:
    return edit(
        solution(lab),
        [
            (
                "    for tokens, targets in DataLoader(",
                "    late = None\n    for step, (tokens, targets) in enumerate(DataLoader(",
            ),
            ("batch_sampler=job.batches):\n", "batch_sampler=job.batches)):\n"),
            (
                "        optimizer.step()\n",
                "        if step > 25:\n"
                "            late, now = [each.grad for each in model.parameters()], late\n"
                "            for parameter, gradient in zip(model.parameters(), now or late):\n"
                "                parameter.grad = gradient\n"
                "        optimizer.step()\n",
            ),
        ],
    )
