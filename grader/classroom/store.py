"""The results of a class, one file each: FOLDER/LAB/<content hash>-<machine>.json.

One process writes here, the coordinator, each file whole or not at all; any number may read meanwhile."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader.classroom.submissions import Task
from grader.devices import NO_MARKS
from grader.errors import UserError
from grader.result import Result, write_json

FAILED = "failed"  # in the place of the machine: no machine could grade it


class Store:
    """A record is {"digest", "machine", "version", "seconds", "worker", "date", "result"}; "failed" may replace "machine", "result"."""

    writer = "`grader class`"  # who writes here, and the option that names another folder: for a message
    option = "--results"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def final(self, job: Task, machines: Iterable[str] | None = None, form: str | None = None) -> dict[str, Any] | None:
        """The newest record with a mark that stands, of `machines` and in `form` (of any where None; then a GPU's goes before a
        CPU's). What somebody disturbed and what could not be graded do not stand, and are made again."""
        found = [record for record in self.all_of(job) if stands(record)]
        if machines is not None:
            found = [record for record in found if record["machine"] in set(machines)]
        if form is not None:
            found = [record for record in found if record["result"]["form"] == form]
        return max(found, key=lambda record: (record["result"]["form"] == "cuda", record["date"]), default=None)

    def all_of(self, job: Task) -> list[dict[str, Any]]:
        found = [self.read(path) for path in sorted((self.folder / job.lab).glob(f"{job.digest}-*.json"))]
        return [record for record in found if record is not None]

    def usual_form(self, lab: str) -> str:
        """The form in which most of what stands of a lab was graded; "" where nothing does."""
        found = [self.read(path) for path in sorted((self.folder / lab).glob("*.json"))]
        forms = Counter(record["result"]["form"] for record in found if record and stands(record))
        return forms.most_common(1)[0][0] if forms else ""

    def read(self, path: Path) -> dict[str, Any] | None:
        """A record from its file; None for a file that is none (damaged by hand: it is measured again)."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record[FAILED] if FAILED in record else record["machine"], str) and record["date"]:
                if FAILED not in record:
                    Result.from_dict(record["result"])
                return record
        return None

    def put(self, job: Task, record: dict[str, Any]) -> dict[str, Any]:
        """Keep what a worker returned; returns the record that is kept. One that was disturbed does not take the place of one
        that stands: it counts as a grade that could not be made. Raises UserError for one of a GPU that was pretended."""
        record = {"digest": job.digest, "date": datetime.now(UTC).isoformat(timespec="seconds"), **record}
        failed = self._failed(job)
        if FAILED not in record:
            machine = hashlib.sha256(record["machine"].encode()).hexdigest()[:8]
            path = failed.with_name(f"{job.digest}-{machine}.json")
            result = record["result"]  # of a grade, or whatever a night's call returned
            if isinstance(result, dict) and NO_MARKS in result.get("warnings", []):
                raise UserError(NO_MARKS)
            disturbed = result.get("disturbed") if isinstance(result, dict) else ""
            if disturbed and (old := self.read(path)) and stands(old):
                del record["result"]
                record[FAILED] = disturbed
            else:
                write_json(path, record)
                failed.unlink(missing_ok=True)
        if FAILED in record:
            write_json(failed, record)
        self._asked(job).unlink(missing_ok=True)
        return record

    def ask(self, job: Task) -> None:
        """Remember that this one is to be made anew, until it is."""
        self._asked(job).parent.mkdir(parents=True, exist_ok=True)
        self._asked(job).touch()

    def asked(self, job: Task) -> bool:
        return self._asked(job).exists()

    def _asked(self, job: Task) -> Path:
        return self.folder / job.lab / f"{job.digest}.again"

    def failed(self, job: Task) -> dict[str, Any] | None:
        """The record of a grade that could not be made, until one can; a mark from before still counts."""
        return self.read(self._failed(job))

    def _failed(self, job: Task) -> Path:
        return self.folder / job.lab / f"{job.digest}-{FAILED}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process grades into a folder. Raises UserError where another one does; the lock ends with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise UserError(
                    f"Another {self.writer} (process {file.read().strip() or '?'}) writes its results to {self.folder}. "
                    f"Wait for it, or name another folder with {self.option}."
                ) from None
            except OSError as error:
                raise UserError(
                    f"{self.folder} is on a file system without locks ({error.strerror}). Name another folder "
                    f"with {self.option}."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def stands(record: dict[str, Any]) -> bool:
    return FAILED not in record and not record["result"].get("disturbed")
