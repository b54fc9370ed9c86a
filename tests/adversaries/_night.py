"""What a night makes of the corpus: its parts, and what they amount to. `grader.nightly` is handed this (see `Corpus` there)."""

from pathlib import Path

from grader import labs
from grader.classroom.submissions import Call, Job
from grader.labs.lab import AnyLab, Lab
from grader.nightly import parts as kinds
from grader.nightly.parts import Outcome, Part
from grader.result import Result, write_json
from grader.submission import Submission
from grader.version import definition
from tests import adversaries
from tests.adversaries import _run as run

REPOSITORY = Path(__file__).resolve().parents[2]
STATUS = {"PROFITS": kinds.FAILED, "BROKEN": kinds.FAILED, "LOST": kinds.FAILED, run.UNDECIDED: kinds.UNDECIDED}
# of an adversary whose control has this status
WITHOUT_CONTROL = {
    kinds.FAILED: (kinds.FAILED, "its control could not be graded"),
    kinds.UNDECIDED: (kinds.UNDECIDED, "its control is undecided"),
}


def parts(lab: AnyLab, device: str, number: int, count: int) -> list[Part]:
    """The number-th of `count` shares of the adversaries that fit the lab, with the honest work beside them."""
    if not isinstance(lab, Lab) or device not in lab.forms or not lab.measures(lab.throughput, device):
        return []
    fitting = [each for each in adversaries.corpus() if lab.name in each.labs and device in each.devices]
    fitting = fitting[number - 1 :: count]
    # notebooks that were tampered with have most of their work in common: one task for all of them, and first, for it is long
    notebooks = [each for each in fitting if each.tamper]
    notebook = REPOSITORY / "solutions" / lab.name / f"{lab.name}.ipynb"
    content = definition(lab.name) + notebook.read_text(encoding="utf-8")
    arguments = {"lab": lab.name, "device": device, "names": [each.name for each in notebooks]}
    task = Call(lab.name, f"{run.__name__}:tampered", arguments, content, device)

    def graded(source: str) -> Job:
        return Job(lab.name, Submission(source), device, plan=run.plan_of(lab, device))

    controls = {name: adversaries.CONTROLS[name](lab.name) for name in adversaries.beside(fitting)}
    made = [(each.name, each.control, task) for each in notebooks]
    made += [(name, name, graded(source)) for name, source in controls.items()]
    made += [(each.name, each.control, graded(each.source(lab.name))) for each in fitting if each.source]
    return [Part("adversary", lab.name, name, task, control=control) for name, control, task in made]


def judge(outcomes: list[Outcome], folder: Path, device: str) -> list[str]:
    """Set the status of each adversary and control, and keep in `folder` what is compared, as `python -m tests.adversaries`
    does; the tables. Of several runs the least of an adversary's points count, against the most of its control's."""
    corpus = {each.name: each for each in adversaries.corpus()}
    tables = []
    for lab in dict.fromkeys(each.part.subject for each in outcomes):
        here = {each.part.what: each for each in outcomes if each.part.subject == lab}
        for each in here.values():
            each.repeats = [_seen(result) for result in each.repeats]
        for each in here.values():
            _keep(each, here.get(each.part.control), folder / lab)
        some = [corpus[name] for name in here if name in corpus]
        rows = run.rows(folder / lab, some, labs.get(lab), device)
        for row in rows:
            if (each := here.get(row.name)) and each.status not in (kinds.FAILED, kinds.MISSING, kinds.SKIPPED):
                _set_status(each, here.get(each.part.control), row)
        tables.append(run.table(f"{lab} on {device}", rows))
    return tables


def _seen(result: dict) -> dict:
    """What is kept of a grade; nbgrader's marks of a notebook that was tampered with as they are, without their seconds."""
    if "checks" in result:
        return run.seen(Result.from_dict(result))
    return {name: value for name, value in result.items() if name != "seconds"}


def _keep(each: Outcome, control: Outcome | None, folder: Path) -> None:
    path = run.path_of(folder, each.part.what)
    if not each.repeats:  # what an earlier record said counts no more
        path.unlink(missing_ok=True)
        return
    best = run.most if each.part.what == "solution" else run.least  # what speaks for the grader
    kept = best(*each.repeats) | {"tries": each.runs}
    if control and control is not each and control.repeats:
        kept["control"] = run.most(*control.repeats)
    each.points = kept["points"]
    each.values = {"points": each.points}
    write_json(path, kept)


def _set_status(each: Outcome, control: Outcome | None, row: run.Row) -> None:
    verdict = row.verdict.partition(":")[0]
    if row.verdict == "not graded":
        missing = (kinds.MISSING, "its control is missing")
        each.status, each.why = WITHOUT_CONTROL.get(control.status, missing) if control else missing
    elif verdict in STATUS:
        why = row.reason if verdict == run.UNDECIDED else f"{row.verdict}: {row.reason}"
        each.status, each.why = STATUS[verdict], why
