"""The course in nbgrader: preprocessors in place of nbgrader's own, which `nbgrader_config.py` lists.

No kernel is ever started for a student's notebook: its %%submission cells go, as text, to `grader.grade.grade`."""

import functools
import logging
import math
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bleach.html5lib_shim import Filter
from bleach.sanitizer import ALLOWED_TAGS, Cleaner
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter, NotebookExporter
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import InvalidNotebook, IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat.notebooknode import NotebookNode, from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from nbgrader.api import Gradebook, Notebook, SourceCell
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from sqlalchemy.exc import SAWarning
from traitlets import Bool, Enum, Unicode, default

from grader import labs, paths
from grader.classroom.cells import grade_id, places, text_of, written
from grader.classroom.store import Store
from grader.classroom.submissions import LINK, Job, is_link, submission_in
from grader.devices import NO_MARKS, pretence
from grader.errors import UserError
from grader.frontends import report
from grader.grade import grade
from grader.grading.forms import choose_form, needs_gpu
from grader.labs.lab import AnyLab
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, Result, unscored, write_json
from grader.safe_text import LONG, clean, to_html
from grader.sandbox.probe import confinement
from grader.submission import MAGIC, MOST_CELLS, code_cells, is_submission, load_notebook

SOLUTION_ONLY = "solution-only"  # tag of cells that are not released
PREDICT = "predict"  # grade_id of the cell with the prediction
ADDED = "added"  # in a cell's metadata: it was not handed in
UNREADABLE = "unreadable"  # in a notebook's metadata: why the one that was handed in cannot be read
PREDICTION = "lab.predict(cause=..., gain=...)"

# nbgrader's own, up to three for each new student: they do no harm, and would hide what matters
warnings.filterwarnings("ignore", "Object of type .* not in session", SAWarning)

SHOWN = 20_000  # characters of a cell: with some, showing takes as long as the square of their number
SHOWN_IN_ALL = 500_000  # of a notebook: a cell of the worst takes two seconds
# what a page shows of text cells: what Markdown makes, and what the labs' own cells hold
_TAGS = ALLOWED_TAGS | {f"h{n}" for n in range(1, 7)}
_TAGS |= {"br", "del", "details", "hr", "img", "p", "pre", "sub", "summary", "sup"}
_TAGS |= {"table", "tbody", "td", "th", "thead", "tr"}
# relative ones without a colon: nbgrader's pages strip "files/" from the beginning of a link after this
_LINK = re.compile(r"https?://|mailto:|#|(\.\./|[\w-]+(/|\Z))[^:&]*\Z", re.IGNORECASE)
_LINK_TO_POINTS = re.compile(r'(<a href="#([\w-]+)">)(?:Test cell|Written response)</a>')
# no picture from elsewhere: it would tell its owner when it is looked at, and by whom
_IMAGE = re.compile(r"data:image/", re.IGNORECASE)


class NotGraded(RuntimeError):
    """A submission that gets no mark this time; the message says what to do."""


def _in_a_line(record: logging.LogRecord) -> bool:
    """A filter for nbgrader's log: of errors whose text says what to do it keeps that text, and no traceback; of names, no codes for the
    terminal."""
    error = sys.exception()
    if isinstance(error, NotGraded | UserError | NbGraderException) and record.getMessage().startswith("Traceback"):
        record.msg, record.args = _what_to_do(error), ()
    record.msg, record.args = clean(record.getMessage(), LONG), ()
    return True


def _what_to_do(error: BaseException) -> str:
    if missing := re.fullmatch(r"No assignment with ID '(.+)' exists in the database", str(error)):
        return f"The gradebook does not know {missing[1]} yet: run `nbgrader generate_assignment {missing[1]} --force` once, then autograde again."
    return str(error)


# the command's own logger by its name, for some errors come before anything of ours is made; Formgrader's: see RestoreMetadata
for app in ("AutogradeApp", "GenerateFeedbackApp"):
    logging.getLogger(app).addFilter(_in_a_line)


