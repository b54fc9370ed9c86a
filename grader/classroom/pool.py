"""The workers of a class, as a Dask cluster: one single-threaded worker a device, so one grade at a time on each.

embedded   worker processes of this machine, one a GPU, each with its own share of the cores; or one for the CPU
address    a pool that runs already (`grader pool start`)
slurm      a job a worker, through dask-jobqueue"""

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Nanny, Scheduler, Security, SpecCluster

from grader import machine
from grader.classroom import worker
from grader.classroom.keys import check_valid
from grader.errors import UserError
from grader.grading.forms import choose_device
from grader.safe_text import tell
from grader.version import version

# a worker that dies takes its grade with it at once; who tries again is the coordinator's decision, not Dask's
SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-ttl": "120 s",
    "distributed.diagnostics.nvml": False,
    "distributed.scheduler.http.routes": [],  # no web pages
    "distributed.worker.http.routes": [],
}
START_S = 120  # how long workers may take to start
REMIND_S = 60.0  # of SLURM jobs that do not start


@dataclass
class Pool:
    """The workers, as the coordinator uses them. device: what they grade on."""

    client: Client
    device: str
    lasting: bool  # it outlives the coordinator, and so do the grades that it is making

    def size(self) -> int:
        """How many grades can be made at once now."""
        return len(self.client.nthreads())

    def workers(self) -> dict[str, dict[str, Any]]:
        """What each worker says of itself, by address (`worker.describe`). Raises UserError where its grader is another version."""
        threads = self.client.nthreads()
        if any(n != 1 for n in threads.values()):
            raise UserError(
                "The pool's workers must have one thread each, because two grades on one device disturb each other."
            )
        found = self.client.run(worker.describe, self.device)
        other = {each["version"] for each in found.values()} - {version()}
        if other:
            raise UserError(
                f"The pool's workers have version {', '.join(sorted(other))} of the grader, and this machine "
                f"has {version()}. Their marks could not be compared. Install the same version."
            )
        return found

    def machines(self) -> set[str]:
        """The names of the workers' machines, as results bear them."""
        return {key for each in self.workers().values() for key in each["machines"]}

    def uncalibrated(self, names: Sequence[str]) -> list[str]:
        """Those of these labs of which a worker does not know what its machine can gain."""
        found = self.client.run(worker.uncalibrated, names, self.device).values()
        return [name for name in names if any(name in each for each in found)]


def environments(
    device: str, chosen: Sequence[int] | None = None, cpu_workers: int = 1, gpus_each: int = 1
) -> list[dict[str, str]]:
    """The environment of each worker of this machine: its GPUs, its share of the cores. chosen: numbers of the GPUs, None for all.
    cpu_workers: how many without GPUs. Raises UserError for a GPU that is not there or is named twice, and for too few of them."""
    if choose_device(device) == "cpu":
        cores = machine.cpu_shares(cpu_workers)
        return [{"CUDA_VISIBLE_DEVICES": "", worker.CORES: machine.written(own)} for own in cores]
    gpus = machine.gpus()
    numbers = list(range(len(gpus)) if chosen is None else chosen)
    if wrong := [n for n in numbers if not 0 <= n < len(gpus)]:
        raise UserError(f"There is no GPU {wrong[0]} here. This machine has {len(gpus)}, counted from 0.")
    if twice := [n for n in numbers if numbers.count(n) > 1]:
        raise UserError(
            f"GPU {twice[0]} is named twice. Two grades on one GPU disturb each other, so name each GPU once."
        )
    if len(numbers) < gpus_each:
        raise UserError(f"A worker needs {gpus_each} GPUs, and {len(numbers)} can be used here.")
    cores = machine.gpu_shares()
    shared_out = [numbers[i : i + gpus_each] for i in range(0, len(numbers) - gpus_each + 1, gpus_each)]
    return [
        {
            "CUDA_VISIBLE_DEVICES": ",".join(gpus[n] for n in own),
            worker.CORES: machine.written({core for n in own for core in cores[n]}),
        }
        for own in shared_out
    ]


def worker_options(environment: dict[str, str]) -> dict[str, Any]:
    """Of a Nanny, which starts the worker process and starts it again when it dies."""
    return {
        "nthreads": 1,
        "env": environment,
        "memory_limit": 0,  # a grade's memory is not Dask's to manage
        "preload": ["grader.classroom.worker"],
        "silence_logs": logging.CRITICAL,
    }


def embedded_cluster(
    device: str,
    chosen: Sequence[int] | None = None,
    cpu_workers: int = 1,
    security: Security | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    gpus_each: int = 1,
) -> SpecCluster:
    """A scheduler here, and a worker for each device, started again when it dies. Encrypted even on loopback: clients can run code."""
    security = security or Security.temporary()
    common = {"protocol": "tls://", "security": security, "host": host, "dashboard": False}
    nannies = {
        str(i): {"cls": Nanny, "options": common | worker_options(environment)}
        for i, environment in enumerate(environments(device, chosen, cpu_workers, gpus_each))
    }
    scheduler = {"cls": Scheduler, "options": {**common, "port": port, "dashboard_address": "127.0.0.1:0"}}
    return SpecCluster(workers=nannies, scheduler=scheduler, security=security, silence_logs=logging.CRITICAL)


