"""Share a large trace among fresh helper processes, one a core, as a reader may have threads or a GPU; without any it reads alone."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from grader.trace.pieces import BETWEEN

START_UP = 12 << 20  # bytes that are decoded in the time that a helper takes to start
SMALLEST = 12 << 20  # bytes that are worth a helper
MOST = 8  # processes, this one included; the columns are put together by one
ROUND = 256 << 20  # bytes for each process at a time, so that memory does not grow with the file
SECONDS = 300  # no helper takes that long: ROUND takes two


@dataclass
class Part:
    """What was decoded of a part of the trace."""

    header: dict  # see Columns.header
    packed: dict[str, Any]  # column -> bytes, or a view of them
    rest: bytes = b""  # of the last part: what follows its last whole chunk


@dataclass
class Helper:
    start: int
    end: int
    process: subprocess.Popen

    def part(self, columns: list[str]) -> Part | None:
        """Waits for it. None if it failed."""
        try:
            output, _ = self.process.communicate(timeout=SECONDS)
            if self.process.returncode:
                return None
            size = int.from_bytes(output[:8], "little")
            header = msgspec.msgpack.decode(output[8 : 8 + size])
            packed, at, view = {}, 8 + size, memoryview(output)
            for name, length in zip(columns, header["sizes"], strict=True):
                packed[name] = view[at : at + length]
                at += length
            return Part(header, packed, header["rest"])
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError, msgspec.MsgspecError):
            return None
        finally:
            self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def start_helpers(descriptor: int, size: int, start: int = 0) -> list[Helper]:
    """Helpers for the later parts of a round of this file, in order. The round begins at `start`; the reader has what is before the
    first helper's start, and the next round begins where the last helper ends."""
    count = _count(size - start)
    if count < 1:
        return []
    end = min(size, start + ROUND * (count + 1))
    if size - end < ROUND:
        end = size
    places = [start + at for at in _shares(end - start, count)] + [end] * (end < size)
    found = [_event_after(descriptor, at) for at in places]
    cuts = [at for at in found if at is not None]
    if len(cuts) < len(places) or sorted({*cuts}) != cuts:
        return []
    if end < size:
        end = cuts.pop()
    folder = str(Path(msgspec.__file__).parents[1])  # a helper looks for nothing else
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("helper.py")), folder]
    pipes: dict[str, Any] = {"stdin": descriptor, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    helpers: list[Helper] = []
    try:
        for first, last in zip(cuts, [*cuts[1:], end], strict=True):
            process = subprocess.Popen([*command, str(first), str(last), str(int(last == size))], **pipes)
            helpers.append(Helper(first, last, process))
    except (OSError, ValueError):
        for helper in helpers:
            helper.stop()
        return []
    return helpers


def start_helpers_on(data: bytes) -> list[Helper]:
    """The same for bytes, by a file in memory that holds the later parts."""
    count = _count(len(data))
    if count < 1 or not hasattr(os, "memfd_create"):
        return []
    try:
        descriptor = os.memfd_create("trace")
    except OSError:
        return []
    try:
        at = _shares(len(data), count)[0]
        while at < len(data):
            at += os.pwrite(descriptor, memoryview(data)[at : at + (1 << 26)], at)
        return start_helpers(descriptor, len(data))
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _count(size: int) -> int:
    return min(MOST - 1, cores() - 1, (size - START_UP) // SMALLEST - 1) if sys.executable else 0


def _shares(size: int, count: int) -> list[int]:
    """About where the helpers' parts begin."""
    share = (size - START_UP) // (count + 1)
    return [size - share * n for n in range(count, 0, -1)]


def _event_after(descriptor: int, at: int) -> int | None:
    """Where the first event after this place begins."""
    found = BETWEEN.search(os.pread(descriptor, 1 << 18, at))
    return at + found.end() if found else None
