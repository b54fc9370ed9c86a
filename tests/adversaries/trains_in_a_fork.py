"""A second process reads, decodes and trains, in threads of its own; the one that began only hands its losses on."""

from tests.adversaries import in_threads, wrap

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)
CONTROL = "threads"


def source(lab: str) -> str:
    text = """
        import os, struct

        def train(job):
            for each in job.model.parameters():
                each.data.share_memory_()
            (wait, go), (take, hand) = os.pipe(), os.pipe()
            if os.fork() == 0:
                try:
                    loop = steps(job)
                    while os.read(wait, 1):
                        os.write(hand, struct.pack("f", next(loop).item()))
                finally:
                    os._exit(0)
            while True:
                os.write(go, b"x")
                yield torch.tensor(struct.unpack("f", os.read(take, 4))[0])
        """
    return wrap(text, lab, in_threads(lab))