@contextlib.contextmanager
def embedded(
    device: str = "auto", chosen: Sequence[int] | None = None, cpu_workers: int = 1, gpus_each: int = 1
) -> Iterator[Pool]:
    """A pool of this machine's own, for the time of the block. gpus_each: how many GPUs a worker has."""
    with (
        dask.config.set(SETTINGS),
        embedded_cluster(device, chosen, cpu_workers, gpus_each=gpus_each) as cluster,
        _client(cluster) as client,
    ):
        yield Pool(client, device, lasting=False)


@contextlib.contextmanager
def at_address(address: str, device: str = "auto", keys: Path | None = None) -> Iterator[Pool]:
    """A pool that runs already. keys: the folder with its certificates, where the address begins with tls://."""
    if address.startswith("tls://") != (keys is not None):
        raise UserError(
            "A tls:// address needs --keys with the folder that `grader pool keys` made. A tcp:// address takes no --keys."
        )
    with _client(address, security=node_security(keys) if keys else None) as client:
        yield Pool(client, device, lasting=True)


def node_security(keys: Path) -> Security:
    """The certificates of a pool's own machines. Raises UserError where they are missing."""
    ca, own = keys / "pool-ca.pem", keys / "pool-node.pem"
    for path in (ca, own):
        if not path.exists():
            raise UserError(f"{path} is missing. `grader pool keys {keys}` makes a pool's certificates.")
        check_valid(path)
    ends = {f"tls_{role}_{what}": str(own) for role in ("client", "scheduler", "worker") for what in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=str(ca), **ends)


@contextlib.contextmanager
def slurm(jobs: int, device: str = "auto", directives: Sequence[str] = (), **options: Any) -> Iterator[Pool]:
    """`jobs` SLURM jobs with a worker each. directives: lines for sbatch ("--gres=gpu:1"); the rest is dask-jobqueue's to know."""
    if jobs < 1:
        raise UserError(f"--slurm {jobs} is too few. Give 1 or more jobs.")
    if not shutil.which("sbatch"):
        raise UserError(
            "--slurm needs sbatch, which this machine doesn't have. Run this on a machine that submits SLURM jobs."
        )
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UserError('--slurm needs dask-jobqueue: pip install "pytorch-speed-course[slurm]".') from None
    settings: dict[str, Any] = {
        "cores": 1,  # Dask's threads; how many the job gets is sbatch's business
        "processes": 1,
        "memory": dask.config.get("jobqueue.slurm.memory", None) or "64 GB",
        "nanny": True,
        "job_extra_directives": list(directives),
        "worker_extra_args": ["--preload", "grader.classroom.worker", "--no-dashboard", "--memory-limit", "0"],
        "silence_logs": "critical",
        # certificates for this run; a home is shared with the nodes, and only its owner can read these files
        "security": True,
        "shared_temp_directory": str(Path.home()),
    }
    with dask.config.set(SETTINGS), SLURMCluster(**settings | options) as cluster:
        cluster.scale(jobs=jobs)
        tell(f"waiting for the first of {jobs} SLURM jobs to start")
        with _client(cluster, wait_s=None) as client:
            yield Pool(client, device, lasting=False)


@contextlib.contextmanager
def _client(where: Any, wait_s: float | None = START_S, **options: Any) -> Iterator[Client]:
    try:
        client = Client(where, set_as_default=False, timeout=30, **options)
    except (OSError, TimeoutError) as error:
        said = f"The pool at {where} does not answer: {error}."
        if isinstance(where, str):
            said += (
                " Give the scheduler's address, not the front door's, and the keys of that pool. `grader pool "
                "start` prints both."
            )
        raise UserError(said) from None
    try:
        _wait(client, wait_s)
        yield client
    finally:
        client.close()


def _wait(client: Client, limit_s: float | None) -> None:
    """Wait for the first worker; without a limit for as long as it takes, for SLURM's queue can be long."""
    began = said = time.monotonic()
    while not client.nthreads():
        now = time.monotonic()
        if limit_s is not None and now - began > limit_s:
            raise UserError(f"The pool has had no worker for {limit_s:.0f} s. Start one with `grader pool start`.")
        if limit_s is None and now - said > REMIND_S:
            said = now
            tell(
                f"No SLURM job has started a worker after {now - began:.0f} s. `squeue --me` shows what the jobs wait for. "
                "If it shows none, sbatch refused the jobs or they ended. Then look into slurm-*.out."
            )
        time.sleep(0.5)
