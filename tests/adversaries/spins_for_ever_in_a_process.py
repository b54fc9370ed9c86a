"""A second process leaves a kernel of one thread that ends in an hour: GPUs take turns between processes that have one."""

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
        torch.cuda.init()
        torch.cuda._sleep(1 << 42)
        time.sleep(3600)
        '''
        process = subprocess.Popen([sys.executable, "-c", "\\n".join(map(str.strip, code.split("\\n")))], start_new_session=True)
        return process.pid
        """,
        lab,
    )
