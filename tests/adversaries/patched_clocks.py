"""Every clock of the process goes at a tenth of its speed, so that its steps seem to take a tenth of the time."""

from tests.adversaries import ahead, starter

CATEGORY = "timing"


def source(lab: str) -> str:
    clocks = """
        import time

        for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
            setattr(time, name, lambda clock=getattr(time, name), start=getattr(time, name)(): start + 0.1 * (clock() - start))
            ns = getattr(time, name + "_ns")
            setattr(time, name + "_ns", lambda clock=ns, start=ns(): start + (clock() - start) // 10)
    """
    return ahead(clocks, starter(lab))
