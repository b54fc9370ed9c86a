"""A second process spins on one multiprocessor for a millisecond in twenty: too little for a figure of utilisation to tell."""

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
        while torch.cuda._sleep(2_000_000) is None: time.sleep(0.02)
        '''
        process = subprocess.Popen([sys.executable, "-c", "\\n".join(map(str.strip, code.split("\\n")))], start_new_session=True)
        return process.pid
        """,
        lab,
    )
