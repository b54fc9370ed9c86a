"""Who is who: names, ids and numbers as Moodle, Canvas, an instructor's list and the gradebook write them."""

import contextlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader import labs
from grader.errors import UserError

MOODLE, CANVAS, BRIGHTSPACE, BLACKBOARD, SAKAI = "moodle", "canvas", "brightspace", "blackboard", "sakai"
ILIAS, GRADESCOPE = "ilias", "gradescope"
FORMS, PLAIN = "forms", "folders"  # files of Google's forms, folders of any kind
_DROPPED = re.compile(r"[&<>\"`|':\\/]")  # Moodle leaves these out of a file's name
OWN, NUMBER, SORTED, SPOKEN = "own", "number", "sorted", "spoken"  # by what a person is known
PATIENCE_S = 120  # for which another program may lock the gradebook
LONGEST = 200  # bytes of a folder's name: file systems take 255


class Person(NamedTuple):
    """Who handed in, as the archive says it. number: the user's, in Moodle the participant's; login: the user's own id, if there."""

    system: str
    name: str
    number: str = ""
    login: str = ""


@dataclass(frozen=True)
class Entry:
    """A student of a list. numbers: those by which Canvas or Moodle may call the student; group: with whom the student hands in."""

    own: str
    names: tuple[str, ...]
    numbers: frozenset[str] = frozenset()
    group: str = ""


@contextlib.contextmanager
def gradebook_at(path: Path) -> Iterator[Any | None]:
    """nbgrader's gradebook, which somebody may be writing; None without one. Raises UserError for a locked or damaged one."""
    if not path.exists():
        yield None
        return
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with Gradebook(f"sqlite:///{path}?timeout={PATIENCE_S}") as book:
            yield book
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", error)).partition("\n")[0]
        why = f"it cannot be read ({said}). If it is an old one, `nbgrader db upgrade` mends it. Else put a copy in its place"
        if "locked" in said:
            why = f"another program has kept it locked for {PATIENCE_S} s. End that one, and run the command again"
        raise UserError(f"The gradebook {path}: {why}.") from None


def assigned(book: Any) -> set[str]:
    """The labs that the gradebook has as assignments; all labs where it has none."""
    return {each.name for each in book.assignments} or set(labs.NAMES)


def folded(text: str) -> str:
    """Equal for two texts that differ in capital letters, white space, or how their letters are encoded."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def named(first: str, last: str) -> tuple[str, ...]:
    """A name as a list has it in two columns."""
    return (f"{last}, {first}", f"{first} {last}") if first.strip() and last.strip() else (first or last,)


def who_is(*lists: Iterable[Entry]) -> Callable[[Person], str]:
    """The id of a person in the first list that has exactly one such person; as the last list spells it."""
    signs = [_signs(entries) for entries in lists]
    spelled: dict[str, set[str]] = defaultdict(set)
    for entry in lists[-1] if lists else ():
        spelled[folded(entry.own)].add(entry.own)

    def known(person: Person) -> str:
        names = [(SORTED, letters(person.name))]
        if person.system != CANVAS:  # Moodle puts a group before the name of each of its members: Group A-Jane Doe
            parts = person.name.split("-") if person.system == MOODLE else [person.name]
            names = [(SPOKEN, _words("-".join(parts[at:]))) for at in range(min(len(parts), 12))]
        for by_sign in signs:
            for sign in ((OWN, folded(person.login)), (NUMBER, person.number), *names):
                found = by_sign.get(sign, set()) if sign[1] else set()
                if len(found) == 1:
                    own = next(iter(found))
                    alike = spelled.get(folded(own), {own})
                    return own if own in alike or len(alike) > 1 else next(iter(alike))
        return ""

    return known


def _signs(entries: Iterable[Entry]) -> dict[tuple[str, str], set[str]]:
    """Ids by (kind of sign, sign)."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries:
        signs = {(OWN, folded(entry.own)), *((NUMBER, number) for number in entry.numbers)}
        for name in entry.names:
            signs |= {(SORTED, each) for each in _sorted_names(name)} | {(SPOKEN, each) for each in spoken_names(name)}
        for sign in signs:
            found[sign].add(entry.own)
    return found


def groups_of(entries: Iterable[Entry]) -> dict[str, list[Person]]:
    """The members of each group, by the letters of its name."""
    found: dict[str, list[Person]] = defaultdict(list)
    for entry in entries:
        if group := letters(entry.group):
            found[group].append(Person("", entry.own, min(entry.numbers) if len(entry.numbers) == 1 else "", entry.own))
    return found


def _words(text: str) -> str:
    return folded(_DROPPED.sub("", text.replace("_", " ")))


def letters(text: str) -> str:
    """Equal for "2a Workers" and "2a_workers"."""
    return re.sub(r"[\W_]", "", folded(text))


def spoken_names(text: str) -> set[str]:
    """A name in the usual order, which Moodle has, without signs that it leaves out."""
    last, comma, first = text.partition(",")
    return {_words(text), _words(f"{first} {last}")} if comma else {_words(text)}


def _sorted_names(text: str) -> set[str]:
    """A name with the last name first, in small letters, without anything else: Canvas' sortable name."""
    words = text.split()
    # where the last name begins, nobody says; a longer text is no name
    turned = range(1, len(words)) if "," not in text and len(words) <= 12 else ()
    return {letters(text), *(letters("".join(words[at:] + words[:at])) for at in turned)}


def folder_name(person: Person, twins: bool = False) -> str:
    """A student's id where no list knows one: the name, with the number where others have the same name, or where it is a person's."""
    own = person.login or person.name
    words = "".join(letter if letter.isalnum() or letter in "-'." else "_" for letter in own)
    name = re.sub(r"_+", "_", words).encode()[:LONGEST].decode(errors="ignore").strip("_.-'") or "student"
    return f"{name}_{person.number}" if person.number and (twins or person.system == CANVAS) else name


def no_folder(own: str) -> str:
    """Why an id cannot be the name of a student's folder, which nbgrader looks up with a pattern; "" where it can."""
    if not own.isprintable() or any(sign in own for sign in "/\\*?[]"):
        return "holds a sign that no folder's name may have"
    if own.startswith("."):
        return "begins with a dot, which hides a folder"
    return "is too long for a folder's name" if len(own.encode()) > LONGEST else ""
