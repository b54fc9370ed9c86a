"""Grades every adversary and the honest work beside it, and says which of them profits.

    python -m tests.adversaries [--labs 2a_workers,...] [--device auto] [--only NAME,...] [--times N] [--out DIR] [--table]

Each result is a file of its own in DIR, written when it is there; one that is there is not measured again, so a stopped run
goes on where it was. `--table` only makes the table from what is there. Exit status 1 when an adversary profits or is broken, or when honest work
loses its points."""

import argparse
import sys
from pathlib import Path

from grader import labs
from grader.grading.forms import choose_form
from tests import adversaries
from tests.adversaries import _run as run


def main() -> int:
    chosen = arguments()
    made: dict[str, list[list[run.Row]]] = {}
    for time in range(1, chosen.times + 1):
        for name in chosen.labs.split(","):
            if rows := of_lab(chosen, name, time):
                made.setdefault(rows[0], []).append(rows[1])
    for title, times in made.items():
        print(run.table(title, times[0]) if len(times) == 1 else run.table_of_times(title, times))
    every = (row.verdict for times in made.values() for rows in times for row in rows)
    return int(any(verdict.startswith(("PROFITS", "BROKEN", "LOST")) for verdict in every))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversaries", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--labs", default=",".join([*labs.loops(), *adversaries.OTHERS]), help="names, separated by commas"
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--only", default="", help="names of adversaries and controls, separated by commas")
    parser.add_argument("--times", type=int, default=1, help="grade each so often; 1 where nothing is said")
    parser.add_argument("--out", type=Path, default=Path("work/adversaries"), help="folder for the results")
    parser.add_argument("--table", action="store_true", help="grade nothing")
    chosen = parser.parse_args()
    chosen.only = set(filter(None, chosen.only.split(",")))
    if unknown := chosen.only - {a.name for a in adversaries.corpus()} - adversaries.CONTROLS.keys():
        parser.error(f"there is no adversary called {', '.join(sorted(unknown))}")
    return chosen


def of_lab(chosen: argparse.Namespace, name: str, time: int) -> tuple[str, list[run.Row]] | None:
    """Grade a lab's adversaries for the time-th time: the title of its table, and the rows; None where the device is missing."""
    lab = labs.get(name)
    device = chosen.device if chosen.table and chosen.device != "auto" else choose_form(lab, chosen.device)
    if device not in lab.forms:
        if time == 1:
            print(f"\n{name}: not on this device; it needs an NVIDIA GPU.")
        return None
    folder = chosen.out / ("" if time == 1 else f"time {time}") / device / name
    only = chosen.only
    corpus = adversaries.corpus()
    fitting = [a for a in corpus if name in a.labs and device in a.devices and (not only or a.name in only)]
    controls = (
        {a.control for a in fitting} | only & adversaries.CONTROLS.keys() if only else adversaries.beside(fitting)
    )
    if not chosen.table:
        for control in sorted(controls):
            run.kept(folder, control, run.control, lab, device, control)
        for i, adversary in enumerate(fitting, 1):
            print(f"{time} {name} {device} {i}/{len(fitting)} {adversary.name}", file=sys.stderr, flush=True)
            run.compared(folder, lab, device, adversary)
    return f"{name} on {device}", run.rows(folder, fitting, lab, device)


if __name__ == "__main__":
    sys.exit(main())
