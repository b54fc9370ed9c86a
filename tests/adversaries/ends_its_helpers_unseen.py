"""Another process trains on a part of each batch, a new one for each, and no one waits for them: the kernel adds their time to nobody's."""

from tests.adversaries import edit, takes_more_processes

CATEGORY = "machine"
LABS = ("3n_lengths",)
DEVICES = ("cpu",)


HELPS = """        if os.fork() == 0:
            try:
                other.copy_(backward(1))
                for share, each in zip(shares, parameters):
                    share.copy_(each.grad)
                os.write(hand, b"x")
            finally:
                os._exit(0)
        loss = backward(0)
"""


def source(lab: str) -> str:
    before, _, after = takes_more_processes.source(lab).partition("    if os.fork() == 0:")
    _, optimizer, rest = after.partition("    optimizer = ")
    return edit(
        before + "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + optimizer + rest,
        [
            ("    import os\n", "    import os, signal\n"),
            ("backwards(job, 0)", "backwards(job)"),
            ('        os.write(go, b"x")\n        loss = backward()\n', HELPS),
            ("def backwards(job, n):", "def backwards(job):"),
            ("def backward(parts=parts, real=real):", "def backward(n, parts=parts, real=real):"),
        ],
    )
