"""The GPU forms of each lab by what they need and what they gain: the table by which a calculated form becomes a measured one.

    python -m tests.benchmarks.forms --form all --out work/forms [--labs ...] [--parts solution,starter,half] [--full]
                                     [--free 7 | --pretend 7.5,16GiB] [--minutes 28]

--form: "small", "mid", "full" (the largest), "all" (without the largest) or "fits" (of every lab the largest that fits). Solutions come first, each followed by the most memory that all
programs held meanwhile; then the untouched loops, then the first half fix of each. --free leaves so many GiB of the GPU to them, as other
programs would. --pretend has the loops see another GPU, with the course's loops in fp16 where it has no bf16. Grades are quick ones
unless --full is said. What was measured lies in --out, a file a grade, and is not made again; README.md there has the table.

Exits with 1 where a solution lost points that can be measured, an untouched loop has more than a tenth of its points, a half fix is not
between them, a gain is below exp(8 x noise), or a grade needed more memory than its form declares."""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader import labs, machine
from grader.devices import PRETEND
from grader.errors import UserError
from grader.grade import grade
from grader.grading.forms import missing_packages, prepared, too_few_devices
from grader.grading.half import in_fp16
from grader.labs.lab import Lab
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, Result, write_json, write_text
from grader.submission import Submission
from tests import variants

