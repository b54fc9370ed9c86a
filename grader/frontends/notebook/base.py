"""What all labs have in a notebook: the card, the grade, the log of attempts."""

import ast
import base64
import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grader import labs, machine, paths, web_page
from grader.classroom.client import grade_at
from grader.errors import UserError
from grader.frontends import attempts, board, magic, report, share, sizes
from grader.frontends.notebook.note import Head, Note, Output, ProgressBar, ReportNote, Row, Table, shell
from grader.grade import grade
from grader.grading.forms import choose_form, fitted, missing_packages, own_cores, too_little_memory
from grader.grading.half import says_bf16
from grader.labs.lab import AnyLab, Check
from grader.result import NOT_MEASURED, Progress, Result, write_bytes
from grader.safe_text import cores_text, to_html
from grader.sandbox.fork_server import fork_server
from grader.submission import NOT_FIRST, Submission, defined, from_cells, is_misplaced, is_submission

ONLY_TRAINING = "This lab needs an NVIDIA GPU. On this CPU, only the training is compared."
NEEDS_GPU = "This lab needs an NVIDIA GPU. Nothing of it can be measured here."
AFTERWARDS = ("lab.report(), lab.share()", "the last report again, and a picture of it to show to others")
GOES_ON = "If this page is loaded again, the check goes on all the same, and lab.report() shows what came of it."
# tools that some kinds of labs have
ELSEWHERE = {"run", "peek", "predict", "profile", "look", "explore", "save", "code", "compare", "cases", "ticket"}


class NotMeasured(float):
    """No points, and no number where it is shown."""

    def __repr__(self) -> str:
        return NOT_MEASURED


class NotHere(UserError, AttributeError):
    """What another kind of lab has: for a learner the course's usual error, for `hasattr` the usual one."""


