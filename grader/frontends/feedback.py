"""`grader class feedback`: nbgrader's feedback pages in archives that Moodle and Canvas give back to the students."""

import argparse
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from grader.classroom.people import CANVAS, MOODLE
from grader.errors import UserError
from grader.frontends.classroom import RESULTS, add_class
from grader.frontends.collect import remembered
from grader.result import write_bytes
from grader.safe_text import as_it_was, clean, tell


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=pack)
    sub.description = (
        "Packs the pages of `nbgrader generate_feedback` for Moodle (Upload multiple feedback files in a zip) and for "
        "Canvas (Upload Submissions), for whoever came by `grader class collect`. It names the pages of everybody else."
    )
    sub.epilog = "Exit status: 0 if everybody's page is packed. 1 if some are missing. 2 for unusable input."
    add_class(sub)
    words = "folder with STUDENT/LAB/LAB.html (default: feedback beside SUBMITTED)"
    sub.add_argument("--feedback", type=Path, metavar="FOLDER", help=words)


def pack(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where somebody has no page."""
    course = options.submitted.absolute().parent
    pages = options.feedback or course / "feedback"
    rows = [row for row in remembered(options.submitted) if not options.lab or row["lab"] in options.lab]
    found, missing = defaultdict(list), []
    for row in rows:
        name = _name(row)
        page = pages / row["student"] / row["lab"] / f"{row['lab']}.html"
        if not name:
            continue
        if page.is_file():
            found[row["lab"], row["system"]].append((name, page))
        else:
            missing.append(f"{row['student']}, {row['lab']}")
    if not found and not missing:
        raise UserError(
            f"{options.submitted} holds nothing of these labs that came from Moodle or Canvas by `grader class collect`."
        )
    for (lab, system), files in sorted(found.items()):
        path = (options.results or course / RESULTS) / f"feedback-{lab}-{system}.zip"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, page in files:
                archive.writestr(name, page.read_bytes())
        write_bytes(path, packed.getvalue())
        print(f"For {system.capitalize()}: {path}, {len(files)} pages of {lab}")
    taken = {page for files in found.values() for _, page in files}
    others = [page for page in sorted(pages.glob("*/*/*.html")) if page.parent.name == page.stem and page not in taken]
    if alone := [str(page) for page in others if not options.lab or page.stem in options.lab]:
        print(f"Not from Moodle or Canvas, so give these pages back yourself: {clean('; '.join(alone))}")
    if missing:
        tell(f"No page yet, so run `nbgrader generate_feedback LAB --force`: {clean('; '.join(missing))}")
    return int(bool(missing))


def _name(row: Mapping[str, str]) -> str:
    """What the system takes for the student's; "" where it would not know whose it is. Moodle:
    https://github.com/moodle/moodle/blob/main/public/mod/assign/feedback/file/importziplib.php"""
    student, number, page = as_it_was(row["name"]), row["number"], f"{row['lab']}.html"
    if row["system"] == MOODLE:
        return f"{student.replace('_', ' ')}_{number}_assignfeedback_file/{page}"
    file = as_it_was(row["file"]).partition("/")[0]
    known = re.match(rf"(?:.*?_)??{re.escape(number)}_\d+(?=_)", file)
    return f"{known[0]}_{page}" if row["system"] == CANVAS and known else ""
