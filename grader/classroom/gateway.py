"""The gateway of a pool, its front door: where submissions of those come in who are not trusted.

A Dask scheduler runs whatever its clients send, so none of them may speak to it. They speak to this: TLS with a certificate
for each user, one line of JSON in, lines of JSON out. A request holds the lab's name and the submission's text, and only
text goes on to a worker, which confines it as it does every submission.

    in   {"lab": name, "source": text} and, where wanted, "prediction": {"cause": text, "gain": number, "device": "cuda" or "cpu"}, "quick": bool
    out  {"waiting": grades before it} | {"share": done, "what": text} ... then {"result": {...}} or {"error": text}"""

import asyncio
import collections
import contextlib
import json
import math
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import Client

from grader import labs
from grader.classroom import keys, worker
from grader.classroom.store import FAILED
from grader.classroom.submissions import Job
from grader.submission import MAX_SOURCE, NAMED, Submission

MAX_REQUEST = 6 * MAX_SOURCE + 4096  # bytes: JSON can take six for a character
PATIENCE_S = 20.0  # for a request to come in, from the first byte on
MAX_OPEN = 8  # connections of one user
MAX_STRANGERS = 128  # connections that have shown no key yet: of those that a process may have open, a part
PROGRESS = "grader-progress"  # the scheduler's topic
FIELDS = {"lab", "source", "prediction", "quick"}


class Refused(Exception):
    """The message is for the user."""


@dataclass(frozen=True)
class Rules:
    """Of one user: at most `at_once` grades that wait or run, and `an_hour` in any hour. limit_s: of one grade."""

    at_once: int = 2
    an_hour: int = 20
    limit_s: float = 900.0


