"""A class of odd students: what they hand in, as Moodle and Canvas pack it, and what has to come of it.

Each kind was seen in a real class, or is the next one of its sort: editors that drop metadata or write another encoding, cells
copied and deleted, files renamed and packed, names of all kinds. All of them know the answers, so that few grades are made."""

import copy
import csv
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell

REPOSITORY = Path(__file__).resolve().parents[1]
LAB, OTHER = "1c_diagnose", "1e_retest"
TEXT = "Größer als „82 %“: the loop waited for its data, and its GPU was idle – so it is input-bound."
WHEN = (2026, 11, 20, 10, 30, 0)


def notebook_of(lab: str, solved: bool = False) -> Any:
    """A lab's JSON as it was released, or with its answers filled in."""
    nb = json.loads((REPOSITORY / "labs" / lab / f"{lab}.ipynb").read_text(encoding="utf-8"))
    answers = json.loads((REPOSITORY / "solutions" / lab / f"{lab}.ipynb").read_text(encoding="utf-8"))
    if solved:
        cell(nb, "submission")["source"] = text(cell(answers, "submission"))
    return nb


def cell(nb: Any, name: str) -> Any:
    return next(each for each in nb["cells"] if each.get("id") == name)


def text(each: Any) -> str:
    return "".join(each["source"])


def explain(nb: Any) -> None:
    cell(nb, "explanation")["source"] = f"{text(cell(nb, 'explanation'))}\n\n{TEXT}"


def put(nb: Any, below: str, *new: Any) -> None:
    at = nb["cells"].index(cell(nb, below)) + 1
    nb["cells"][at:at] = new


# ---------------------------------------------------------------- what is odd in a notebook


def plain(nb: Any) -> None:
    explain(nb)


def says_nothing(nb: Any) -> None: ...


def below_the_cell(nb: Any) -> None:
    put(nb, "explanation", new_markdown_cell(TEXT))


def above_all(nb: Any) -> None:
    nb["cells"].insert(0, new_markdown_cell(TEXT))


def as_code(nb: Any) -> None:
    put(nb, "explanation", new_code_cell(TEXT))


def in_chinese_as_a_comment(nb: Any) -> None:
    put(nb, "explanation", new_code_cell("# 循环在等待数据,所以GPU空闲"))


def stripped(nb: Any) -> None:
    """What Deepnote and others leave."""
    explain(nb)
    strip(nb)


def stripped_below(nb: Any) -> None:
    below_the_cell(nb)
    strip(nb)


def strip(nb: Any) -> None:
    nb["metadata"], nb["nbformat_minor"] = {}, 4
    for each in nb["cells"]:
        each["metadata"] = {}
        each.pop("id", None)


def stripped_and_split(nb: Any) -> None:
    """A text editor of blocks: each paragraph is a cell of its own."""
    explain(nb)
    strip(nb)
    blocks = []
    for each in nb["cells"]:
        parts = text(each).split("\n\n") if each["cell_type"] == "markdown" else [text(each)]
        blocks += [{**each, "source": part} for part in parts if part.strip()]
    nb["cells"] = blocks


def other_ids(nb: Any) -> None:
    """Colab: ids in the metadata, others than they were."""
    explain(nb)
    for number, each in enumerate(nb["cells"]):
        each["metadata"] = {"id": f"Zx{number}", "colab": {"base_uri": "https://localhost:8080/"}}
        each["id"] = f"Zx{number}"


def each_cell_twice(nb: Any) -> None:
    explain(nb)
    nb["cells"] = [each for one in nb["cells"] for each in (one, copy.deepcopy(one))]


def a_copy_is_changed(nb: Any) -> None:
    new = copy.deepcopy(cell(nb, "explanation"))
    new["source"] = f"{text(new)}\n\n{TEXT}"
    put(nb, "explanation", new)


def cells_deleted(nb: Any) -> None:
    kept = ("setup", "submission", "look-a")
    nb["cells"] = [each for each in nb["cells"] if each["id"] in kept] + [new_markdown_cell(TEXT)]


