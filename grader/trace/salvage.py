"""Events from damaged JSON, one by one, as sound JSON again. Slow, so only for chunks that do not decode."""

import math
import re
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from grader.trace.decode import DAMAGE, Args, Event
from grader.trace.pieces import BETWEEN

# A string, or what begins as one and never ends: each byte is looked at once, whatever the damage.
STRING = rb'"(?:[^"\\]|\\.)*+"?'
STRINGS = re.compile(STRING, re.DOTALL)
BRACKETS = re.compile(STRING + rb"|[\[\]{}]", re.DOTALL)
NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
GOOD = rb"(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)"
IS_GOOD = re.compile(GOOD)
# What is outside of strings, where C prints nan and inf, Windows 1.#INF, and others N/A or 007; and a comma that nothing follows.
# Strings are matched first so that nothing within one is.
TOKEN = re.compile(STRING + rb"|[^\s\"{}\[\],:]+|,(?=\s*[}\]])", re.DOTALL)
# The same as a value, and escapes that JSON does not know, as in C:\Users, which are found a hundred times as fast.
BARE = re.compile(rb"((?<!\\)\":\s{0,4})(?![\"\[{]|" + GOOD + rb"\s{0,4}[,}])([^\s\",\[\]{}]{1,40})(?=\s{0,4}[,}])")
ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
IN_STRING = re.compile(rb"[\x00-\x1f]")  # JSON has no place for them there
CONTROL = bytes(32 if code < 32 else code for code in range(256))
# Where a name begins, and what follows it in an event.
NAME = re.compile(rb'"name"\s*:\s*"')
AFTER_NAME = re.compile(rb'"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\})')
BARE_QUOTE = re.compile(rb'(\\.)|"', re.DOTALL)
LONGEST_SCAN = 1 << 20  # bytes of events to go through string by string; a chunk has a quarter of it
EXACT = 2**53  # below it a float holds every integer
LONGEST = 1 << 16  # bytes of an event that is worth a repair

decode_event = msgspec.json.Decoder(Event).decode
FIELDS = {field.encode_name: field.type for field in msgspec.structs.fields(Event) if field.name != "args"}
ARGS = {field.encode_name: field.type for field in msgspec.structs.fields(Args)}


class Salvage:
    """Feed it chunks in their order; `waiting` is true while the last event of one goes on in the next."""

    def __init__(self):
        self.lost = self.repaired = 0
        self.open: list[bytes] = []  # the parts of an event that was cut within its arguments
        self.depth = 0
        self.tail: bytes | None = None  # what follows the array of events, once its end was seen
        self.parts: list[bytes] = []

    @property
    def waiting(self) -> bool:
        return bool(self.open) or self.tail is not None

    def feed(self, text: bytes) -> bytes:
        """`text`: events between commas. Returns a JSON array of what is good in it."""
        good: list[bytes] = []
        start = 0
        for found in [*BETWEEN.finditer(text), None]:
            if self.tail is not None:
                self.parts.append(b"," + text[start:])
                break
            piece = text[start : found.start() + 1 if found else len(text)]
            self._piece(piece, good)
            start = found.end() if found else len(text)
        return b"[" + b",".join(good) + b"]"

    def finish(self) -> bool:
        """After the last chunk. True when the array of events was closed."""
        if self.open:
            self.lost += 1
            self.open = []
        return self.tail is not None

    def rest(self) -> bytes:
        """What follows the array of events."""
        return (self.tail or b"") + b"".join(self.parts)

    def _piece(self, piece: bytes, good: list[bytes]) -> None:
        if _is_event(piece):
            if self.open:  # never completed
                self.lost += 1
                self.open, self.depth = [], 0
            good.append(piece)
            return
        if not self.open and piece.lstrip()[:1] == b"{" and (event := repair(piece)) is not None:
            self.repaired += 1
            good.append(event)
            return
        self.open.append(piece)
        lowest, change = _depths(piece)
        ended = self.depth + lowest < 0
        self.depth += change
        if self.depth > 0 and not ended:
            return
        text = b",".join(self.open)
        self.open, self.depth = [], 0
        if ended:
            text, self.tail = _split_at_end(text)
        if not text.strip():
            return  # an empty array
        if _is_event(text):
            good.append(text)
        elif (event := repair(text)) is not None:
            self.repaired += 1
            good.append(event)
        else:
            self.lost += 1