@dataclass
class Gateway:
    client: Client  # asynchronous
    folder: Path  # the certificates
    device: str
    rules: Rules = field(default_factory=Rules)
    _strangers: dict[asyncio.Transport, asyncio.Task] = field(default_factory=dict)  # the oldest first
    _open: collections.Counter = field(default_factory=collections.Counter)
    _made: int = 0
    _busy: collections.Counter = field(default_factory=collections.Counter)
    _when: dict[str, collections.deque] = field(default_factory=dict)
    _waiting: dict[str, asyncio.Queue] = field(default_factory=dict)  # progress, by the key of a grade

    async def serve(self, host: str, port: int) -> asyncio.Server:
        self.client.subscribe_topic(PROGRESS, self._on_progress)
        context = keys.gateway_context(self.folder)
        return await asyncio.get_running_loop().create_server(lambda: _Arrival(self, context), host, port)

    def arrived(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Ask for its key. Where too many are at the door, whoever has stood there longest goes: with a key it takes a moment."""
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
            oldest.abort()
        task = self._strangers[transport] = asyncio.ensure_future(self._shake_hands(transport, context))
        task.add_done_callback(lambda _: self._strangers.pop(transport, None))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_REQUEST, loop), self._serve_one, loop)
        try:
            encrypted = await loop.start_tls(
                transport, protocol, context, server_side=True, ssl_handshake_timeout=PATIENCE_S
            )
        except OSError:  # it has gone, or has no key of ours
            encrypted = None
        if encrypted:
            protocol.connection_made(encrypted)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = ""
        try:
            user = self._user(writer)
            self._open[user] += 1
            if self._open[user] > MAX_OPEN:
                raise Refused(f"You already have {MAX_OPEN} connections to the pool. Close one first.")
            job = read_request(await self._line(reader))
            await self._grade(user, job, writer)
        except Refused as refused:
            await _say(writer, {"error": str(refused)})
        except (OSError, asyncio.IncompleteReadError):  # gone
            pass
        except Exception as error:  # a mistake of ours costs this connection, not the pool
            print(f"grader pool: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            await _say(writer, {"error": "The pool made a mistake. Tell whoever runs it."})
        finally:
            self._open[user] -= 1
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)

    def _user(self, writer: asyncio.StreamWriter) -> str:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        name = keys.read_users(self.folder).get(keys.fingerprint(certificate or b""))
        if name is None:
            raise Refused("Your key does not open this pool any more. Ask whoever runs it for a new one.")
        return name

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await asyncio.wait_for(reader.readuntil(b"\n"), PATIENCE_S)
        except asyncio.LimitOverrunError:
            raise Refused(f"The request is too large. A submission may have at most {MAX_SOURCE >> 20} MB.") from None
        except TimeoutError:
            raise Refused(f"No request came within {PATIENCE_S:.0f} s.") from None

    def _admit(self, user: str) -> None:
        now, when = time.monotonic(), self._when.setdefault(user, collections.deque())
        while when and now - when[0] > 3600:
            when.popleft()
        if self._busy[user] >= self.rules.at_once:
            raise Refused(
                f"{self._busy[user]} of your submissions are already being graded, and at most "
                f"{self.rules.at_once} can be at once. Wait for one of them."
            )
        if len(when) >= self.rules.an_hour:
            minutes = math.ceil((3600 - (now - when[0])) / 60)
            raise Refused(
                f"You have had {len(when)} grades in the last hour. You can have the next one in {minutes} min."
            )
        when.append(now)
        self._busy[user] += 1

    async def _grade(self, user: str, job: Job, writer: asyncio.StreamWriter) -> None:
        before = sum(self._busy.values())
        self._admit(user)
        job = Job(job.lab, job.submission, self.device, job.quick)
        self._made += 1
        key = f"request-{self._made}-{job.digest[:8]}"
        try:
            # before a class's own grades: somebody waits for this one
            future = self.client.submit(
                worker.run, job.to_json(), self.rules.limit_s, PROGRESS, key=key, pure=False, priority=10
            )
        except Exception:
            self._busy[user] -= 1  # it is not being graded
            raise
        progress = self._waiting[key] = asyncio.Queue(maxsize=1000)
        # it counts until it is over, whether or not the user waits for it
        over = asyncio.ensure_future(self._over(future, user, key))
        await _say(writer, {"waiting": before})
        while not over.done():
            next_one = asyncio.ensure_future(progress.get())
            await asyncio.wait({over, next_one}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            await _say(writer, next_one.result() if next_one.done() else {"still": "here"})
            next_one.cancel()
        await _say(writer, await over)

    async def _over(self, future: Any, user: str, key: str) -> dict[str, Any]:
        """The last line for the user."""
        try:
            record = json.loads(await future)
        except Exception as error:
            record = {FAILED: f"the pool lost it ({type(error).__name__})"}
        finally:
            self._busy[user] -= 1
            self._waiting.pop(key, None)
        if FAILED in record:
            return {"error": f"Your submission could not be graded: {record[FAILED]}. Try again."}
        return {"result": record["result"]}

    def _on_progress(self, event: tuple[float, dict[str, Any]]) -> None:
        progress = self._waiting.get(event[1].get("key", ""))
        if progress is not None and not progress.full():
            progress.put_nowait({"share": event[1]["share"], "what": event[1]["what"]})


class _Arrival(asyncio.Protocol):
    """A connection before anything of it is read."""

    def __init__(self, gateway: Gateway, context: ssl.SSLContext) -> None:
        self.gateway, self.context = gateway, context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the handshake reads it
        self.gateway.arrived(transport, self.context)


def read_request(line: bytes) -> Job:
    """The job that a request asks for. Raises Refused for anything but what a request may hold."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise Refused("The request is not JSON.") from None
    if not isinstance(request, dict) or not {"lab", "source"} <= request.keys() <= FIELDS:
        raise Refused(f"A request holds {', '.join(sorted(FIELDS))}, and nothing else.")
    lab, source, quick = request["lab"], request["source"], request.get("quick", False)
    if lab not in labs.NAMES:
        raise Refused(f"There is no such lab here. The labs are: {', '.join(labs.NAMES)}.")
    if not labs.get(lab).runs_code:
        raise Refused(f"{lab} needs no pool, because nothing of it is measured. Grade it on your own machine.")
    if not isinstance(source, str) or len(source) > MAX_SOURCE:
        raise Refused(f"A submission is text of at most {MAX_SOURCE >> 20} MB.")
    if not isinstance(quick, bool):
        raise Refused("`quick` must be true or false.")
    return Job(lab, Submission(source, _starts(source), (), _prediction(request.get("prediction"))), quick=quick)


def _prediction(made: Any) -> tuple[tuple[str, Any], ...] | None:
    if made is None:
        return None
    cause, gain = (made.get("cause"), made.get("gain")) if isinstance(made, dict) else (None, None)
    number = isinstance(gain, int | float) and not isinstance(gain, bool) and 0 < gain < 1e6
    right = isinstance(cause, str) and len(cause) < 100 and cause.isprintable() and number
    if not right or made.keys() - {"cause", "gain", "device"} or made.get("device", "cuda") not in ("cuda", "cpu"):
        raise Refused(
            'A prediction has a cause, which is text, and a gain, which is a positive number. Its device is "cuda" or "cpu".'
        )
    return tuple(sorted(made.items()))


def _starts(source: str) -> tuple[int, ...]:
    """Where each cell's text begins, from the comments that `from_cells` writes before them."""
    starts: list[int] = []
    for number, line in enumerate(source.split("\n"), 1):
        if line == f"# {NAMED} {len(starts) + 1}":
            starts.append(number + 1)
    return tuple(starts)


async def _say(writer: asyncio.StreamWriter, what: dict[str, Any]) -> None:
    if writer.is_closing():  # the user has gone
        return
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(json.dumps(what).encode("ascii") + b"\n")
        await asyncio.wait_for(writer.drain(), PATIENCE_S)
