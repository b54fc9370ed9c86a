"""A pool that lasts: scheduler, workers and gateway of one machine, and workers that join from others."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Nanny

from grader.classroom.gateway import Gateway, Rules
from grader.classroom.pool import SETTINGS, embedded_cluster, environments, node_security, worker_options
from grader.errors import UserError


@dataclass(frozen=True)
class Where:
    """scheduler_host: for the pool's other machines and instructors; gateway_host: for those who hand in. "0.0.0.0" is any."""

    scheduler_host: str = "127.0.0.1"
    scheduler_port: int = 8786
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8787


def serve(
    folder: Path,
    where: Where,
    rules: Rules,
    device: str,
    chosen: Sequence[int] | None = None,
    cpu_workers: int = 1,
    tell: Callable[[str], None] = print,
) -> None:
    """Run until SIGINT or SIGTERM. Raises UserError where certificates or GPUs are missing, OSError for a port in use."""
    security = node_security(folder)

    async def take_in(address: str) -> None:
        async with Client(address, security=security, asynchronous=True, set_as_default=False) as client:
            gateway = Gateway(client, folder, device, rules)
            server = await gateway.serve(where.gateway_host, where.gateway_port)
            port = server.sockets[0].getsockname()[1]
            tell(f"submissions come in at tls://{where.gateway_host}:{port}, with a user's key")
            tell(f"instructors' machines: grader class ... --cluster {address} --keys {folder}")
            async with server:
                await _stopped()

    with (
        dask.config.set(SETTINGS),
        embedded_cluster(device, chosen, cpu_workers, security, where.scheduler_host, where.scheduler_port) as cluster,
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
