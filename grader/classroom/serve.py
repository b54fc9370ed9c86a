"""A pool that lasts: scheduler, workers and gateway of one machine, and workers that join from others."""

import asyncio
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Nanny

from grader.classroom.gateway import Gateway, Rules
from grader.classroom.pool import SETTINGS, embedded_cluster, environments, node_security, worker_options
from grader.errors import UserError

Place = tuple[str, int]  # host and port; "0.0.0.0" is any host


def serve(
    folder: Path,
    scheduler: Place,
    door: Place,
    rules: Rules,
    device: str,
    chosen: Sequence[int] | None = None,
    cpu_workers: int = 1,
) -> None:
    """Run until SIGINT or SIGTERM. scheduler: for the pool's other machines and instructors; door: for those who hand in. Raises
    UserError where certificates or GPUs are missing, OSError for a port in use."""
    security, tell = node_security(folder), partial(print, flush=True)  # a service's output goes to a log

    async def take_in(address: str) -> None:
        async with Client(address, security=security, asynchronous=True, set_as_default=False) as client:
            gateway = Gateway(client, folder, device, rules)
            server = await gateway.serve(*door)
            port = server.sockets[0].getsockname()[1]
            tell(f"submissions come in at tls://{door[0]}:{port}, with a user's key")
            tell(f"instructors' machines: grader class ... --cluster {address} --keys {folder}")
            async with server:
                await _stopped()

    with (
        dask.config.set(SETTINGS),
        embedded_cluster(device, chosen, cpu_workers, security, *scheduler) as cluster,
    ):
        count = len(cluster.workers)
        tell(f"{count} worker{'s' * (count != 1)}")
        asyncio.run(take_in(cluster.scheduler_address))


def join(address: str, folder: Path, device: str, chosen: Sequence[int] | None = None, cpu_workers: int = 1) -> None:
    """This machine's workers for a pool elsewhere, until SIGINT or SIGTERM. Raises UserError if that ends before."""
    security = node_security(folder)

    async def workers() -> None:
        nannies = [
            Nanny(address, security=security, protocol="tls://", dashboard=False, **worker_options(environment))
            for environment in environments(device, chosen, cpu_workers)
        ]
        await asyncio.gather(*nannies)
        stopped: asyncio.Future[Any] = asyncio.create_task(_stopped())
        ended: asyncio.Future[Any] = asyncio.gather(*(nanny.finished() for nanny in nannies))
        try:
            await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                raise UserError(f"The pool at {address} has ended. Start it, and then this command again.")
        finally:
            stopped.cancel()
            await asyncio.gather(*(nanny.close() for nanny in nannies))

    with dask.config.set(SETTINGS):
        asyncio.run(workers())


async def _stopped() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
