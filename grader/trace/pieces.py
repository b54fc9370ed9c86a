"""From a file, or bytes, to pieces of JSON that end between two events, without ever holding the whole file."""

import os
import queue
import re
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import chain

BLOCK = 1 << 18  # bytes; what is decoded at once then fits the processor's cache
GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"  # that some editors put first
# of a gzip file, and bytes in one on average: of many tinier ones each costs more time than its size suggests
MEMBERS, TINY = 1000, 1 << 14
# Between two objects of an array. In valid JSON this is never within a string: there a quote is escaped, and a quote
# that closes one is not followed by a letter. It may be deeper than the events, in an argument; then neither side is
# JSON, which decoding notices.
BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"\w)')


class TooLarge(Exception):
    """More bytes than allowed."""


WRONG_SUM = "incorrect data check"  # zlib's words: some byte is not what it was
BREAKS_OFF = "they break off"


class Damaged(Exception):
    """The compressed data break off or are wrong. What was read before is good."""


def file_blocks(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a file from `start` to `end`, or to where the file ends by now."""
    while start < end and (block := os.pread(descriptor, min(BLOCK, end - start), start)):
        yield block
        start += len(block)


def bytes_blocks(data: bytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, BLOCK):
        yield data[at : min(at + BLOCK, end)]


def unzipped(blocks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Decompress, all members. Raises TooLarge past `most` bytes, Damaged where the data break off or are wrong."""
    total, members = 0, 0
    member = None
    for data in chain(blocks, [b""]):  # the last asks for what zlib still holds
        while data or (member and not member.eof):
            if member is None:
                data = data.lstrip(b"\0")  # padding after a member is allowed
                if not data:
                    break
                members += 1
                if members > MEMBERS and total < TINY * members:
                    raise Damaged("they have too many members")
                member = zlib.decompressobj(wbits=31)
            before = member.copy()
            try:
                block = member.decompress(data, BLOCK)
            except zlib.error as error:
                yield _before_damage(before, data)
                raise Damaged(str(error)) from None
            total += len(block)
            if total > most:
                raise TooLarge
            if block:
                yield block
            if member.eof:
                data, member = member.unused_data, None
            else:
                data = member.unconsumed_tail
                if not data and len(block) < BLOCK:
                    break  # it wants more
    if member is not None:
        raise Damaged(BREAKS_OFF)


def _before_damage(member, data: bytes) -> bytes:
    """What can be decompressed before the damage: an error takes all the output of its call with it."""
    good = []
    try:
        for i in range(len(data)):
            good.append(member.decompress(data[i : i + 1]))
    except zlib.error:
        pass
    return b"".join(good)


def ahead(blocks: Iterable[bytes], depth: int = 4) -> Generator[bytes, None, None]:
    """The same blocks, made by a thread of their own: decompression leaves the interpreter to others meanwhile."""
    made: queue.Queue = queue.Queue(depth)
    stop = threading.Event()

    def put(item) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for block in blocks:
                if not put((block, None)):
                    return
            put((None, None))
        except BaseException as error:  # raised again where the blocks are wanted
            put((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            block, error = made.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block
    finally:
        stop.set()
        thread.join()


def last_between(block: bytes) -> re.Match | None:
    """The last place between two objects, looked for from the end: most often it is in the last few hundred bytes."""
    window = 1 << 10
    while True:
        found = deque(BETWEEN.finditer(block, max(0, len(block) - window)), maxlen=1)
        if found or window >= len(block):
            return found[0] if found else None
        window <<= 3


class Chunk:
    """Events between commas, in parts."""

    def __init__(self, parts: list[bytes], closed: bool):
        self.parts = parts
        self.closed = closed  # False: the last, which goes on to the end of what was read, wherever that is

    def text(self) -> bytes:
        return b"".join(self.parts)

    def array(self) -> bytes:
        return b"".join((b"[", *self.parts, b"]"))


def whole_events(blocks: Iterable[bytes]) -> Iterator[Chunk]:
    """Cuts where one event ends and the next begins; the last chunk holds what is left, and may be empty."""
    parts: list[bytes] = []
    for block in blocks:
        found = last_between(block)
        if found is None:
            parts.append(block)
        else:
            parts.append(block[: found.start() + 1])
            yield Chunk(parts, True)
            parts = [block[found.end() :]]
    yield Chunk(parts, False)


def before_comma(text: bytes) -> bytes:
    """Events without the comma that another one follows."""
    return text.rstrip(b" \t\r\n").removesuffix(b",")
