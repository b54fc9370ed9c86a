"""Moodle's grading worksheet, as it is exported in English or German: its columns, and when each student handed in."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

IDENTIFIER = ("Identifier", "ID", "Teilnehmer/in")
FULL_NAME = ("Full name", "Vollständiger Name", "Name")
EMAIL = ("Email address", "E-Mail-Adresse", "E-Mail")
ID_NUMBER = ("ID number", "ID-Nummer", "Username", "Anmeldename")
GRADE = ("Grade", "Bewertung")
MAXIMUM = ("Maximum Grade", "Bestwertung", "Maximalbewertung", "Höchste Bewertung")
HANDED_IN = ("Last modified (submission)", "Zuletzt geändert (Abgabe)")
_ENGLISH = "january february march april may june july august september october november december"
_GERMAN = "januar februar märz april mai juni juli august september oktober november dezember"
# also shortened: Sep, Sept
_MONTHS = {
    name[:size]: at
    for names in (_ENGLISH, _GERMAN)
    for at, name in enumerate(names.split(), 1)
    for size in range(3, len(name) + 1)
}


def column(names: Sequence[str], head: Sequence[str]) -> str:
    """The first of `names` that is a column, as it is written there; "" where none is. Editions of Moodle differ in capitals."""
    written = {name.casefold(): name for name in (*head, *(name for name in names if name in head))}
    return next((written[name.casefold()] for name in names if name.casefold() in written), "")


def number_in(identifier: str) -> str:
    """1234 of "Participant 1234"; "" where there is none."""
    return "".join(re.findall(r"\d+", identifier)[-1:])


def handed_in(head: Sequence[str], body: Iterable[Mapping[str, str]]) -> dict[str, datetime]:
    """When each participant handed in, by number; without those whose time is in another language."""
    number, time = column(IDENTIFIER, head), column(HANDED_IN, head)
    if not number or not time:
        return {}
    times = {number_in(row[number]): moment(row[time]) for row in body}
    return {who: when for who, when in times.items() if who and when}


def moment(text: str) -> datetime | None:
    """What Moodle's "Thursday, 26 November 2026, 5:00 PM" or its German says, in this machine's time zone; None for other text."""
    clock = re.search(r"\b(\d{1,2}):(\d\d)\s*([ap])?", text, re.IGNORECASE)
    months = [_MONTHS[word] for word in re.findall(r"[^\W\d_]+", text.casefold()) if word in _MONTHS]
    year = re.search(r"\b20\d\d\b", text)
    day = re.search(r"\b\d{1,2}\b(?!:)", text[: clock.start()]) if clock else None
    if not clock or not day or not year or len(months) != 1:
        return None
    hour = int(clock[1]) % 12 + 12 * (clock[3].lower() == "p") if clock[3] else int(clock[1])
    try:
        return datetime(int(year[0]), months[0], int(day[0]), hour, int(clock[2])).astimezone(UTC)
    except ValueError:
        return None
