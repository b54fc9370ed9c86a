"""What a trace file says besides its events, and where these begin and end."""

import re
from typing import Any

import msgspec

from grader.trace.decode import DAMAGE, Event, Identifier

HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
LONGEST_HEAD = 64 << 20  # bytes
BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
DEVICE_NAME = re.compile(rb'"name"\s*:\s*"([^"\\\x00-\x1f]{1,200})"')


class Device(msgspec.Struct):
    name: str = "?"


class Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    pg_config: Any = None

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The sizes of its process groups, as torch 2.11 to 2.14 write them; whatever else stands there tells nothing."""
        groups = self.pg_config if isinstance(self.pg_config, list) else []
        sizes = (group.get("pg_size") for group in groups if isinstance(group, dict))
        return tuple(size for size in sizes if isinstance(size, int))


class About(msgspec.Struct, kw_only=True):
    schemaVersion: Identifier = None
    baseTimeNanoseconds: int | None = None
    deviceProperties: list[Device] | None = None
    distributedInfo: Distributed | None = None
    host_name: Any = None


class Head(About):
    traceEvents: list[Event]


class Tail(About):
    events: list[Event]  # stands for the array that was read
    traceEvents: msgspec.Raw = msgspec.Raw()  # so this is a second one


_head = msgspec.json.Decoder(Head).decode
_tail = msgspec.json.Decoder(Tail).decode


def head(text: bytes) -> About | None:
    """From the text up to and with the bracket that opens the array of events; None if it is damaged."""
    try:
        return _head(text + b"]}")
    except DAMAGE:
        return None


def tail(text: bytes) -> Tail | None:
    """From the text after the bracket that closes the array of events; None if it is damaged."""
    try:
        return _tail(b'{"events":[]' + text)
    except DAMAGE:
        return None


def guessed(text: bytes) -> About:
    """What a damaged head still tells."""
    base = BASE_TIME.search(text)
    at = text.find(b'"deviceProperties"')
    names = [Device(name.decode("utf-8", "replace")) for name in DEVICE_NAME.findall(text, at)] if at >= 0 else []
    return About(schemaVersion=1, baseTimeNanoseconds=int(base[1]) if base else None, deviceProperties=names)


def what_follows(text: bytes) -> str:
    """In words, of text after the array of events that is no sound end of the document."""
    if HEAD.search(text) or text.lstrip()[:1] == b"[":
        return "another document follows it in the file, as where files are appended, and was not read"
    return "what follows its events is damaged"
