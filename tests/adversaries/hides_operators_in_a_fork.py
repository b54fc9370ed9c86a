"""A part of the fix in a second process, which the profiler does not look into; this one hands losses and weights on."""

from tests.adversaries import wrap
from tests.variants import half_fix

CATEGORY = "machine"
LABS = ("3d_tiny_ops", "3f_attention", "3n_lengths", "4f_your_repository")
DEVICES = ("cpu",)
CONTROL = "half fix"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import os, struct

            job.model.share_memory()
            (asked, ask), (answer, answers) = os.pipe(), os.pipe()
            if os.fork() == 0:
                try:
                    for loss in steps(job):
                        os.read(asked, 1)
                        os.write(answers, struct.pack("d", loss.item()))
                finally:
                    os._exit(0)
            while True:
                os.write(ask, b"x")
                yield torch.tensor(struct.unpack("d", os.read(answer, 8))[0])
        """,
        lab,
        half_fix(lab),
    )
