"""A second process takes what is left of the GPU's memory, so that none is there for the starter and the reference."""

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
        held = []
        while time.sleep(0.1) is None: torch.cuda.mem_get_info()[0] < 512 << 20 or held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
        '''
        process = subprocess.Popen([sys.executable, "-c", "\\n".join(map(str.strip, code.split("\\n")))], start_new_session=True)
        return process.pid
        """,
        lab,
    )
