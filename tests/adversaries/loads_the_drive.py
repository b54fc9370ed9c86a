"""Leaves a backlog of requests with the drive, which the parent's process works off while the other loop is timed."""

from tests.adversaries import wrap

CATEGORY = "machine"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return wrap(
        """
        import os, socket, sys

        DRIVE, open_ = os.path.expanduser("~/drive"), []

        def asked():
            frame = sys._getframe(1)
            while frame and not (frame.f_code.co_name == "run" and "steps" in frame.f_locals):
                frame = frame.f_back
            return frame.f_locals["steps"] if frame else 1

        def leave(job):
            line = str(job.dataset.files[0])
            for _ in range(100):
                one = socket.socket(socket.AF_UNIX)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212992)
                one.connect(DRIVE)
                one.setblocking(False)
                open_.append(one)
                try:
                    while True:
                        one.send(line.encode() + b"\\n")
                except BlockingIOError:
                    pass

        def train(job):
            before = left = 0
            loop = steps(job)
            while True:
                for one in open_:
                    one.close()
                open_.clear()
                steps_now = asked()
                for left in range(steps_now, 0, -1):
                    loss = next(loop)
                    if left == 1 and steps_now > 1.5 * before:
                        leave(job)
                    before = steps_now if left == 1 else before
                    yield loss
        """,
        lab,
    )
