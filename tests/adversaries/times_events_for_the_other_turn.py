"""Timers end in the starter's turns, each told to thousands of event queues: the core that runs then pays for it."""

from tests.adversaries import every_step

CATEGORY = "machine"
LABS = ("3a_precision",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return every_step(
        """
        if step == 0:
            import ctypes, os, resource, time

            libc, event = ctypes.CDLL(None), (ctypes.c_uint32 * 3)(1, 0, 0)
            timers = [timer for timer in (libc.timerfd_create(1, 0) for _ in range(20)) if timer >= 0]
            queues = [libc.epoll_create1(0) for _ in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)]
            for timer in timers:
                for queue in queues:
                    libc.epoll_ctl(queue, 1, timer, ctypes.byref(event))
            print(len(timers), "timers", len(queues), "queues", flush=True)
        for n, timer in enumerate(timers):
            libc.timerfd_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 0, 0, 100_000_000 + n * 50_000_000)), None)
        """,
        lab,
    )
