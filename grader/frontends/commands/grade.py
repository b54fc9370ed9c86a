"""`grader grade` and `grader demo`: a submission's report in the terminal, as JSON and as a page."""

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

from grader import labs, paths
from grader.classroom.client import grade_at
from grader.errors import UserError
from grader.frontends import attempts, report
from grader.frontends.delivery import check_targets, deliver
from grader.frontends.notebook.prediction import other_than_submitted
from grader.frontends.options import add_device, add_json, add_lab, add_size, add_unconfined
from grader.frontends.terminal import Terminal
from grader.grade import grade
from grader.grading.forms import choose_form, own_cores
from grader.labs.lab import Lab
from grader.progress import coloured
from grader.result import made_writable
from grader.sandbox.fork_server import fork_server
from grader.submission import Submission, code_cells, from_cells, load_notebook, read_notebook, solution

# The labs that `grader demo` shows, and the gains to predict: the solutions in a wheel hold no prediction. On a CPU 2a's
# eight workers wait for the drive at the same time.
DEMO = {"2a_workers": {"cuda": 10, "cpu": 8}, "3a_precision": {"cuda": 6}}


def add_grade(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(run=run_grade)
    parser.epilog = "Exit status: 0 for a report, whatever its points. 1 if this machine can't grade. 2 for unusable input. 130 if you stopped it."
    add_lab(parser)
    add("notebook", type=Path)
    add_json(parser, "the result")
    add("--html", metavar="FILE", help="write the report as an HTML page")
    add("--quick", action="store_true", help="take fewer and shorter measurements. For trying out, not for marks")
    add_unconfined(parser)
    add("--cluster", metavar="ADDRESS", help="let a pool grade it, at tls://HOST:PORT")
    add("--key", type=Path, metavar="FILE", help="your key for that pool")
    add_size(parser)
    add_device(parser)


def add_demo(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_demo)
    words = "folder for the HTML reports (default: reports)"
    parser.add_argument("--out", type=Path, default=Path("reports"), help=words)
    add_device(parser)


def run_grade(options: argparse.Namespace) -> None:
    if labs.full(str(options.notebook)) in labs.NAMES and options.lab.endswith(".ipynb"):
        raise UserError(f"The lab comes first. Use: grader grade {options.notebook} {options.lab}")
    lab = labs.get(options.lab).sized(options.form)
    cells = code_cells(load_notebook(options.notebook), str(options.notebook))
    submission = from_cells(cells, str(options.notebook))
    others = _labs_of(cells)
    if others and lab.name not in others:
        raise UserError(
            f"{options.notebook} is a notebook of {others[0]}, not of {lab.name}. It calls grader.lab({others[0]!r})."
        )
    check_targets(options)
    folder = options.notebook.resolve().parent
    own = folder == paths.working_copy(lab.name).parent.resolve()  # the learner's: as lab.check() does there
    if options.cluster:
        if options.cores is not None:
            raise UserError("--cores is for a grade on this machine. Leave it out with --cluster.")
        result = grade_at(
            options.cluster, submission, lab, key=options.key, quick=options.quick, progress=Terminal(lab.name)
        )
    else:
        if lab.runs_code and choose_form(lab, options.device) in lab.forms:
            with own_cores(lab, options.device):
                fork_server()
        result = grade(
            submission,
            lab,
            device=options.device,
            quick=options.quick,
            allow_unconfined=options.allow_unconfined or own,
            progress=Terminal(lab.name),
        )
    saved = attempts.save(folder, lab, result) if own else ""
    other = other_than_submitted(folder, lab.name, submission) if isinstance(lab, Lab) else ""
    deliver(
        options,
        page=lambda: report.html(result, standalone=True),
        data=result.to_dict,
        text=lambda width, colour: "\n".join(filter(None, (report.text(result, width, colour), other, saved))),
    )


def _labs_of(cells: list[str]) -> list[str]:
    """The labs that a notebook opens: the literal in each `grader.lab("...")`."""
    named = [name for cell in cells for name in re.findall(r"""\bgrader\.lab\(\s*["'](\w+)["']""", cell)]
    return [name for name in named if name in labs.NAMES]


def demonstrated(lab: Lab, form: str) -> list[tuple[str, Submission]]:
    """The untouched notebook, and the solution with a prediction for the device that grades."""
    untouched = read_notebook(paths.course() / "labs" / lab.name / f"{lab.name}.ipynb")
    said = (("cause", lab.cause), ("device", form), ("gain", DEMO[lab.name][form]))
    return [("starter", untouched), ("solution", replace(solution(lab), prediction=said))]


def run_demo(options: argparse.Namespace) -> None:
    made_writable(options.out)
    with own_cores(labs.get(next(iter(DEMO))), options.device):
        fork_server()
    written = []
    for name in DEMO:
        lab = labs.get(name)
        form = choose_form(lab, options.device)
        if not isinstance(lab, Lab) or form not in lab.forms:
            continue
        for what, submission in demonstrated(lab, form):
            result = grade(
                submission, lab, device=options.device, allow_unconfined=True, progress=Terminal(f"{name}, {what}")
            )
            print(f"\n===== {name}: the {what} =====\n")
            print(report.text(result, colour=coloured(sys.stdout)))
            path = options.out / f"{name}-{what}.html"
            report.write_html(result, path)
            written.append(path)
    print("\nThe reports as pages:")
    for path in written:
        print(f"  {path.resolve()}")
    if paths.installed():
        print("\nNext, lay the course down in a folder of yours with `grader course FOLDER`.")
    else:
        print(
            "\nNext, open the course in JupyterLab with `make lab`. With conda, use `jupyter lab notebooks/00_start_here.ipynb`."
        )
