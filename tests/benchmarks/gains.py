"""Whether points follow the fix where there is no GPU: the untouched loop, each half of the fix and the whole of it, of each lab
whose form for a CPU is timed, one after the other. For a machine that does nothing else.

    python -m tests.benchmarks.gains [--labs LAB,LAB]

Prints a row a loop. Exits with 1 where the untouched loop has more than a tenth of the points, where half a fix gains no more than
none or more than the whole, or where the whole gains less than the lab's minimum; in a lab whose loop is healthy, where a loop that
is as fast, or faster, loses points."""

import argparse

from grader import labs
from grader.grade import grade
from grader.labs.lab import Lab
from grader.measure.blocks import Plan
from grader.result import INCONCLUSIVE, NOT_MEASURED, Result
from grader.submission import Submission
from tests import variants

PLAN = Plan(block_s=0.8, block_steps=2, min_pairs=3, max_pairs=3, precision=0.12, profile_steps=2)
# what is in the names of the halves that show on a CPU; the others need a GPU
SHOWS = {"4c_unet": "kernel", "4e_inference": "call"}
MORE = 1.05  # by what factor half a fix gains more than none
HEAD = "| lab | loop | gain | points | of |\n|---|---|---|---|---|"


def timed() -> list[str]:
    return [name for name in labs.loops() if labs.get(name).measures(labs.get(name).throughput, "cpu")]


def graded(lab: Lab, source: str) -> Result:
    prediction = (("cause", lab.cause), ("gain", 1.0)) if lab.throughput.healthy else None
    return grade(Submission(source, prediction=prediction), lab, device="cpu", plan=PLAN)


def loops(lab: Lab) -> dict[str, str]:
    """By what they are: sources, the untouched loop first and the whole fix last."""
    halves = variants.halves(lab.name)
    halves = {what: source for what, source in halves.items() if SHOWS.get(lab.name, "") in what}
    return {"untouched": lab.starter, **halves, "the whole fix": variants.solution(lab.name)}


def gain(result: Result) -> float:
    return result.check("throughput").evidence.get("gain", 0.0)


def problems(lab: Lab, found: dict[str, Result]) -> list[str]:
    if lab.throughput.healthy:
        checks = {what: result.check("throughput") for what, result in found.items()}
        return [w for w, c in checks.items() if c.points < c.max_points and c.status != INCONCLUSIVE]
    (_, none), *halves, (_, whole) = found.items()
    counted = [check for check in none.checks if check.status != NOT_MEASURED and check.name != "prediction"]
    wrong = [what for what, half in halves if not MORE * gain(none) < gain(half) < MORE * gain(whole)]
    if sum(check.points for check in counted) > 0.1 * sum(check.max_points for check in counted):
        wrong.append("untouched")
    if gain(whole) < lab.forms["cpu"].minimum_gain:
        wrong.append("the whole fix")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", default=",".join(timed()))
    options = parser.parse_args()
    print(HEAD)
    wrong = []
    for lab in map(labs.get, options.labs.split(",")):
        found = {}
        for what, source in loops(lab).items():
            found[what] = graded(lab, source)
            check = found[what].check("throughput")
            print(
                f"| {lab.name} | {what} | {gain(found[what]):.2f} | {check.points:g} | {check.max_points:g} |",
                flush=True,
            )
        wrong += [f"{lab.name}: {what}" for what in problems(lab, found)]
    for each in wrong:
        print(f"not as it should be: {each}")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
