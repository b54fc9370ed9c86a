"""Holds as many connections of the starter's drive as that gives, so that the starter waits for one."""

from tests.adversaries import DRIVES, ahead, attempt

CATEGORY = "machine"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    text = """
        import socket
        held = attack.held = []
        for path in drives():
            for _ in range(400):
                one = socket.socket(socket.AF_UNIX)
                one.settimeout(0.2)
                one.connect(path)
                held.append(one)
        return len(held)
        """
    return ahead(DRIVES, attempt(text, lab))