class ReleaseLab(ClearSolutions):
    """Make a learner's notebook of a solution: the lab's starter in the submission cell, an empty prediction, nothing that is tagged
    "solution-only". Raises ValueError for a notebook without exactly one submission cell."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        self.lab = labs.get(resources["nbgrader"]["notebook"])
        nb.cells = [cell for cell in nb.cells if SOLUTION_ONLY not in cell.metadata.get("tags", [])]
        found = sum(cell.cell_type == "code" and is_submission(cell.source) for cell in nb.cells)
        if found != 1:
            raise ValueError(f"{self.lab.name}: a solution has one {MAGIC} cell, this one has {found}")
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if cell.cell_type == "code" and is_submission(cell.source):
            cell.source = f"{MAGIC}\n{self.lab.starter.rstrip()}"
        elif is_solution(cell) and cell.metadata.nbgrader.get("grade_id") == PREDICT:
            cell.source = PREDICTION
        else:
            cell, resources = super().preprocess_cell(cell, resources, index)
        return cell, resources


class _Renderer(IPythonRenderer):
    def _embed_image_or_attachment(self, src: str) -> str:
        try:
            return super()._embed_image_or_attachment(src)
        except InvalidNotebook:  # a cell that was pasted without its picture: its words are shown
            return ""


@pass_context
def markdown_to_html(context: Any, source: str) -> str:
    """A text cell as a page shows it, without what could act there.

    Formgrader shows a student's text at the address of the instructor's Jupyter server, and nbgrader leaves all HTML in it: a script
    could give all points, or open a terminal. No element keeps an id or a class, either: Formgrader's own fields are found by those."""
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = _Renderer(escape=False, exclude_anchor_links=True, attachments=attachments)
    cleaner = Cleaner(
        tags=_TAGS,
        attributes=_kept,
        protocols=["http", "https", "mailto", "data"],  # data: is for images, see `_kept`
        filters=[_SayWhatIsMissing],
    )
    return cleaner.clean(MarkdownWithMath(renderer=renderer).render(_cut(source)))


class _SayWhatIsMissing(Filter):
    """Words in place of each picture that lost its address."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for token in super().__iter__():
            if token.get("name") == "img" and (None, "src") not in token["data"]:
                words = token["data"].get((None, "alt")) or "a picture"
                said = f"[{words}: not shown, as it is no part of the notebook]"
                token = {"type": "Characters", "data": said}
            yield token


def code_to_html(source: str, metadata: Any = None) -> str:
    """A code cell as a page shows it: signs that hide text, or have it read otherwise than Python does, as their escapes."""
    plain = _cut(source, "# ").replace("\r\n", "\n")
    seen = "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in plain)
    lines = (line.rstrip() for line in seen.split("\n"))  # Pygments is slowest with blank lines of spaces
    return Highlight2HTML(pygments_lexer="python")("\n".join(lines), metadata=metadata)


def _cut(source: str, mark: str = "", most: int = SHOWN) -> str:
    return source if len(source) <= most else f"{source[:most]}\n\n{mark}… (more in the notebook itself)"


def _kept(tag: str, name: str, value: str) -> bool:
    """Whether an element keeps an attribute."""
    if (tag, name) in (("a", "href"), ("img", "src")):
        return bool((_LINK if tag == "a" else _IMAGE).match(value))
    return name == "title" or (tag == "img" and name in ("alt", "width", "height"))


class ReadablePage(CSSHTMLHeaderPreprocessor):
    """Contrast of 4.5 on Formgrader's pages and the feedback: nbgrader's links and Pygments' comments have less."""

    links = (
        "body a, .navbar-default .navbar-nav > li > a { color: #23527c } "
        ".navbar-default a, .breadcrumb a, .name-hidden, .name-shown { color: #23527c !important } "
        ".panel-primary > .panel-heading a { color: #fff !important; text-decoration: underline } "
        ".scoring-buttons button.btn-success { background-color: #2a6a2a !important }"
    )

    @default("style")
    def _style(self) -> str:
        return "a11y-high-contrast-light"

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        nb, resources = super().preprocess(nb, resources)
        resources["inlining"]["css"].append(self.links)
        return nb, resources


