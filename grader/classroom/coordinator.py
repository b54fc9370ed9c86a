"""Gives the workers what the store lacks, one grade each at a time, and keeps what comes back at once.

Whatever is killed, the next run makes only what is missing. In a pool that lasts it takes over the grades that are under way."""

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from distributed import Future

from grader.classroom import worker
from grader.classroom.pool import Pool
from grader.classroom.store import FAILED, Store
from grader.classroom.submissions import Task
from grader.safe_text import tell
from grader.version import version

LIMIT_S = 900.0  # of one grade; a usual one takes less than one minute
TRIES = 2
LOOK_S = 0.1  # between two looks at what is done
PATIENCE_S = 60.0  # without a worker, until that is said
HELP = (
    "Start one with `grader pool start`, or start the SLURM job that ended. Or stop with Ctrl-C and give the "
    "same command later. Finished grades are kept."
)

Done = Callable[[Task, dict[str, Any]], None]


def grade_all(
    jobs: Iterable[Task],
    pool: Pool,
    store: Store,
    *,
    again: Iterable[Task] = (),
    limit_s: float = LIMIT_S,
    until: float = math.inf,
    takes_s: Callable[[Task], float] = lambda job: 0.0,
    done: Done = lambda job, record: None,
    starting: Callable[[int], None] = lambda count: None,
    keep: bool = False,
) -> list[tuple[Task, dict[str, Any]]]:
    """Grade what the store lacks for the pool's machines, equal jobs once; returns the new ones.

    again: made anew; the old result stays until the new one is there. until: a job that takes `takes_s` seconds is not begun later
    (`time.monotonic()`). starting gets how many are to be made, done each record that is kept. keep: see `worker.run`."""
    with store.locked():
        machines = pool.machines()
        for job in again:
            store.ask(job)
        waiting = list({job.digest: job for job in jobs if store.asked(job) or not store.final(job, machines)}.values())
        starting(len(waiting))
        made = []
        running: dict[Future, tuple[Task, int]] = {}  # with the number of the attempt
        no_worker = NoWorkerWarning()
        in_time: Callable[[Task], bool] = lambda job: time.monotonic() + takes_s(job) < until  # noqa: E731
        try:
            while running or any(map(in_time, waiting)):
                # no more than there are workers: none waits behind another, and none is blamed for another's death
                while len(running) < max(1, pool.size()) and (ready := next(filter(in_time, waiting), None)):
                    waiting.remove(ready)
                    running[_submit(pool, ready, 1, limit_s, keep)] = ready, 1
                time.sleep(LOOK_S)
                no_worker.look(pool)
                for future in [future for future in running if future.done()]:
                    job, tried = running.pop(future)
                    record = _record(future)
                    if FAILED in record and tried < TRIES and in_time(job):
                        _forget(pool, future)
                        running[_submit(pool, job, tried + 1, limit_s, keep)] = job, tried + 1
                        continue
                    made.append((job, store.put(job, record | {"tries": tried})))
                    _forget(pool, future)  # only now: where it could not be written, the next run takes it over
                    done(job, made[-1][1])
        finally:
            for future in running if not pool.lasting else ():
                future.cancel()
    return made


class NoWorkerWarning:
    """Says so when a pool has had no worker for `PATIENCE_S`: a grade that waits for one would look like one that is being made."""

    def __init__(self) -> None:
        self.said = self.looked = time.monotonic()

    def look(self, pool: Pool) -> None:
        now = time.monotonic()
        if now - self.looked < PATIENCE_S / 20:
            return
        self.looked = now
        if pool.size():
            self.said = now
        elif now - self.said >= PATIENCE_S:
            self.said = now
            tell(f"The pool has had no worker for {PATIENCE_S:.0f} s. {HELP}")


def _submit(pool: Pool, job: Task, attempt: int, limit_s: float, keep: bool) -> Future:
    key = f"grade-{job.digest}-{attempt}"
    future = pool.client.submit(worker.run, job.to_json(), limit_s, keep=keep, key=key, pure=False)
    if pool.lasting:  # it goes on without us, and is there for whoever asks for it next
        pool.client.publish_dataset(future, name=key, override=True)
    return future


def _forget(pool: Pool, future: Future) -> None:
    if pool.lasting:
        pool.client.unpublish_dataset(future.key)
    future.release()


def _record(future: Future) -> dict[str, Any]:
    if future.status == "finished":
        record = json.loads(future.result())
        if record["version"] == version():
            return record
        what = f"a worker that joined meanwhile has another version of the grader ({record['version']})"
        return {FAILED: what, "seconds": record["seconds"], "worker": record["worker"]}
    error = future.exception() if future.status == "error" else None
    if error is None:
        what = "the pool lost it"
    elif type(error).__name__ == "KilledWorker":
        what = "the worker that graded it died"
    else:
        what = f"{type(error).__name__}: {error}"
    return {FAILED: what, "seconds": 0.0, "worker": ""}


def time_left(began: float, made: int, left: int) -> float:
    """Seconds until the rest is done, at the rate so far."""
    return (time.monotonic() - began) / made * left if made else float("nan")
