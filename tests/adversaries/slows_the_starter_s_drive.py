"""Stops, slows and asks for the memory and files of every process that serves a drive and is not its own's."""

from tests.adversaries import attempt

CATEGORY = "machine"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    text = """
        import glob, os, signal
        tried = []
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                if b"drive_server" not in open(folder + "/cmdline", "rb").read():
                    continue
            except OSError:
                continue
            pid = int(folder[6:])
            for what in (
                lambda: os.listdir(f"/proc/{pid}/fd"),
                lambda: open(f"/proc/{pid}/mem", "r+b"),
                lambda: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
                lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
                lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
                lambda: os.kill(pid, signal.SIGSTOP),
                lambda: os.kill(pid, signal.SIGCONT),
            ):
                try:
                    tried.append(what())
                except OSError as error:
                    tried.append(type(error).__name__)
        return tried
        """
    return attempt(text, lab)
