"""The command `grader`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from grader import labs, paths
from grader.course import working_copy
from grader.errors import UserError
from grader.frontends import classroom, nightly
from grader.labs.lab import AnyLab, Lab
from grader.safe_text import cores_text
from grader.submission import Cell

DEMO = ("2a_workers", "3a_precision")  # the labs that `grader demo` shows


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 the machine cannot do it, 2 unusable input, 3 an incomplete trace
    or a slower night, 4 an unfinished one, 130 stopped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows a "?" for a line or a tick
    options = _parser().parse_args(arguments)
    try:
        with _on_cores(options):
            status = options.run(options) or 0
        sys.stdout.flush()  # here, where it is known what to do about a reader who has gone
        return status
    except UserError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = getattr(options, "kept", "nothing unfinished was kept")
        print(f"\ngrader: stopped; {kept}.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; what was to be written is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"grader: {where}{error.strerror or error or type(error).__name__}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 1


def _on_cores(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """On those that the options ask for."""
    if (asked := getattr(options, "cores", None)) is None:
        return contextlib.nullcontext()
    from grader import machine

    return machine.kept_on(machine.asked_cores(asked), machine.ASKED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grader", description="Is it really faster? Grades PyTorch training loops.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        return sub

    def common(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if there is one"
        )
        classroom.add_cores(sub)

    def lab_of(sub: argparse.ArgumentParser, nargs: str | None = None, default_is: str = "") -> None:
        default = f" (default: {default_is})" if default_is else ""
        sub.add_argument("lab", type=labs.full, nargs=nargs, help=f"its name or its number: 2a_workers, 2a{default}")

    sub = command("labs", _labs, "list the labs")
    sub.add_argument("--json", action="store_true", help="as JSON")
    sub = command("start", _start, "make a working copy of a lab under work/")
    lab_of(sub)
    sub = command("grade", _grade, "grade the submission in a notebook")
    sub.epilog = "Exit status: 0 for a report, whatever it says, 1 where this machine cannot grade, 2 for unusable input, 130 stopped."
    lab_of(sub)
    sub.add_argument("notebook", type=Path)
    sub.add_argument("--json", metavar="FILE", help="write the result as JSON; - prints it, and only it")
    sub.add_argument("--html", metavar="FILE", help="write the report as a page")
    sub.add_argument(
        "--quick", action="store_true", help="fewer and shorter measurements: for trying out, not for marks"
    )
    sub.add_argument(
        "--allow-unconfined",
        action="store_true",
        help="grade where file access cannot be confined: for code that you trust",
    )
    sub.add_argument("--cluster", metavar="ADDRESS", help="have a pool grade it: tls://HOST:PORT")
    sub.add_argument("--key", type=Path, metavar="FILE", help="your key to that pool")
    common(sub)
    sub = command("hint", _hint, "show a hint to one check of a lab")
    lab_of(sub)
    sub.add_argument("check", nargs="?", help="its name, as the report's last line of a hint says it")
    sub.add_argument(
        "--depth", type=int, choices=(1, 2, 3), default=1, help="1: a nudge; 2: where to look; 3: what to do"
    )
    sub = command("diagnose", _diagnose, "say what holds a training loop back, from its torch.profiler trace")
    sub.epilog = "Exit status: 0, 3 for an incomplete trace, 2 for a file that is no trace."
    sub.add_argument("trace", help="a .json or .json.gz that torch.profiler wrote")
    sub.add_argument("other", nargs="?", help="a second one, to compare with: the same loop after a change")
    sub.add_argument(
        "--step-ms",
        metavar="X",
        action="append",
        default=[],
        help="length of a step measured without the profiler, ms; give it twice for two traces",
    )
    sub.add_argument("--json", metavar="FILE", help="write everything as JSON; - prints it, and only it")
    sub.add_argument("--html", metavar="FILE", help="write a page with pictures")
    sub.add_argument("--top", metavar="N", help="operations to look into (default: 10; on the screen what fits)")
    sub = command("compare", _compare, "measure whether one training loop of yours is faster than another")
    sub.epilog = "BEFORE and AFTER define train(job), JOB defines make_job(seed, device): see notebooks/4_models/1_own_loop.ipynb. Exit status: 0 measured, 1 not, 2 for files that cannot be read or loaded."
    sub.add_argument("before", type=Path, help="a Python file with train(job)")
    sub.add_argument("after", type=Path, help="the same after a change")
    sub.add_argument(
        "--job", type=Path, help="a Python file with make_job(seed, device) (default: job.py beside BEFORE)"
    )
    sub.add_argument(
        "--read",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder that the loops may read, such as their data, or a folder of modules that they import; may be given again",
    )
    sub.add_argument("--quick", action="store_true", help="fewer starts, shorter blocks")
    sub.add_argument("--json", metavar="FILE", help="write everything as JSON; - prints it, and only it")
    sub.add_argument("--html", metavar="FILE", help="write a page with pictures")
    sub.add_argument("--allow-unconfined", action="store_true", help="where file access cannot be confined")
    common(sub)
    sub = command("scaffold", _scaffold, "copy a training script with every knob of the course, which profiles itself")
    sub.add_argument("folder", type=Path, help="where train.py is put; a file that is there stays")
    sub = command("calibrate", _calibrate, "measure what the solutions gain on this machine, and keep it")
    sub.set_defaults(kept="labs that were done are kept, one that was under way is not")
    lab_of(sub, nargs="?", default_is="all that this machine can grade")
    sub.add_argument(
        "--for-class",
        action="store_true",
        help="with as many cores as a worker of `grader class` has here: where there are several, each has its share",
    )
    sub.add_argument(
        "--workers", type=int, default=1, metavar="N", help="of --for-class without GPUs: its workers (default: 1)"
    )
    sub.add_argument(
        "--spread", action="store_true", help="maintainers: how far honest forms end from each other, part of the lab"
    )
    sub.add_argument(
        "--outcome",
        type=int,
        metavar="STEPS",
        help="maintainers: long runs that say where the training leads, part of the lab; goes on where it was stopped",
    )
    sub.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        default=3,
        help="of --spread, and of --outcome: 3 or more there (default: 3); of 5 its band is less than half as wide",
    )
    common(sub)
    command("doctor", _doctor, "say what this machine can grade, and what is missing")
    sub = command("board", _board, "your results so far, by lab and machine: the leaderboard")
    lab_of(sub, nargs="?", default_is="all")
    sub.add_argument("--html", metavar="FILE", help="write it as a page")
    sub.add_argument("--csv", metavar="FILE", help="write a line a grade; - prints it, and only it")
    sub.add_argument("--json", metavar="FILE", help="write all of it as JSON; - prints it, and only it")
    sub.add_argument(
        "--folder",
        type=Path,
        default=paths.REPOSITORY / "work",
        help="where the notebooks are (default: the course's work/)",
    )
    sub = command("demo", _demo, "grade a lab's starter and its solution here, and show both reports")
    sub.add_argument("--out", type=Path, default=Path("reports"), help="folder for the HTML reports (default: reports)")
    common(sub)
    classroom.add_commands(command)
    nightly.add_command(command)
    return parser


class Terminal:
    """Progress on standard error: a bar with time left on a terminal, else a line for each new step."""

    def __init__(self, name: str):
        from tqdm import tqdm

        from grader.frontends.silence import Silence

        self.bar = tqdm(
            total=100, desc=name, bar_format="{desc} {bar} {percentage:3.0f}% {postfix}", leave=False, disable=None
        )
        self.name, self.began, self.last = name, time.monotonic(), ""
        self.silence = Silence(self._explain, "Ctrl+C")

    def __call__(self, share: float, what: str) -> None:
        passed = time.monotonic() - self.began
        left = f", about {passed * (1 - share) / share:.0f} s left" if 0.1 < share < 1 else ""
        self.silence.after("" if share >= 1 else what)
        if self.bar.disable:
            if what != self.last and share < 1:
                print(f"{self.name}: {what}{left}", file=sys.stderr, flush=True)
        else:
            self.bar.n = round(100 * share)
            self.bar.set_postfix_str(what + left)
            if share >= 1:
                self.bar.close()
        self.last = what

    def _explain(self, what: str, meaning: str) -> None:
        self.bar.clear()
        print(f"{self.name}: {meaning}", file=sys.stderr, flush=True)
        self.bar.refresh()


# ---------------------------------------------------------------- commands


def _form_here(lab: AnyLab) -> str | None:
    """The form in which this machine can grade a lab; None for none."""
    from grader.grading.forms import choose_form

    form = choose_form(lab, "auto")
    return form if form in lab.forms else None


def _labs(options: argparse.Namespace) -> None:
    from grader.grading.forms import missing_packages

    rows = []
    for name in labs.NAMES:
        lab = labs.get(name)
        form = _form_here(lab)
        lacks = missing_packages(lab)
        rows.append(
            {
                "name": name,
                "title": lab.title,
                "phase": lab.phase,
                "goal": lab.goal,
                "points": lab.max_score,
                "form_here": form,
                "lacks": lacks,
                "points_here": 0 if lacks else sum(check.points for check in lab.checks if lab.measures(check, form)),
            }
        )
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        here = {
            "traces": "graded from recorded traces",
            "cuda": "graded on the GPU",
            "cpu": "graded in its CPU form",
            None: "needs an NVIDIA GPU",
        }[row["form_here"]]
        if row["lacks"]:
            here = "needs packages that are not installed here: grader doctor says which"
        elif row["form_here"] == "cpu" and not row["points_here"]:
            here = "needs an NVIDIA GPU; on this CPU only the training is compared"
        print(f"{row['name']:<16} {row['title']} ({row['points']:g} points, {here})\n{'':16} {row['goal']}")
    print("\nBegin with: grader start LAB")


def _start(options: argparse.Namespace) -> None:
    there = paths.working_copy(options.lab).exists()
    target = working_copy.start(options.lab)
    print(
        f"{target} is {'there already, as you left it' if there else 'yours to change'}. Open it with: jupyter lab {shlex.quote(str(target))}"
    )


def _hint(options: argparse.Namespace) -> None:
    lab = labs.get(options.lab)
    hints = {check.name: check.hints for check in lab.checks if hasattr(check, "hints")}
    if options.check is None:
        raise UserError(f"To which check of {lab.name}? It has hints for: {', '.join(hints)}.")
    if options.check not in hints:
        raise UserError(f"{lab.name} has no hints for {options.check!r}. It has them for: {', '.join(hints)}.")
    print(hints[options.check][options.depth - 1])
    if options.depth < 3:
        print(f"More: grader hint {lab.name} {options.check} --depth {options.depth + 1}")


def _grade(options: argparse.Namespace) -> None:
    from grader.classroom.client import grade_at
    from grader.frontends import board, notebook, report
    from grader.frontends.diagnose import check_targets
    from grader.grade import grade
    from grader.grading.forms import choose_form, own_cores
    from grader.result import write_json
    from grader.sandbox.parent import fork_server
    from grader.submission import code_cells, from_cells, load_notebook

    if labs.full(str(options.notebook)) in labs.NAMES and options.lab.endswith(".ipynb"):
        raise UserError(f"The lab comes first: grader grade {options.notebook} {options.lab}")
    lab = labs.get(options.lab)
    cells = code_cells(load_notebook(options.notebook), str(options.notebook))
    submission = from_cells(cells, str(options.notebook))
    others = _labs_of(cells)
    if others and lab.name not in others:
        raise UserError(
            f"{options.notebook} is a notebook of {others[0]}, not of {lab.name}: it calls grader.lab({others[0]!r})."
        )
    check_targets(options)
    if options.cluster and options.cores is not None:
        raise UserError("--cores is for a grade on this machine; a pool's machines have theirs.")
    if options.cluster:
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
            allow_unconfined=options.allow_unconfined,
            progress=Terminal(lab.name),
        )
    folder, saved = options.notebook.resolve().parent, ""
    if folder == paths.working_copy(lab.name).parent.resolve():  # the learner's own: as lab.check() does there
        saved = board.save(folder, lab, result)
    if options.html:
        report.write_html(result, options.html)
    if options.json == "-":
        print(json.dumps(result.to_dict(), indent=1))
    else:
        if options.json:
            write_json(options.json, result.to_dict())
        print(report.text(result, width=min(100, shutil.get_terminal_size().columns), colour=sys.stdout.isatty()))
        other = notebook.passed_over(folder, lab.name, submission) if isinstance(lab, Lab) else ""
        for line in filter(None, (other, saved)):
            print(line)


def _labs_of(cells: list[Cell]) -> list[str]:
    """The labs that a notebook opens: the literal in each `grader.lab("...")`."""
    named = [name for cell in cells for name in re.findall(r"""\bgrader\.lab\(\s*["'](\w+)["']""", cell.source)]
    return [name for name in named if name in labs.NAMES]


def _diagnose(options: argparse.Namespace) -> int:
    from grader.frontends import diagnose

    return diagnose.run(options)


def _compare(options: argparse.Namespace) -> int:
    from grader import machine
    from grader.frontends import compare
    from grader.grading.forms import choose_device

    with machine.own_cores(int(choose_device(options.device) == "cuda")):
        return compare.run(options)


def _scaffold(options: argparse.Namespace) -> None:
    from grader.result import write_text

    target = options.folder / "train.py"
    if target.exists():
        raise UserError(f"{target} is there already, and stays as it is. Name another folder.")
    write_text(target, (paths.REPOSITORY / "grader" / "scaffold" / "train.py").read_text(encoding="utf-8"))
    print(
        f"{target} is yours to change. Its knobs are at its top, what it trains at its end; each run leaves a folder under runs/."
    )


def _calibrate(options: argparse.Namespace) -> None:
    from grader.grading.forms import own_cores

    chosen = [labs.get(options.lab)] if options.lab else [labs.get(name) for name in labs.NAMES]
    chosen = [lab for lab in chosen if isinstance(lab, Lab)]
    if not chosen:
        raise UserError(f"{options.lab} has no gain to calibrate: it is about measuring, not about a faster loop.")
    failed = []
    with _as_a_worker(options) if options.for_class else contextlib.nullcontext():
        for lab in chosen:
            try:
                with own_cores(lab, options.device):
                    _calibrate_lab(lab, options)
            except UserError as error:
                if options.lab:
                    raise
                print(f"{lab.name}: {error}")
                failed.append(lab.name)
    if failed:
        raise UserError(
            f"Not calibrated: {', '.join(failed)}. The others are kept; go on with `grader calibrate {failed[0]}`."
        )


def _as_a_worker(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Give this process the GPU and the cores of a worker of `grader class`: a gain holds for a number of cores."""
    from grader import machine
    from grader.classroom import pool, worker

    gpus = getattr(labs.get(options.lab).forms.get("cuda"), "ranks", 1) if options.lab else 1
    environment = pool.environments(options.device, cpu_workers=max(1, options.workers), gpus_each=gpus)[0]
    cores = environment.pop(worker.CORES)
    os.environ.update(environment)
    print(f"measured as by a worker of `grader class`: on cores {cores}", file=sys.stderr)
    return machine.kept_on(machine.parse(cores), "those of a worker of `grader class`")


def _calibrate_lab(lab: Lab, options: argparse.Namespace) -> None:
    """What the options ask for, of one lab; of one among all of them only where there is something to measure."""
    from grader import calibrate
    from grader.grading.forms import choose_form
    from grader.measure import calibration

    form = choose_form(lab, options.device)
    if form not in lab.forms and not options.lab:
        print(f"{lab.name}: needs an NVIDIA GPU, left out")
    elif options.outcome is not None:
        if lab.outcome or options.lab:
            for line in calibrate.measure_outcome(
                lab, options.device, options.outcome, options.seeds, Terminal(lab.name)
            ):
                print(f"{lab.name}: {line}")
    elif options.spread:
        spread = calibrate.measure_spread(lab, options.device, options.seeds, progress=Terminal(lab.name))
        print(f"{lab.name}: spread written to {calibrate.store_spread(lab, form, spread)}")
    elif not calibrate.calibrated(lab, form) and not options.lab:
        print(f"{lab.name}: nothing to calibrate here")
    else:
        entry = calibrate.measure_gain(lab, options.device, Terminal(lab.name))
        path = calibration.store_gain(lab, form, entry)
        low, high = entry["interval"]
        print(f"{lab.name}: the solution gains {entry['gain']:.2f}x here ({low:.2f} to {high:.2f}); kept in {path}")


def _doctor(options: argparse.Namespace) -> int:
    from grader import calibrate, machine
    from grader.data.cache import cache_dir
    from grader.grading.forms import missing_packages, too_little_memory
    from grader.measure import calibration
    from grader.sandbox.probe import confinement

    facts, versions, confined = machine.facts(), machine.versions(), confinement()
    own, why = machine.share(int(machine.has_gpu()))
    of_a_grade = "" if why == "all" else f"; a grade has {len(own)} ({machine.written(own)}: {why})"
    print(f"processor    {facts['cpu']}, {cores_text(facts['cores'])}{of_a_grade}")
    print(f"GPU          {facts['gpu'] or 'none: labs run in their CPU form, or say NOT MEASURED'}")
    print(f"versions     {', '.join(f'{k} {v}' for k, v in versions.items())}")
    print(
        f"confinement  what a confined process could not get through, tried just now (Landlock ABI {confined.landlock}):"
    )
    for line in confined.lines():
        print(f"  {line}")
    if not confined.files:
        print("  Without confined files no marks are given here, unless you say --allow-unconfined.")
    print(f"data         {cache_dir()} ({shutil.disk_usage(cache_dir()).free / 1e9:.0f} GB free)")
    compiler = shutil.which("gcc") or shutil.which("cc") or "none found: torch.compile will not work"
    print(f"C compiler   {compiler}")
    state = machine.gpu_state()
    if state:
        busy = "in use by another program" if state.utilisation >= machine.BUSY_PERCENT else "free"
        print(f"GPU now      {busy}, {state.free_bytes / 1e9:.0f} GB free{', throttling' if state.throttling else ''}")
    print()
    uncalibrated = False
    for name in labs.NAMES:
        lab = labs.get(name)
        form = _form_here(lab)
        if form is None:
            print(f"{name:<16} not here: needs an NVIDIA GPU")
            continue
        if lacks := missing_packages(lab) or too_little_memory(lab, form):
            print(f"{name:<16} not here: {lacks}")
            continue
        points = sum(c.points for c in lab.checks if lab.measures(c, form))
        known = ""
        if isinstance(lab, Lab) and calibrate.calibrated(lab, form):
            gain, source = calibration.reference_gain(lab, form)
            known = f"; solution gains {gain:.1f}x ({source})" if gain else "; not calibrated"
            uncalibrated |= not gain
        print(f"{name:<16} {points:g} of {lab.max_score:g} points can be measured{known}")
    if uncalibrated:
        print(
            "\nnot calibrated: full points need the gain that the lab names, whatever this machine could reach."
            "\n`grader calibrate LAB` measures what it can; for the marks of a class, with --for-class."
        )
    return 0 if confined.files else 1


def _board(options: argparse.Namespace) -> None:
    from grader.frontends import board
    from grader.result import check_writable, write_text

    if options.lab:
        labs.get(options.lab)
    attempts = board.collect(options.folder, options.lab)
    ways = {
        options.html: board.page,
        options.csv: board.as_csv,
        options.json: lambda rows: json.dumps(rows, indent=1, ensure_ascii=False) + "\n",
    }
    ways.pop(None, None)
    for target in ways:
        if target != "-":
            check_writable(target)
    for target, made in ways.items():
        if target == "-":
            sys.stdout.write(made(attempts))
        else:
            write_text(target, made(attempts))
    if "-" not in ways:
        print(board.text(attempts))


def _demo(options: argparse.Namespace) -> None:
    from grader.calibrate import solution
    from grader.frontends import report
    from grader.grade import grade
    from grader.grading.forms import choose_form, own_cores
    from grader.result import check_writable
    from grader.sandbox.parent import fork_server
    from grader.submission import read_notebook

    with contextlib.suppress(OSError):  # said by the next line
        options.out.mkdir(parents=True, exist_ok=True)
    check_writable(str(options.out / "report.html"))
    with own_cores(labs.get(DEMO[0]), options.device):
        fork_server()
    written = []
    for name in DEMO:
        lab = labs.get(name)
        if not isinstance(lab, Lab) or choose_form(lab, options.device) not in lab.forms:
            continue
        untouched = read_notebook(paths.REPOSITORY / "labs" / name / f"{name}.ipynb")
        for what, submission in (("starter", untouched), ("solution", solution(lab))):
            result = grade(
                submission, lab, device=options.device, allow_unconfined=True, progress=Terminal(f"{name}, {what}")
            )
            print(f"\n===== {name}: the {what} =====\n")
            print(report.text(result, colour=sys.stdout.isatty()))
            path = options.out / f"{name}-{what}.html"
            report.write_html(result, path)
            written.append(path)
    print("\nThe reports as pages:")
    for path in written:
        print(f"  {path.resolve()}")
    print("\nNext: `make lab` opens the course in JupyterLab; with conda, `jupyter lab notebooks/00_start_here.ipynb`.")


if __name__ == "__main__":
    sys.exit(main())
