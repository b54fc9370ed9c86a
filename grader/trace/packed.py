"""What is in a compressed file or an archive, block by block: gzip, bzip2, xz, zstd, the one trace of a zip or tar, in bounded memory."""

import bz2
import importlib
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from grader.trace.columns import TraceError
from grader.trace.pieces import BLOCK, BREAKS_OFF, GZIP, MEMBERS, TINY, Damaged, TooLarge, file_blocks, unzipped

FIRST = 512  # bytes that tell what a file is
ZIP = b"PK\3\4"
LAYERS = 3  # as of trace.json.gz in a tar.gz
MOST_DICTIONARY = 256 << 20  # bytes of memory that xz may want; its strongest setting wants 65 MB
MOST_CONTENTS = 16 << 20  # bytes of a zip's table of contents, which is read at once
TRACE = re.compile(r"(?!__MACOSX/)(?:.*/)?[^./][^/]*\.json(\.gz|\.bz2|\.xz|\.zst)?", re.DOTALL)
UNPACK = "unpack it, and give one file, or the folder if these are ranks of one job"
PAX_PATH = re.compile(rb"(?:\A|\n)\d{1,9} path=([^\n]*)")
MOST_NAME = 1 << 16  # bytes of the header that holds a long name


def _zstd() -> Any:
    for module in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and the same for older ones
        try:
            return importlib.import_module(module)
        except ImportError:
            pass
    return None


zstd = _zstd()


def is_packed(first: bytes) -> bool:
    """By the first bytes of a file."""
    return first.startswith(ZIP) or _layer(first) is not None


def unpacked(descriptor: int, size: int, most: int) -> Iterator[bytes]:
    """The trace in an open file of `size` bytes, packed or not, block by block. Raises TooLarge past `most` bytes, Damaged where the
    data break off or are wrong, TraceError where an archive does not hold exactly one trace."""
    is_zip = os.pread(descriptor, len(ZIP), 0) == ZIP
    blocks = _from_zip(descriptor, size, most) if is_zip else file_blocks(descriptor, 0, size)
    for _ in range(LAYERS - is_zip):
        first = b""
        while len(first) < FIRST and (block := next(blocks, b"")):
            first += block
        blocks = chain([first], blocks)
        if (layer := _layer(first)) is None:
            break
        blocks = layer(blocks, most)
    yield from blocks


def _layer(first: bytes) -> Callable[[Iterable[bytes], int], Iterator[bytes]] | None:
    if first.startswith(GZIP):
        return unzipped
    if first[257:262] == b"ustar":
        return _from_tar
    if re.match(rb"BZh\d1AY&SY", first):
        return lambda blocks, most: _streams(blocks, most, bz2.BZ2Decompressor, OSError)
    if first.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        return lambda blocks, most: _streams(
            blocks, most, lambda: lzma.LZMADecompressor(memlimit=MOST_DICTIONARY), lzma.LZMAError
        )
    if first.startswith(b"\x28\xb5\x2f\xfd") and zstd:
        return lambda blocks, most: _streams(blocks, most, zstd.ZstdDecompressor, zstd.ZstdError)
    return None


def _streams(blocks: Iterable[bytes], most: int, new: Callable[[], Any], wrong: type[Exception]) -> Iterator[bytes]:
    """Of one compressed stream after the other."""
    stream, streams, total = new(), 1, 0
    for data in blocks:
        while True:
            if stream.eof:
                data = (stream.unused_data + data).lstrip(b"\0")  # padding between streams is allowed
                if not data:
                    break
                stream, streams = new(), streams + 1
                if streams > MEMBERS and total < TINY * streams:
                    raise Damaged("they have too many members")
            try:
                block = stream.decompress(data, BLOCK)
            except wrong as error:
                raise Damaged(str(error)) from None
            total, data = total + len(block), b""
            if total > most:
                raise TooLarge
            if block:
                yield block
            if stream.needs_input and not stream.eof:
                break
    if not stream.eof:
        raise Damaged(BREAKS_OFF)


def _from_zip(descriptor: int, size: int, most: int) -> Iterator[bytes]:
    end = os.pread(descriptor, (1 << 16) + 22, max(0, size - (1 << 16) - 22))
    at = end.rfind(b"PK\5\6")
    if at < 0:
        raise TraceError(
            "this zip archive is cut short: its table of contents is missing, so fetch it again, or unpack it"
        )
    if int.from_bytes(end[at + 12 : at + 16], "little") > MOST_CONTENTS:
        raise TraceError(f"this zip archive holds too much to look through: {UNPACK}")
    total = 0
    try:
        with os.fdopen(os.dup(descriptor), "rb") as file, zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if TRACE.fullmatch(name)]
            if not names:
                raise TraceError("this zip archive holds no trace: none of its files ends in .json or .json.gz")
            if len(names) > 1:
                raise TraceError(f"this zip archive holds {len(names)} traces: {UNPACK}")
            with archive.open(names[0]) as inside:
                while block := inside.read(BLOCK):
                    total += len(block)
                    if total > most:
                        raise TooLarge
                    yield block
    except (RuntimeError, NotImplementedError):  # a password, and a packing that zipfile does not know
        raise TraceError("this zip archive has a password, or an unusual packing: unpack it first") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise Damaged(f"the zip archive: {error}") from None


class _Bytes:
    """A stream to take exact numbers of bytes from."""

    def __init__(self, blocks: Iterable[bytes]):
        self.blocks, self.held = iter(blocks), b""

    def take(self, size: int) -> Iterator[bytes]:
        while size:
            block = self.held or next(self.blocks, b"")
            if not block:
                raise Damaged(BREAKS_OFF)
            part, self.held = block[:size], block[size:]
            size -= len(part)
            if part:
                yield part

    def skip(self, size: int) -> None:
        for _ in self.take(size):
            pass


def _from_tar(blocks: Iterable[bytes], most: int) -> Iterator[bytes]:
    stream, name, found = _Bytes(blocks), b"", False
    while True:
        header = b"".join(stream.take(512))
        if not header.strip(b"\0"):
            break
        size, kind = _size(header[124:136]), header[156:157]
        if kind in b"LxX" and size <= MOST_NAME:  # the name of what follows, as GNU and POSIX write a long one
            text = b"".join(stream.take(size))
            path = PAX_PATH.search(text)
            name = text.rstrip(b"\0") if kind == b"L" else path[1] if path else name
        else:
            ends = name or (header[345:500].rstrip(b"\0") + b"/" + header[:100].split(b"\0")[0]).lstrip(b"/")
            if kind in b"07\0" and TRACE.fullmatch(ends.decode("utf-8", "replace")):
                if found:
                    raise TraceError(f"this tar archive holds more than one trace: {UNPACK}")
                found = True
                yield from stream.take(size)
            else:
                stream.skip(size)
            name = b""
        stream.skip(-size % 512)
    if not found:
        raise TraceError("this tar archive holds no trace: none of its files ends in .json or .json.gz")


def _size(field: bytes) -> int:
    """Octal, or binary for what that has no room for."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise Damaged("the tar archive: a size is no number") from None
