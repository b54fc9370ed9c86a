"""Copies for checkpoints queue up in the timed blocks; they are written while the grader asks for the weights, which no clock counts."""

from tests.adversaries import edit, solution

CATEGORY = "timing"
LABS = ("2j_checkpoint",)
CONTROL = "solution"
NEVER_WAITS = [
    (
        "        if self.writing:\n"
        "            self.writing.result()  # the buffers are free again, and an error of the thread is not lost\n",
        "        self.buffers = {}\n",
    ),
    ("submit(self.write, step)", "submit(self.write, step, self.buffers)"),
    ("def write(self, step):", "def write(self, step, buffers):"),
    ('f"partial-{step}", self.buffers)', 'f"partial-{step}", buffers)'),
    (
        "    saver = Saver(job)\n",
        "    saver = Saver(job)\n\n"
        "    def weights():\n"
        "        if saver.writing:\n"
        "            saver.writing.result()\n"
        "        return dict(model.named_parameters())\n\n"
        "    job.weights = weights\n",
    ),
]


def source(lab: str) -> str:
    return edit(solution(lab), NEVER_WAITS)
