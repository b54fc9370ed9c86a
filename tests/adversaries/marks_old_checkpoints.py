"""The first checkpoints, which are compared, are right; those after them are the same with one number of each tensor changed."""

from tests.adversaries import edit, solution

CATEGORY = "work"
LABS = ("2j_checkpoint",)
CONTROL = "solution"


def source(lab: str) -> str:
    copied = "            self.buffers[name].copy_(tensor, non_blocking=True)\n"
    marked = "            else:\n                self.buffers[name].view(-1)[0] += 1\n"
    return edit(
        solution(lab),
        [(copied, "            if step <= 2 * self.job.every:\n    " + copied + marked)],
    )
