"""Which cell of a student's notebook is which of the released one, and whether the student wrote text.

Cells are dictionaries. Editors drop metadata and ids, so a cell is known by its name in nbgrader's metadata, its id, or its text."""

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grader import labs, paths
from grader.submission import MAX_SOURCE, MOST_CELLS, is_submission, no_json, parsed

TEXT_MAGICS = ("%%markdown", "%%html", "%%latex", "%%writefile")
_LAB = re.compile(r"\blab\(\s*[\"']([\w. -]+)[\"']")
WORDS = 5  # a code cell of comments or strings alone holds text from so many words on
NO_PYTHON = 3  # and one that is no Python from so many
# some languages have no blanks
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
# what Colab puts above a notebook, and Deepnote below: a link to themselves, and nothing else
_BADGE = re.compile(r"<a\b[^>]*\bhref=[\"']https://([\w-]+\.)*(google|deepnote|kaggle)\.com[/?].*</a>", re.DOTALL)
# characters: on a text of many links that pattern takes a time that goes with the square of its length
LONGEST_BADGE = 4000
BESIDE = "beside its cell"  # see `explanation`


def grade_id(cell: Any) -> str | None:
    """The name by which nbgrader knows a cell; None where it says none."""
    name = marks(cell).get("grade_id")
    return name if isinstance(name, str) else None


def marks(cell: Any) -> Mapping[str, Any]:
    """What nbgrader's metadata say of a cell."""
    metadata = cell.get("metadata") if isinstance(cell, dict) else None
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def text_of(cell: Mapping[str, Any]) -> Any:
    """A cell's source in one piece; as it is where it is no text."""
    source = cell.get("source")
    return "".join(source) if isinstance(source, list) and all(isinstance(s, str) for s in source) else source


def places(cells: Sequence[Any], known: Mapping[str, str]) -> dict[str, int]:
    """Name -> index of the cells whose names and released texts are `known`: of copies the last changed; none for one written anew."""
    cells = cells[:MOST_CELLS]  # with more nobody takes it, and each name may be looked for in all of them
    texts = [_plain(cell) for cell in cells]  # once: some are as long as a notebook may be
    found: dict[str, int] = {}
    for index, cell in enumerate(cells):
        name = grade_id(cell)
        if name is not None and name in known and (name not in found or text_of(cell) != known[name]):
            found[name] = index
    for index, cell in enumerate(cells):
        name = cell.get("id") if isinstance(cell, dict) else None
        if isinstance(name, str) and name in known and index not in found.values():
            found.setdefault(name, index)
    for name in known.keys() - found.keys():
        alike = [i for i, cell in enumerate(cells) if i not in found.values() and _alike(cell, texts[i], known[name])]
        changed = [i for i in alike if texts[i] != _words(known[name])]
        if alike:
            found[name] = (changed or alike)[-1]
    return found


def _alike(cell: Any, text: str, released: str) -> bool:
    """Whether a cell's text is the released one, or, of a text cell, begins with its first line (a heading)."""
    if not text or not released.strip():
        return False
    first = _words(released.strip().splitlines()[0])
    heading = first.startswith("#") and cell.get("cell_type") == "markdown"
    return text == _words(released) or (heading and text.startswith(first))


def _plain(cell: Any) -> str:
    """A cell's text, of a very long one the beginning: cut into words it takes twenty times the room."""
    text = text_of(cell) if isinstance(cell, dict) else None
    return _words(text[:MAX_SOURCE]) if isinstance(text, str) else ""


def _words(text: str) -> str:
    return " ".join(text.split())


def by_hand(released: Sequence[Any]) -> dict[str, str]:
    """Name -> text of the released cells that a person marks."""
    return {
        name: str(text_of(cell))
        for cell in released
        if (name := grade_id(cell)) is not None and marks(cell).get("grade") and marks(cell).get("solution")
    }


def written(cells: Sequence[Any], released: Sequence[Any]) -> list[str]:
    """The texts that a student added or changed, wherever they stand, without white space."""
    known = {_plain(cell) for cell in released}
    sources = (text_of(cell) for cell in cells if _is_code(cell))
    code = sum(len(source) for source in sources if isinstance(source, str))
    looked_at = [cell for cell in cells if code <= MAX_SOURCE or not _is_code(cell)]  # more should nobody parse
    texts = [_plain(cell) for cell in looked_at if _is_text(cell)]
    return [text for text in texts if text and text not in known and not _is_badge(text)]