def softened(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Ways to read these events all at once, the cheapest first, and how many events each of them repairs: as they are, in case
    numbers are strings; with null for values that are none; and with blanks for control characters."""
    yield text, 0
    places = [found.start() for found in BARE.finditer(text)]
    places += [found.start() for found in ESCAPE.finditer(text) if len(found[0]) == 1]
    if places:
        quick = ESCAPE.sub(_escape, BARE.sub(lambda found: found[1] + _value(found[2]), text))
        yield quick, _events_at(text, places)
    if len(text) > LONGEST_SCAN:
        return
    places = [found.start() for found in TOKEN.finditer(text) if _as_json(found) != found[0]]
    if places:
        yield TOKEN.sub(_as_json, text), _events_at(text, places)


def _as_json(token: re.Match[bytes]) -> bytes:
    text = token[0]
    if text.startswith(b'"'):
        return ESCAPE.sub(_escape, text).translate(CONTROL) if b"\\" in text or IN_STRING.search(text) else text
    return b"" if text == b"," else _value(text)


def _escape(found: re.Match[bytes]) -> bytes:
    return found[0] if len(found[0]) > 1 else b"\\\\"


def _value(text: bytes) -> bytes:
    """The number that it is to a lenient reader, else null."""
    if IS_GOOD.fullmatch(text):
        return text
    try:
        number = float(text)
    except ValueError:
        return b"null"
    if not math.isfinite(number):
        return b"null"
    return b"%d" % number if number.is_integer() and abs(number) < EXACT else repr(number).encode()


def _events_at(text: bytes, places: list[int]) -> int:
    begins = [found.end() for found in BETWEEN.finditer(text)]
    return len({bisect(begins, place) for place in places})


def _is_event(piece: bytes) -> bool:
    try:
        return decode_event(piece).ph != ""
    except DAMAGE:
        return False


def _depths(piece: bytes) -> tuple[int, int]:
    """How deep it goes below where it starts (at most 0), and how many more brackets it opens than closes."""
    depth = lowest = 0
    for depth in accumulate(map(STEPS.__getitem__, STRINGS.sub(b"", piece).translate(None, NO_BRACKET))):
        lowest = min(lowest, depth)
    return lowest, depth


def _split_at_end(text: bytes) -> tuple[bytes, bytes | None]:
    """The text before the bracket that closes the array of events, and that after it."""
    depth = 0
    for token in BRACKETS.finditer(text):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return (text[: token.start()], text[token.end() :]) if token[0] == b"]" else (text, None)
    return text, None


def repair(text: bytes) -> bytes | None:
    """A damaged event as sound JSON, None where too little of it is left to be of use."""
    if len(text) > LONGEST:
        return None
    text = text.decode("utf-8", "replace").encode().translate(CONTROL)
    unquoted = _quotes_escaped(text)  # first: what is and what is no string depends on it
    for candidate in (text, unquoted):
        try:
            found = msgspec.json.decode(TOKEN.sub(_as_json, candidate))
        except DAMAGE:
            continue
        if not isinstance(found, dict):
            return None
        event = _right(found, FIELDS)
        if isinstance(found.get("args"), dict):
            event["args"] = _right(found["args"], ARGS)
        if not event.get("ph") or (event["ph"] == "X" and not {"ts", "dur"} <= event.keys()):
            return None
        return msgspec.json.encode(event)
    return None


def _quotes_escaped(text: bytes) -> bytes:
    """With the bare quotes in its name escaped: older releases wrote them so."""
    name = NAME.search(text)
    after = AFTER_NAME.search(text, name.end()) if name else None
    if name is None or after is None:
        return text
    inner = BARE_QUOTE.sub(lambda found: found[1] or rb"\"", text[name.end() : after.start()])
    return text[: name.end()] + inner + text[after.start() :]


def _right(found: dict, kinds: dict) -> dict:
    """The fields that are of the right kind, or can be made so: "12.5" counts as a number."""
    right = {}
    for name, kind in kinds.items():
        if found.get(name) is None:
            continue
        try:
            value = found[name] if kind is msgspec.Raw else msgspec.convert(found[name], kind, strict=False)
        except DAMAGE:
            continue
        if value is not None and not (isinstance(value, float) and not math.isfinite(value)):
            right[name] = value
    return right