class NotebookLab:
    """One lab in a notebook, of any kind. device: "auto", "cuda" or "cpu"; quick: fewer and shorter measurements, to try
    things out; cores: how many it is measured on, 8, or which, "0-3,8", in place of its GPU's share.

    Raises UserError for an unknown lab, and for a device or cores that this machine does not have."""

    steps: tuple[Row, ...]  # what one does here, for the card: the call, and what it gives

    def __init__(self, name: str, device: str = "auto", quick: bool = False, cores: int | str | None = None) -> None:
        self.lab: AnyLab = labs.get(name)
        self.device = choose_form(self.lab, device)
        self.quick = quick
        self._cores = None if cores is None else machine.asked_cores(str(cores))
        self.result: Result | None = None  # of the last finished `check()`
        self._noteworthy = True  # what `log` can put a note to: not after a check() that came to no result
        self._folder = paths.here()
        running = shell()
        self._recorder = magic.install(running) if running else None
        if self.lab.runs_code:
            with self._on_cores():
                fork_server()  # imports torch meanwhile

    def _repr_html_(self) -> str:
        return self._card().html()

    def __repr__(self) -> str:
        return self._card().text()

    def _card(self) -> Note:
        lab, where = self.lab, self._where()
        if self.quick and lab.runs_code:
            where += " Quick mode takes fewer and shorter measurements. It's for trying things out, not for marks."
        if self._folder == paths.learners() / "labs" / lab.name:
            where += (
                " This notebook lies where labs are handed out from. Work in a copy of your own, from the start notebook or "
                f"by `grader start {lab.name}`. The map shows the progress of that one."
            )
        unmeasured = [c for c in lab.checks if not lab.measures(c, self.device)]
        checks = [
            (
                self._title_of(c),
                f"{c.points:g} points",
                "needs an NVIDIA GPU: not measured here" if c in unmeasured else "",
            )
            for c in lab.checks
        ]
        head, *rows = sizes.sizes(fitted(lab, self.device)[0]) or [()]
        tables: list[Table] = [[Head(head), *rows] if head else [], checks, [*self.steps, AFTERWARDS]]
        return Note(f"Lab {lab.name} · {lab.title}", [lab.goal, where], tables)

    def _title_of(self, check: Check) -> str:
        """On the card, which is read before anything else."""
        return check.title

    def _where(self) -> str:
        if lacks := missing_packages(self.lab) or too_little_memory(self.lab, self.device):
            return lacks
        gpu = machine.gpu_name()
        if self.device == "traces":
            live = " With an NVIDIA GPU, the lab records its own loop." if "cuda" in self.lab.forms else ""
            return f"Graded from recorded traces. Nothing is measured, and no GPU is needed.{live}"
        if self.device == "cuda":
            lacks = says_bf16(self.lab) if "bf16" in machine.gpu_lacks() else ""
            parts = (f"Measured on this machine's {gpu}.", fitted(self.lab, self.device)[1], lacks, sizes.peaks_of(gpu))
            return " ".join(filter(None, parts))
        if "cpu" in self.lab.forms and not any(self.lab.measures(check, "cpu") for check in self.lab.checks):
            return ONLY_TRAINING
        if "cpu" in self.lab.forms:
            count = len(self._cores or machine.share(0)[0])
            return f"Measured on this machine's CPU ({cores_text(count)}), in the lab's CPU form" + (
                f", though there is a GPU ({gpu})." if gpu else ", because no NVIDIA GPU was found."
            )
        return NEEDS_GPU

    def __getattr__(self, name: str) -> Any:
        """Only for what this kind of lab lacks. Jupyter asks for many names that no kind has."""
        if name in ELSEWHERE:
            raise NotHere(f"{self.lab.name} has {_listed(self.steps)}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    # ---- the grade

    def check(self, cluster: str | None = None, key: str | Path | None = None) -> None:
        """Grade your submission by measurement; takes about a minute, or a few. The report is also saved in the folder.

        cluster: the address of a pool that grades it in place of this machine, "tls://HOST:PORT"; key: the file with your
        key to it, where it does not lie at its usual place (see `grader.classroom.client.key_file`)."""
        self._noteworthy = False  # until it has come to a result
        self._work(lambda progress: self._checked(progress, cluster, key), GOES_ON)

    def _checked(self, progress: Progress, cluster: str | None, key: str | Path | None) -> Note:
        submission = self._submission()
        if cluster is not None:
            self.result = grade_at(cluster, submission, self.lab, key=key, quick=self.quick, progress=progress)
        else:
            # unconfined: the learner's own code, which their kernel runs as well; a mark is given elsewhere
            self.result = grade(
                submission, self.lab, device=self.device, quick=self.quick, allow_unconfined=True, progress=progress
            )
        before = attempts.last_report(self._folder, self.lab.name)
        saved = attempts.save(self._folder, self.lab, self.result)
        self._noteworthy = not self.result.disturbed
        tried = attempts.read(attempts.file_of(self._folder, self.lab.name))
        said = [attempts.changes(before, self.result) if before else "", attempts.rung(tried)]
        return ReportNote(self.result, [*filter(None, said)], [saved])

    def report(self) -> None:
        """Show the last report again: of the last `check()`, after a restart of the kernel of the last that was saved."""
        if result := self._last():
            ReportNote(result, [], [] if self.result else [f"From the report of {result.date}."]).show()

    def _last(self) -> Result | None:
        """The last result, also of another kernel; where there is none, that is shown."""
        result = self.result or attempts.last_report(self._folder, self.lab.name)
        if result is None:
            Note("Not checked yet", ["Run lab.check() first."]).show()
        return result

    def log(self, note: str | None = None) -> None:
        """Put a note to the last `lab.check()`, and show all that were made so far. `grader board` has them as a page."""
        try:
            if note is not None:
                if not self._noteworthy:
                    raise UserError("The last lab.check() came to no result: there is nothing to note.")
                attempts.note(self._folder, self.lab.name, str(note))
            tried = attempts.read(attempts.file_of(self._folder, self.lab.name))
            if not tried:
                raise UserError("There is nothing to show yet: run lab.check() first.")
        except (UserError, OSError) as error:
            Note("That does not work yet", [str(error)]).show()
            return
        rows = [board.cells(number, attempt) for number, attempt in enumerate(tried, 1)][-attempts.SHOWN :]
        Note("What you tried", [], [[Head(board.HEAD), *rows]], board.ladder_image(tried)).show()

    def share(self) -> None:
        """Save the last grade as a picture to show to others, and show it. It says what was reached and where, and nothing of how."""
        if not (result := self._last()):
            return
        path = self._folder / f"share-{self.lab.name}.png"
        try:
            said = share.save(result, path)
        except (UserError, OSError) as error:
            Note("That does not work yet", [str(error)]).show()
            return
        data = base64.b64encode(path.read_bytes()).decode()
        picture = (
            f'<img class="sp-picture" style="min-width: 0" src="data:image/png;base64,{data}" alt="{to_html(said)}">'
        )
        Note("", [], picture=picture, after=[f"Saved as {path.name} in this folder. {said}"]).show()

    def grade(self, name: str = "") -> float:
        """Show one check's verdict of the last `check()`, after a restart of the kernel of the last that was saved; its points.

        What this machine cannot measure is no number: nbgrader's *Validate* calls every cell failed that has not all points."""
        if not (result := self._last()):
            return 0
        found = next((c for c in result.checks if c.name == name), None)
        if found is None:
            names = ", ".join(c.name for c in result.checks)
            title = f"There is no check {name!r}" if name else "Which check?"
            Note(title, [f"The last lab.check() has: {names}."]).show()
            return 0
        page, line = report.row_html(found), report.row_text(found)
        if self.result is None:
            saved = f"From the report of {result.date}: this kernel has not checked anything yet."
            page, line = f'{page}<p class="sp-note">{to_html(saved)}</p>', f"{line}\n{saved}"
        Note("", page=web_page.paper(page), line=line).show()
        return NotMeasured() if found.status == NOT_MEASURED else found.points

    # ---- machinery

    def _submission(self) -> Submission:
        if self._recorder is None:
            raise UserError("This is no notebook. On the command line: grader grade LAB NOTEBOOK.ipynb.")
        cells = self._recorder.cells
        if not any(is_submission(cell) for cell in cells):
            name, shown = asked_for(self.lab.starter)
            if any(is_misplaced(cell) for cell in cells):
                raise UserError(f"{NOT_FIRST} Run it again, then this one.")
            if any(name in defined(cell) for cell in cells):
                raise UserError(
                    f"The cell that defines {shown} no longer begins with %%submission: put the line back, run the cell, then this one."
                )
            raise UserError("No %%submission cell has been run since this kernel started: run it, then this one.")
        return from_cells(cells, "This notebook")

    def _on_cores(self) -> contextlib.AbstractContextManager[None]:
        return machine.kept_on(self._cores, machine.ASKED) if self._cores else own_cores(self.lab, self.device)

    def _save_trace(self, name: str, data: bytes) -> Note:
        """Write a trace into this folder for another viewer, whole or not at all, and say so."""
        try:
            write_bytes(self._folder / name, data)
        except OSError as error:
            return Note("Not saved", [f"The trace is not kept: {attempts.unwritten(error)}"])
        return Note("Saved", [f"{name} is in this folder. Open it at https://ui.perfetto.dev."])

    def _work(self, work: Callable[[Progress], Note], meanwhile: str = "") -> None:
        """Do what takes a while, its progress shown, then its note in the same place. meanwhile: a sentence below the progress."""
        output = Output()
        bar = ProgressBar(output, meanwhile)
        with self._on_cores(), _stopped_once():
            try:
                try:
                    note = work(bar)
                finally:
                    bar.close()
            except UserError as error:
                note = Note("That does not work yet", [str(error)])
            except RuntimeError as error:
                if type(error) is not RuntimeError:
                    raise
                note = Note("This machine cannot do that", [str(error)])  # no confinement, no fork server
            except KeyboardInterrupt:
                # a stop while a child is being started leaves one that nobody holds, and a reply that nobody reads
                fork_server().kill()
                fork_server()  # imports torch again, for the next look
                output.show("", "")  # said once, by what follows
                raise UserError("Stopped. Nothing was scored.") from None  # an error, so that "Run All" stops here too
            note.show(output)


def asked_for(starter: str) -> tuple[str, str]:
    """What a lab's cell defines at its end, which is what is asked for: its name, and with its arguments."""
    last = ast.parse(starter).body[-1]
    if isinstance(last, ast.FunctionDef):
        return last.name, f"{last.name}({', '.join(argument.arg for argument in last.args.args)})"
    (name,) = defined(ast.unparse(last))
    return name, name


def _listed(steps: tuple[Row, ...]) -> str:
    """The calls of a lab's card: "lab.compare(...) and lab.check()"."""
    calls = [call for row in steps for call in re.findall(r"lab\.\w+(?:\(.*?\))?", row[0])]
    *others, last = [re.sub(r"\(.+\)", "(...)", call) for call in calls]
    return f"{', '.join(others)} and {last}"


@contextlib.contextmanager
def _stopped_once() -> Iterator[None]:
    """Within, only the first stop (Ctrl-C, the button) interrupts: impatience must not cut the clearing up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
