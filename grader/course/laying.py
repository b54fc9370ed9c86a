"""Lays the course down in a folder of the learner's: notebooks with their figures, labs. What a learner changed stays."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from grader import paths
from grader.errors import UserError
from grader.result import made_writable, read_json, write_bytes, write_json

FOLDERS = ("notebooks", "labs")
IGNORED = {".ipynb_checkpoints", "__pycache__"}


@dataclass
class Laid:
    """What `lay` did, as paths below the folder."""

    new: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)  # as they were laid down before, and the course has newer ones
    same: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # the learner's, left as they are
    outdated: list[str] = field(default_factory=list)  # of these, the ones that the course has newer ones of


def lay(folder: Path) -> Laid:
    """Bring what is missing or new. Raises UserError where the folder cannot be used."""
    folder = folder.expanduser().absolute()
    if not paths.installed() and folder.resolve() in (paths.REPOSITORY, *(paths.REPOSITORY / name for name in FOLDERS)):
        raise UserError(f"{folder} belongs to the course's own files. Name a different folder.")
    sources = _sources()
    if not sources:
        raise UserError(f"{paths.course()} has no notebooks. Get the course anew.")
    made_writable(folder)  # before the first file, so that it is named and not the file
    record, done = _read_record(folder / paths.MARK), Laid()
    try:
        for relative, source in sources.items():
            _lay_one(source.read_bytes(), folder, relative, record, done)
        write_json(folder / paths.MARK, {"files": record})
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be written: {error.strerror}. Name a folder that is yours to write to and has room."
        ) from None
    return done


def _sources() -> dict[str, Path]:
    """The course's files by their paths below its folder."""
    root = paths.course()
    found = (path for name in FOLDERS for path in sorted((root / name).rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path for path in found if not IGNORED & set(path.parts)}


def _lay_one(content: bytes, folder: Path, relative: str, record: dict[str, str], done: Laid) -> None:
    target, ours = folder / relative, hashlib.sha256(content).hexdigest()
    before = record.get(relative)
    theirs = _hash(target)
    if theirs not in (None, ours, before):
        done.changed.append(relative)
        if before != ours:
            done.outdated.append(relative)
        return
    if theirs != ours:
        write_bytes(target, content)
        (done.new if theirs is None else done.renewed).append(relative)
    else:
        done.same.append(relative)
    record[relative] = ours


def _hash(path: Path) -> str | None:
    """Of a file's content; None where nothing is there, "" for what is no plain file or cannot be read."""
    if not os.path.lexists(path):
        return None
    try:
        return "" if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _read_record(path: Path) -> dict[str, str]:
    """The hash of each file as it was laid down last; empty where it was not, or the record cannot be read."""
    files = read_json(path).get("files")
    return {str(name): str(value) for name, value in files.items()} if isinstance(files, dict) else {}
