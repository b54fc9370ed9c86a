"""Leaves its own drive, with the last step of each turn, names that take long to look for: it is to be busy in the other's turn."""

from tests.adversaries import LINKS, ahead, wrap

CATEGORY = "machine"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    text = """
        import socket, sys

        def asked():
            frame = sys._getframe(1)
            while frame and not (frame.f_code.co_name == "run" and "steps" in frame.f_locals):
                frame = frame.f_back
            return frame.f_locals["steps"] if frame else 1

        def train(job):
            lines = [f"{name}\\n".encode() for name in (long_way(str(job.dataset.files[0])), job.dataset.files[0])]
            loop = steps(job)
            while True:
                peers = []
                for left in range(asked(), 0, -1):
                    loss = next(loop)
                    for n in range(96 * (left == 1)):
                        one = socket.socket(socket.AF_UNIX)
                        one.connect(job.dataset.drive)
                        peers.append(one)
                        one.send(lines[n % 2] * 20)
                    yield loss
                for one in peers:
                    one.close()
        """
    return ahead(LINKS, wrap(text, lab))