def turned_around(nb: Any) -> None:
    explain(nb)
    nb["cells"].reverse()


def the_cell_is_code(nb: Any) -> None:
    explain(nb)
    cell(nb, "explanation").update(cell_type="code", outputs=[], execution_count=None)


def fifty_megabytes(nb: Any) -> None:
    explain(nb)
    cell(nb, "check")["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "0.123456 \n" * 5_000_000}]


def half_a_character(nb: Any) -> None:
    cell(nb, "explanation")["source"] = f"{text(cell(nb, 'explanation'))}\n\n{TEXT} \ud83d"


def lines_of_windows(nb: Any) -> None:
    explain(nb)
    for each in nb["cells"]:
        each["source"] = text(each).replace("\n", "\r\n").splitlines(keepends=True)


def a_cell_without_text(nb: Any) -> None:
    explain(nb)
    nb["cells"].insert(2, {"cell_type": "code", "metadata": {}, "source": None, "outputs": [], "id": "none"})


def no_submission(nb: Any) -> None:
    explain(nb)
    nb["cells"].remove(cell(nb, "submission"))


# ---------------------------------------------------------------- what is odd in a file


@dataclass(frozen=True)
class Kind:
    """What one student hands in. points: None where nothing is taken; read: whether a person has to read an explanation."""

    name: str
    files: dict[str, bytes]
    points: float | None = 100
    read: bool = True
    beside: bool = False  # whether that stands elsewhere than in its cell
    when: tuple[int, ...] = WHEN


def packed(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def made(edit: Callable[[Any], None], encoding: str = "utf-8", solved: bool = True, lab: str = LAB) -> bytes:
    nb = notebook_of(lab, solved)
    edit(nb)
    whole = json.dumps(nb, ensure_ascii=edit is half_a_character)
    return whole.encode(encoding, "xmlcharrefreplace")


IN_THE_NOTEBOOK = (
    plain,
    below_the_cell,
    above_all,
    as_code,
    in_chinese_as_a_comment,
    stripped,
    stripped_below,
    stripped_and_split,
    other_ids,
    each_cell_twice,
    a_copy_is_changed,
    cells_deleted,
    turned_around,
    the_cell_is_code,
    fifty_megabytes,
    half_a_character,
    lines_of_windows,
)
BESIDE = (below_the_cell, above_all, as_code, in_chinese_as_a_comment, stripped_below, cells_deleted)
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252")
FILE = f"{LAB}.ipynb"


def kinds() -> Iterator[Kind]:
    for edit in IN_THE_NOTEBOOK:
        yield Kind(edit.__name__, {FILE: made(edit)}, beside=edit in BESIDE)
    for encoding in ENCODINGS:
        yield Kind(encoding, {FILE: made(plain, encoding)})
    yield Kind("says nothing", {FILE: made(says_nothing)}, read=False)
    yield Kind("untouched", {FILE: made(says_nothing, solved=False)}, 0, read=False)
    yield Kind("only explains", {FILE: made(plain, solved=False)}, 0)
    yield Kind("a cell without text", {FILE: made(a_cell_without_text)}, 0)
    yield Kind("no submission", {FILE: made(no_submission)}, 0)
    yield Kind("broken", {FILE: made(plain)[:-400]}, 0, read=False)
    yield Kind("empty", {FILE: b""}, 0, read=False)
    yield Kind("a PDF called so", {FILE: b"%PDF-1.7\n\xff"}, 0, read=False)
    yield Kind("renamed", {"Übung 1 – final (2).ipynb": made(plain)})
    yield Kind("as text", {f"{FILE}.txt": made(below_the_cell)}, beside=True)
    yield Kind(
        "two",
        {"old.ipynb": made(says_nothing), "x (3).ipynb": made(plain), "notes.docx": b"PK"},
        when=(2026, 11, 21, 23, 59, 58),
    )
    yield Kind("packed", {"hand-in.zip": packed({f"__MACOSX/._{FILE}": b"\0", f"my work/{FILE}": made(plain)})})
    yield Kind("packed twice", {"a.ZIP": packed({"b.zip": packed({f"../../../{FILE}": made(plain)})})})
    yield Kind("a PDF", {"report.pdf": b"%PDF-1.7"}, None)
    yield Kind("of another lab", {FILE: made(plain, lab=OTHER)}, None)
    yield Kind("a path that leads out", {f"../../../../{FILE}": made(plain)}, None)


# first and last names: what Moodle and Canvas make of them differs
NAMES = (
    ("Zoë", "Müller"),
    ("Anne-Marie", "O'Brien"),
    ("José", "de la Cruz"),
    ("Al", "Gray"),
    ("Al", "Gray"),
    ("伟", "李"),
    ("Zoe\u0308", "Mu\u0308nch"),
    ("Łukasz", "Żółć"),
    ("X Æ A-12", "Musk_2_x"),
    ("", "Mononym"),
    ("=cmd()", "-Formula"),
    ("Nguyễn Thị", "Ánh"),
)


@dataclass(frozen=True)
class Student:
    id: str
    first: str
    last: str
    number: int
    kind: Kind


def students(count: int, system: str) -> list[Student]:
    """Odd names, ids and hand-ins in turns; each kind at least once where there are so many."""
    every, found = list(kinds()), []
    for number in range(count):
        first, last = NAMES[number % len(NAMES)]
        who = number // len(NAMES)  # the same name again, made another one, but for the two of a name
        last = last if not who else f"{last}{'abcdefghijklmnopqrstuvwxyz'[who]}"
        own = (
            f"0{system == 'canvas':d}{number:03d}",
            f"{system}-Id{number}",
            f"{system},{number}",
            f"{system}\"{number}'",
            f"{system}.ü{number}",
        )[number % 5]
        found.append(Student(own, first, last, 1_000_000 + number, every[number % len(every)]))
    return found


def archive(path: Path, class_: Iterable[Student], system: str) -> Path:
    """What Moodle or Canvas packs of a class."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for each in class_:
            for at, (name, data) in enumerate(each.kind.files.items()):
                file.writestr(
                    zipfile.ZipInfo(entry(each, system, name, at), each.kind.when), data, zipfile.ZIP_DEFLATED
                )
    return path


def entry(each: Student, system: str, name: str, at: int) -> str:
    if system == "moodle":
        spoken = "".join(
            letter for letter in f"{each.first} {each.last}".strip().replace("_", " ") if letter not in "&<>\"`|':\\/"
        )
        return f"{spoken}_{each.number}_assignsubmission_file_/{name}"
    letters = "".join(letter for letter in f"{each.last}{each.first}".lower() if letter.isalnum() or letter == "_")
    letters = re.sub(r"_(\d+)_", r"\1", letters)
    late = "_LATE" if each.kind.when != WHEN else ""
    return f"{letters}{late}_{each.number}_{5_000_000 + 10 * each.number + at}_{name}"


def worksheet(path: Path, class_: Iterable[Student], system: str) -> Path:
    """The list of all students that the system exports, to be filled with marks."""

    with path.open("w", encoding="utf-8-sig", newline="") as file:
        write = csv.writer(file)
        if system == "moodle":
            write.writerow(
                ["Identifier", "Full name", "ID number", "Email address", "Status", "Grade", "Maximum Grade"]
            )
        else:
            write.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", f"{LAB} (77)"])
            write.writerow(["    Points Possible", "", "", "", "", "50"])
        for each in class_:
            if system == "moodle":
                spoken = f"{each.first} {each.last}".strip()
                write.writerow([f"Participant {each.number}", spoken, each.id, f"{each.number}@x.org", "", "", "50.00"])
            else:
                write.writerow([f"{each.last}, {each.first}", each.number, f"sis{each.number}", each.id, "A", ""])
    return path


def course(root: Path) -> None:
    """What nbgrader needs of a course's folder."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    for folder in ("solutions", "labs"):
        shutil.copytree(REPOSITORY / folder / LAB, root / folder / LAB)