HEAD = (
    "| lab | form | GB declared | GB seen | untouched | half fix | solution | gain of half | gain of solution | least that counts | seconds "
    "| wrong |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)
PARTS = ("solution", "starter", "half")
ROOM = 1.05  # of the memory that was seen, to declare
HOLDER = """
import sys, torch
held = []
while (more := torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]) * 2**30)) > 1 << 24:
    held.append(torch.empty(min(more, 8 << 30), dtype=torch.uint8, device="cuda"))
print("held", flush=True)
sys.stdin.read()
"""


def chosen(names: list[str], form: str, free: float = math.inf) -> list[Lab]:
    """The labs, each in one form. free: bytes, for "fits"."""
    found = []
    for name in names:
        lab = labs.get(name)
        if not isinstance(lab, Lab):
            raise UserError(f"{name} is no loop to make faster.")
        sizes = [each.size for each in lab.gpu_forms]
        fitting = [each.size for each in lab.gpu_forms if each.gpu_memory <= free]
        wanted = {"all": sizes[1:], "full": [""], "fits": fitting[:1]}.get(form, [form])
        found += [lab.sized(size) for size in wanted if size in sizes]
    return found


def source_of(lab: Lab, part: str) -> str:
    made = {
        "solution": lambda: variants.solution(lab.name),
        "starter": lambda: lab.starter,
        "half": lambda: next(iter(variants.halves(lab.name).values())),
    }[part]()
    return in_fp16(made) if "bf16" in machine.gpu_lacks() else made


@contextlib.contextmanager
def most_held(ranks: int) -> Iterator[list[int]]:
    """Gives a list that holds, at its end, the most bytes that were in use on one of these GPUs, beyond what was before."""

    def used() -> int:
        state = machine.gpu_state(ranks)
        return state.total_bytes - state.free_bytes if state else 0

    before, most, over = used(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            most[0] = max(most[0], used() - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def left_free(gib: float | None) -> Iterator[None]:
    """Other programs hold the rest of the GPU's memory."""
    if gib is None:
        yield
        return
    environment = {name: value for name, value in os.environ.items() if name != PRETEND}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(gib)], stdin=pipe, stdout=pipe, env=environment) as holder:
        assert holder.stdin and holder.stdout
        if holder.stdout.readline() != b"held\n":
            raise UserError("The rest of the GPU's memory could not be held.")
        try:
            yield
        finally:
            holder.stdin.close()


def measured(lab: Lab, part: str, full: bool) -> dict[str, Any]:
    """One grade, and the most memory meanwhile."""
    gain = 1.0 if lab.throughput.healthy else (lab.forms["cuda"].minimum_gain or 1.0)
    submission = Submission(source_of(lab, part), prediction=(("cause", lab.cause), ("gain", gain)))
    with most_held(lab.ranks("cuda")) as most:
        result = grade(submission, lab, device="cuda", quick=not full, allow_unconfined=True)
    return {"result": result.to_dict(), "bytes": most[0]}


def points(result: Result) -> tuple[float, float]:
    """Those that were earned, and could be, beside the prediction's."""
    judged = [check for check in result.checks if check.status != NOT_MEASURED and check.name != "prediction"]
    return sum(check.points for check in judged), sum(check.max_points for check in judged)


def speed(result: Result) -> dict[str, Any]:
    return next((check.evidence for check in result.checks if check.name == "throughput"), {})


def wrong(lab: Lab, found: dict[str, Result], seen: int) -> list[str]:
    """What speaks against the form, in words."""
    said = []
    for part, result in found.items():
        if stopped := result.fatal or result.disturbed:
            said.append(f"{part}: {stopped.splitlines()[0]}")
    if any(result.fatal or result.disturbed for result in found.values()):
        return said
    if "solution" in found:
        lost = [check for check in found["solution"].checks if check.status in (FAIL, INCONCLUSIVE)]
        said += [f"solution, {check.name}: {check.reason}" for check in lost if check.name != "prediction"]
        evidence = speed(found["solution"])
        if not lab.throughput.healthy and evidence.get("gain", 0) < math.exp(8 * evidence.get("noise", 0)):
            said.append("the gain is less than exp(8 x noise)")
    if "starter" in found and not (lab.throughput.healthy or lab.memory):
        had, most = points(found["starter"])
        said += [f"the untouched loop has {had:g} of {most:g} points"] * (had > 0.1 * most)
    if {"starter", "half", "solution"} <= found.keys() and not lab.throughput.healthy:
        none, half, whole = (points(found[part])[0] for part in ("starter", "half", "solution"))
        said += [f"half a fix has {half:g} points"] * (not none < half < whole)
    if seen > lab.forms["cuda"].gpu_memory:
        said.append("it needs more memory than it declares")
    return said


def row(lab: Lab, out: Path) -> tuple[str, list[str]]:
    """The table's row of a lab in one form, and what is wrong with it."""
    records = {part: json.loads(file.read_text()) for part in PARTS if (file := file_of(lab, part, out)).exists()}
    found = {part: Result.from_dict(record["result"]) for part, record in records.items()}
    seen = max((record["bytes"] for record in records.values()), default=0)
    problems = wrong(lab, found, seen)
    shown = {part: "{:g} of {:g}".format(*points(result)) for part, result in found.items()}
    gains = {part: f"{value:.2f}x" for part, result in found.items() if (value := speed(result).get("gain"))}
    noise = speed(found["solution"]).get("noise") if "solution" in found else None
    form = lab.forms["cuda"]
    cells = [
        lab.name,
        form.size or "full",
        f"{form.gpu_memory / 1e9:.1f}",
        f"{seen / 1e9:.2f} (declare {ROOM * seen / 1e9:.1f})" if seen else "",
        *(shown.get(part, "") for part in ("starter", "half", "solution")),
        gains.get("half", ""),
        gains.get("solution", ""),
        f"{math.exp(8 * noise):.2f}x" if noise else "",
        f"{sum(result.seconds for result in found.values()):.0f}",
        "; ".join(problems).replace("|", "/"),
    ]
    return f"| {' | '.join(cells)} |", problems


def file_of(lab: Lab, part: str, out: Path) -> Path:
    return out / f"{lab.name}-{lab.forms['cuda'].size or 'full'}-{part}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", default=",".join(labs.loops()))
    parser.add_argument("--form", default="all")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--full", action="store_true", help="grades as for marks, not quick ones")
    parser.add_argument("--free", type=float, metavar="GIB", help="hold the rest of the GPU's memory")
    parser.add_argument("--pretend", metavar="CAPABILITY,MEMORY", help="as 7.5,16GiB")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no grade after so many")
    options = parser.parse_args()
    if options.pretend and options.free:
        # what is held would count as in use of the pretended GPU
        parser.error("--pretend says how much memory there is: leave --free out")
    if options.pretend:
        os.environ[PRETEND] = options.pretend
    if not machine.has_gpu():
        raise UserError("There is no NVIDIA GPU here.")
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    state = machine.gpu_state()
    free = min(state.free_bytes if state else 0, (options.free or math.inf) * 2**30)
    some = chosen(list(map(labs.full, options.labs.split(","))), options.form, free)
    some = [lab for lab in some if not (too_few_devices(lab, "cuda") or missing_packages(lab))]
    for lab in some:
        prepared(lab.forms["cuda"])  # before the clock runs
    with left_free(options.free):
        for part in options.parts.split(","):
            for lab in some:
                file = file_of(lab, part, options.out)
                if not file.exists() and time.monotonic() < until:
                    write_json(file, measured(lab, part, options.full))
                    print(f"{part}: {row(lab, options.out)[0]}", flush=True)
    rows = [row(lab, options.out) for lab in some]
    facts = machine.facts()
    where = f"{facts['gpu']}, {facts['cores']} cores, torch {machine.versions().get('torch')}"
    free = f", {options.free:g} GiB left free" if options.free else ""
    table = f"# GPU forms by memory\n\n{where}{free}; `python -m tests.benchmarks.forms`, {'full' if options.full else 'quick'} grades.\n\n{HEAD}\n"
    table += "\n".join(line for line, _ in rows)
    write_text(options.out / "README.md", table + "\n")
    print(table)
    return int(any(problems for _, problems in rows))


if __name__ == "__main__":
    raise SystemExit(main())
