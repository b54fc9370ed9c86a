"""Whether the cause that a lab's prediction asks for is the one that the trace of its untouched loop shows: the loop is profiled as
`lab.profile()` does it, the trace is diagnosed as `grader diagnose` does it.

    python -m tests.benchmarks.causes [--device cuda] [--labs LAB,LAB] [--out data/measured/nvidia-h200/causes.md]

Prints a row a lab, and at the end the table. Exits with 1 where a lab asks for another cause."""

import argparse
from pathlib import Path

from grader import labs, look, machine, trace
from grader.errors import UserError
from grader.grading.forms import missing_packages, too_few_devices
from grader.labs.lab import Lab
from grader.result import write_text
from grader.submission import Submission

HEAD = "| lab | it asks for | the trace shows | how sure | next | ms a step | of it the GPU idle |\n|---|---|---|---|---|---|---|"


def analysed(lab: Lab, device: str) -> trace.Analysis:
    """Raises UserError where the loop or its trace failed."""
    seen = look.profile(Submission(lab.starter), lab, device=device)
    if not seen or seen.message or not seen.recorded:
        raise UserError(seen.message if seen else "it has no form for this device")
    return trace.analyse(seen.recorded, step_ns=seen.step_s * 1e9)


def row(lab: Lab, found: trace.Analysis) -> str:
    d = found.diagnosis
    step, idle = found.step_ns or 0, sum(ns for part, ns in found.breakdown.items() if part.startswith("idle_"))
    cells = (
        lab.name,
        lab.cause,
        d.cause or d.text,
        f"{d.confidence:.0%}",
        d.runner_up or "",
        f"{step / 1e6:.1f}",
        f"{idle / step:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--labs", default=",".join(labs.NAMES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, others = [], []
    for lab in map(labs.get, options.labs.split(",")):
        if not isinstance(lab, Lab) or options.device not in lab.forms or too_few_devices(lab, options.device):
            continue
        if missing := missing_packages(lab):
            print(f"{lab.name}: {missing}")
            continue
        try:
            found = analysed(lab, options.device)
        except (UserError, OSError) as error:  # a lab that fails here must not hide the others
            rows.append(f"| {lab.name} | {lab.cause} | not measured: {str(error).splitlines()[0][:100]} | | | | |")
        else:
            rows.append(row(lab, found))
            if found.diagnosis.cause != lab.cause:
                others.append(lab.name)
        print(rows[-1], flush=True)
    facts = machine.facts()
    where = f"{facts['gpu'] or facts['cpu']}, {facts['cores']} cores, torch {machine.versions()['torch']}"
    table = (
        f"# What the untouched loops are bound by\n\n{where}; `python -m tests.benchmarks.causes`.\n\n{HEAD}\n"
        + "\n".join(rows)
    )
    print(table)
    if others:
        print(f"asks for another cause than its trace shows: {', '.join(others)}")
    if options.out:
        write_text(options.out, table + "\n")
    return bool(others)


if __name__ == "__main__":
    raise SystemExit(main())