def _is_badge(text: str) -> bool:
    return len(text) <= LONGEST_BADGE and bool(_BADGE.fullmatch(text))


def _is_code(cell: Any) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def _is_text(cell: Any) -> bool:
    """Whether a cell holds text. In a code cell it is what is no Python, or comments and strings alone."""
    if not isinstance(cell, dict):
        return False
    if not _is_code(cell):
        return True
    source = text_of(cell)
    if not isinstance(source, str) or is_submission(source):
        return False
    if source.lstrip().startswith(TEXT_MAGICS):
        return True
    lines = ("" if line.lstrip()[:1] in ("%", "!", "?") else line for line in source.splitlines())
    text = "\n".join(lines)
    words = sum(1 for _ in _WORD.finditer(text))
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return words >= NO_PYTHON
    return words >= WORDS and all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


def digest(texts: Sequence[str]) -> str:
    """Equal for the same texts."""
    return hashlib.sha256("\0".join(texts).encode(errors="backslashreplace")).hexdigest()


def explanation(notebook: Any, released: Any) -> str:
    """`BESIDE` where a student left the cell of an explanation as it was, or took it out, and wrote text elsewhere; else ""."""
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    wanted = by_hand(released["cells"])
    if not isinstance(cells, list) or not wanted:
        return ""
    at = places(cells, wanted)
    untouched = any(name not in at or _plain(cells[at[name]]) == _words(text) for name, text in wanted.items())
    return BESIDE if untouched and written(cells, released["cells"]) else ""


def of_another_release(notebook: Any, released: Any) -> bool:
    """Whether most of the texts that no student has to change are others than the released ones, in cells that are the same."""
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    marked = by_hand(released["cells"])
    known = {
        str(cell.get("id")): str(text_of(cell))
        for cell in released["cells"]
        if cell.get("cell_type") == "markdown" and grade_id(cell) not in marked
    }
    if not isinstance(cells, list):
        return False
    at = places(cells, known)
    # an encoding may lose letters, an editor may split a cell
    others = sum(_ascii(_plain(cells[index])) not in _ascii(_words(known[name])) for name, index in at.items())
    return others > len(at) / 2


def _ascii(text: str) -> str:
    return re.sub(r"&#\d+;|[^!-~]|\?", "", text)


def looks_like_a_notebook(data: bytes) -> bool:
    """Whether a file is one, whatever it is called."""
    if not data[:64].lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"{"):
        return False  # most files, and these may be large
    return not no_notebook(data)


def no_notebook(data: bytes) -> str:
    """Why nothing in a file that is called a notebook can be read; "" where its cells can."""
    try:
        notebook = parsed(data)
    except (ValueError, RecursionError) as error:
        return no_json(data) or f"its JSON is broken ({error})"
    return "" if isinstance(notebook, dict) and isinstance(notebook.get("cells"), list) else "it has no list of cells"


def as_released(data: bytes, lab: str) -> bool:
    """Whether nobody worked in a notebook of a lab: it is empty, or each of its cells stands in the released one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        released = json.loads((paths.course() / "labs" / lab / f"{lab}.ipynb").read_text(encoding="utf-8"))
        cells = parsed(data)["cells"]
        known = {"", *(_plain(cell) for cell in released["cells"])}
        return all((text := _plain(cell)) in known or _is_badge(text) for cell in cells)
    return False


def lab_of(data: bytes, *names: str) -> str:
    """Which lab a notebook is of: what it says itself, else what it, or its archive, is called; "" for none."""
    with contextlib.suppress(ValueError, RecursionError):
        notebook = parsed(data)
        cells = notebook.get("cells") if isinstance(notebook, dict) else None
        for cell in cells if isinstance(cells, list) else ():
            text = text_of(cell) if isinstance(cell, dict) and cell.get("cell_type") == "code" else None
            for said in _LAB.findall(text) if isinstance(text, str) else ():
                if said in labs.NAMES:
                    return said
    for name in names:
        found = [lab for lab in labs.NAMES if lab in name.lower().replace(" ", "_").replace("-", "_")]
        if len(found) == 1:
            return found[0]
    return ""
