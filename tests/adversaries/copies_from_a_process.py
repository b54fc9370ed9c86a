"""A second process keeps a second and more of pinned copies queued, which go on when it is frozen."""

from tests.adversaries import attempt

CATEGORY = "machine"
LABS = ("2b_transfers", "3a_precision")
DEVICES = ("cuda",)


def source(lab: str) -> str:
    return attempt(
        """
        import subprocess
        import sys

        code = '''
        import time
        import torch
        host = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
        there = torch.empty_like(host, device="cuda")
        while [there.copy_(host, non_blocking=True) for _ in range(1000)]: torch.cuda.synchronize()
        '''
        process = subprocess.Popen([sys.executable, "-c", "\\n".join(map(str.strip, code.split("\\n")))], start_new_session=True)
        return process.pid
        """,
        lab,
    )