class FeedbackPage(HTMLExporter):
    """nbgrader's feedback, whose list of points calls each check by its title: there each is a "Test cell"."""

    def from_notebook_node(self, nb: NotebookNode, resources: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        page, resources = super().from_notebook_node(nb, resources, **options)
        titles = {check.name: check.title for check in labs.get(resources["nbgrader"]["notebook"]).checks}
        named = lambda link: f"{link[1]}{to_html(titles.get(link[2], link[2].capitalize()))}</a>"  # noqa: E731
        return _LINK_TO_POINTS.sub(named, page), resources


class SubmittedNotebook(NotebookExporter):
    """Reads what a student handed in as `grader class` does, so that both come to the same mark.

    What cannot be read becomes a notebook of the cells that can, without points, and the reason: nbgrader would stop with a traceback."""

    def from_filename(self, filename: str, resources: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        if not getattr(self.parent, "_sanitizing", True):  # what nbgrader has written itself, a step before
            return super().from_filename(filename, resources=resources, **options)
        try:  # never opened here: a pipe would be waited for without an end
            nb = _as_handed_in(load_notebook(filename))
        except UserError as error:
            nb = new_notebook(metadata={UNREADABLE: str(error).replace(filename, "The file")})
        path = Path(filename)
        resources = {**(resources or {}), "metadata": {"name": path.stem, "path": str(path.parent)}}
        return self.from_notebook_node(nb, resources=resources, **options)


def _as_handed_in(notebook: Any) -> NotebookNode:
    """A notebook's cells without outputs, with the reason where one cannot be graded. Raises UserError for no list of cells."""
    why = ""
    try:
        code_cells(notebook, "The file")
    except UserError as error:
        if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
            raise
        why = str(error)
    new = {"code": new_code_cell, "raw": new_raw_cell}
    cells, ids, room = [], set(), SHOWN_IN_ALL
    for cell in notebook["cells"][:MOST_CELLS]:
        if not isinstance(cell, dict):
            continue
        text = text_of(cell)
        source = text if isinstance(text, str) else ""
        if is_submission(source) and source != _whole(source):
            why = "The notebook cannot be read as Python: a %%submission cell holds half a character. Write it anew."
        made = new.get(str(cell.get("cell_type")), new_markdown_cell)(_whole(source))
        if why or made.cell_type != "code":  # code that is graded stays whole
            made.source = _cut(made.source, most=max(0, room))
        room -= min(len(made.source), SHOWN)
        name = cell.get("id")
        if isinstance(name, str) and re.fullmatch(r"[\w-]{1,64}", name, re.ASCII) and name not in ids:
            made.id = name
            ids.add(name)
        if (marked := grade_id(cell)) is not None:
            made.metadata = from_dict({"nbgrader": {"grade_id": marked}})
        if made.cell_type == "markdown":
            made.attachments = from_dict(_pictures(cell.get("attachments")))
        cells.append(made)
    return new_notebook(cells=cells, metadata={UNREADABLE: why} if why else {})


def _pictures(attachments: Any) -> dict[str, dict[str, str]]:
    """What a text cell shows: {name: {type: data in base64}}."""
    found = {}
    for name, bundle in attachments.items() if isinstance(attachments, dict) else ():
        kinds = bundle.items() if isinstance(bundle, dict) else ()
        texts = {_whole(kind): _whole(data) for kind, data in kinds if isinstance(data, str)}
        if texts:
            found[_whole(name)] = texts
    return found


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can hold and no file can."""
    return text.encode("utf-8", "replace").decode("utf-8")


class RestoreMetadata(NbGraderPreprocessor):
    """Give every cell the nbgrader metadata that the gradebook holds for it, and take all other away.

    Copied, split or deleted cells, edited points and empty metadata stop nbgrader's own steps, some of them for all
    students that come later. Goes first; after it, nothing in a notebook's metadata is the student's word."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        log: Any = self.log
        getattr(log, "logger", log).addFilter(_in_a_line)  # here: this is made before any notebook is read

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        if is_link(Path(resources["metadata"]["path"]).parent, about["assignment"]):
            nb = new_notebook(metadata={UNREADABLE: LINK})
        why = nb.metadata.get(UNREADABLE)
        if why:
            self.log.warning("%s: %s", about["student"], why)
            nb.cells.insert(0, _added("markdown", f"**Nothing could be graded.** {why}"))
        order = [name for cell in released_cells(self, about["assignment"]) if (name := grade_id(cell)) is not None]
        with Gradebook(about["db_url"]) as gradebook:
            released = gradebook.find_notebook(about["notebook"], about["assignment"])
            sources = {cell.name: cell for cell in released.source_cells}
            found = {name: nb.cells[index] for name, index in self._places(nb, sources).items()}
            for name in sorted(sources, key=lambda name: order.index(name) if name in order else len(order)):
                metadata = _metadata(released, sources[name])
                if name in found:
                    _restore(nb, found, name, sources[name])
                elif metadata["grade"]:
                    if not why:
                        self.log.warning("%s: cell '%s' was missing", about["student"], name)
                    found[name] = _added(sources[name].cell_type, sources[name].source)
                    nb.cells.insert(_place_of(name, nb, found, order), found[name])
                else:
                    continue
                found[name].metadata["nbgrader"] = metadata
        return nb, resources

    def _places(self, nb: NotebookNode, sources: dict[str, SourceCell]) -> dict[str, int]:
        """Which cell is which; takes all nbgrader metadata out."""
        names = [grade_id(cell) for cell in nb.cells]
        for name in sources:
            if names.count(name) > 1:
                self.log.warning("Cell '%s' exists more than once", name)
        found = places(nb.cells, {name: cell.source for name, cell in sources.items()})
        for cell in nb.cells:
            cell.metadata.pop("nbgrader", None)
        return found


def released_cells(preprocessor: NbGraderPreprocessor, lab: str) -> list[Any]:
    """The cells of a lab as this course released it, else as this repository does."""
    course = CourseDirectory(parent=preprocessor)
    folder = Path(course.format_path(course.release_directory, ".", lab))
    path = next(
        (f for f in (folder / f"{lab}.ipynb", paths.course() / "labs" / lab / f"{lab}.ipynb") if f.exists()), None
    )
    return load_notebook(path)["cells"] if path else []


def _restore(nb: NotebookNode, found: dict[str, NotebookNode], name: str, source: SourceCell) -> None:
    """Give a cell its type. What somebody wrote into a locked one, which nbgrader overwrites, stays as a cell above it."""
    at = next(index for index, cell in enumerate(nb.cells) if cell is found[name])
    if source.locked and written([found[name]], [{"source": source.source}]):
        nb.cells.insert(at, _added("markdown", found[name].source))
        at += 1
    if found[name].cell_type != source.cell_type:
        found[name] = nb.cells[at] = _new_cell(source.cell_type, found[name].source)


def _place_of(name: str, nb: NotebookNode, found: dict[str, NotebookNode], order: list[str]) -> int:
    """Where a cell that was deleted goes back in: behind the one that was released before it, else before the one after it."""
    at = {id(cell): index for index, cell in enumerate(nb.cells)}
    here = order.index(name) if name in order else len(order)
    before = [at[id(found[each])] for each in order[:here] if each in found]
    after = [at[id(found[each])] for each in order[here + 1 :] if each in found]
    return before[-1] + 1 if before else after[0] if after else len(nb.cells)


def _added(cell_type: str, source: str) -> NotebookNode:
    """A cell that the student's notebook does not have, and that is not counted when its cells are."""
    cell = _new_cell(cell_type, source)
    cell.metadata[ADDED] = True
    return cell


def _metadata(released: Notebook, cell: SourceCell) -> NotebookNode:
    """nbgrader's metadata (schema 3) of a released cell."""
    points = {c.name: c.max_score for c in released.grade_cells}
    metadata = NotebookNode(
        schema_version=3,
        grade_id=cell.name,
        grade=cell.name in points,
        solution=any(cell.name == c.name for c in released.solution_cells),
        locked=cell.locked,
        task=False,
        cell_type=cell.cell_type,
        checksum=cell.checksum,
    )
    if metadata.grade:
        metadata.points = points[cell.name]
    return metadata


def _new_cell(cell_type: str, source: str) -> NotebookNode:
    return (new_code_cell if cell_type == "code" else new_markdown_cell)(source)


class MeasuredGrade(NbGraderPreprocessor):
    """Grade a notebook by measurement, in place of nbgrader's Execute: from what `grader class` has measured, or else here and now.

    Each grade cell gets the points of the check that it is named after, and the report; the whole Result goes into
    `<notebook>.result.json`. What is wrong with the machine is raised, and the submission stays ungraded."""

    device = Enum(
        ("auto", "cpu", "cuda"), "auto", help='Where to measure: "cuda", "cpu", or "auto" for the GPU if there is one'
    ).tag(config=True)
    quick = Bool(False, help="Fewer and shorter measurements: to try the course out, not for marks").tag(config=True)
    allow_unconfined = Bool(False, help="Grade where file access cannot be confined: for code that you trust").tag(
        config=True
    )

    results = Unicode("measured", help="Folder with the results of `grader class`, from the course's folder").tag(
        config=True
    )
    only_measured = Bool(
        False,
        help="Measure nothing: what `grader class` has not measured stays ungraded (for a machine without the GPU)",
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about = resources["nbgrader"]
        lab = labs.get(about["notebook"])
        result = self.measure(nb, lab, about["student"])
        self._tell(result, about["student"])
        for cell in nb.cells:
            if is_grade(cell) and not is_solution(cell):
                cell.outputs = grade_outputs(
                    result, cell.metadata.nbgrader["grade_id"], cell.metadata.nbgrader["points"]
                )
        write_json(Path(resources["metadata"]["path"]) / f"{about['notebook']}.result.json", result.to_dict())
        return nb, resources

    def measure(self, nb: NotebookNode, lab: AnyLab, student: str = "") -> Result:
        try:
            if why := nb.metadata.get(UNREADABLE):
                raise UserError(why)
            theirs = {"cells": [cell for cell in nb.cells if not cell.metadata.get(ADDED)]}
            submission = replace(submission_in(theirs), student=student)
        except UserError as error:
            return self._not_graded(lab, str(error))
        job = Job(lab.name, submission, quick=self.quick)
        known = self.device if self.device in lab.forms else None  # any: what is graded without a device has its own
        record = self._store().final(job, form=known)
        if record:
            self.log.info("%s of %s was measured on %s (%s)", lab.name, student, record["machine"], record["date"])
            return Result.from_dict(record["result"])
        if self.only_measured:
            raise NotGraded(
                "Not graded: this version of the grader has measured nothing of this submission. Run `grader class`, then "
                "autograde again. (After `grader class --quick`, which gives no marks: --MeasuredGrade.quick=True.)"
            )
        if pretence():
            raise NotGraded(f"Not graded: {NO_MARKS}")
        _tell_confinement(self.log)
        self.log.info("Measuring %s of %s", lab.name, student)
        result = grade(submission, lab, device=self.device, quick=self.quick, allow_unconfined=self.allow_unconfined)
        if result.disturbed:  # no mark at all rather than a wrong one
            raise NotGraded(f"Not graded: {result.disturbed} Run autograde again for this student.")
        return result

    def _store(self) -> Store:
        return Store(Path(CourseDirectory(parent=self).root) / self.results)

    def _not_graded(self, lab: AnyLab, why: str) -> Result:
        """No points, of as many as everybody else can have here."""
        form = self._store().usual_form(lab.name) or ("cpu" if self.only_measured else choose_form(lab, self.device))
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        not_graded, not_here = (FAIL, "Not graded: see above."), (NOT_MEASURED, needs_gpu(lab))
        checks = [unscored(c, *(not_graded if lab.measures(c, form) else not_here)) for c in lab.checks]
        return Result(lab.name, lab.title, form, checks, {}, {}, fatal=why, quick=self.quick, date=date)

    def _tell(self, result: Result, student: str) -> None:
        self.log.info("%s: %g of %g points", student, result.score, result.max_score)
        for status in (INCONCLUSIVE, NOT_MEASURED):
            names = ", ".join(c.name for c in result.checks if c.status == status)
            if names:
                self.log.warning("%s: %s: %s", student, status, names)


@functools.cache  # once a run
def _tell_confinement(log: logging.Logger) -> None:
    """What keeps submissions in on this machine."""
    for line in confinement().lines():
        log.info("Confinement: %s", line)


# nbgrader's pages take away the space between a table's cells and the triangle of a summary; no other page has this class
_SPACE = "<style>.text_cell_render :is(th, td) { padding: 1px 14px 1px 0; vertical-align: top } .text_cell_render summary { display: list-item; cursor: pointer }</style>"


def grade_outputs(result: Result, name: str, most: float) -> list[NotebookNode]:
    """The outputs of one grade cell. nbgrader reads the points off the execute_result; where there is none, where it is
    no number or where it is negative, it gives *all* points, so there is always one, and it is always a number."""
    check = next((c for c in result.checks if c.name == name), None)
    points = float(check.points) if check and math.isfinite(check.points) else 0.0
    points = round(min(max(points, 0.0), most), 4)
    if check is None:
        data = {"text/plain": f"This lab has no check {name!r}."}
    else:
        shown = result
        if name != (labs.get(result.lab).report_in or result.checks[0].name):  # the others hold their own line of it
            fatal = "The whole report, further up, says why." if result.fatal else ""
            shown = Result(result.lab, check.title, result.form, [check], {}, {}, fatal=fatal)
        data = {"text/plain": report.text(shown), "text/html": _SPACE + report.html(shown, all_hints=True)}
    number = new_output("execute_result", {"text/plain": repr(points)}, execution_count=None)
    return [new_output("display_data", data), number]
