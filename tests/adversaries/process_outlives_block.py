"""A process in a session of its own goes on training while this one is stopped, and hands over what it has done."""

from tests.adversaries import wrap

CATEGORY = "timing"
DEVICES = ("cpu",)  # CUDA cannot be used again after a fork


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import os, struct

            for parameter in job.model.parameters():
                parameter.data.share_memory_()
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for loss in steps(job):
                        os.write(write, struct.pack("f", loss.item()))
                os._exit(0)
            while True:
                yield torch.tensor(struct.unpack("f", os.read(read, 4))[0])
        """,
        lab,
    )
