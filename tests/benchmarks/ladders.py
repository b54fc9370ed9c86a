"""Writes the ladders that were measured into the labs' notebooks.

    python -m tests.benchmarks.ladders [--from data/measured/nvidia-h200] [--labs LAB,LAB]

Of each lab the ladder of the GPU on which the fewest of today's rungs were not measured; of equals that of an H200. That of a CPU
where there is no other.

Fills the ladders with empty rungs, those with rungs that are marked as measured before a change or have to be, and those of the labs that
are named: what was measured anew may need other words beside it.
Reads `LAB/ladder.json` as `tests.benchmarks.measured --parts ladder` leaves it, and fills the rows of the notebook's ladder that
bear a rung's name, alone or before a colon or a bracket. All other rows stay as they are."""

import argparse
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from grader import labs
from grader.result import write_text
from tests.benchmarks.measured import MEASURED, STALE, TURNS, ladder_made_on, ladder_of, stale_rungs

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST = "nvidia-h200"


def to_show(measured: Path) -> dict[str, dict[str, Any]]:
    """Of each lab the ladder that its notebook shows: see above. measured: a machine's folder, or the folder of those."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(measured.glob("**/ladder.json"), key=lambda path: (path.parts[-3] != FIRST, path)):
        found.setdefault(path.parent.name, []).append(json.loads(path.read_text(encoding="utf-8")))
    return {lab: min(made, key=lambda ladder: _lacks(lab, ladder)) for lab, made in sorted(found.items())}


def _lacks(lab: str, ladder: dict[str, Any]) -> tuple[bool, int]:
    """Whether it lacks a GPU, and of how many of today's rungs it has no figure."""
    stale = stale_rungs(labs.get(lab), ladder)
    there = {row["rung"] for row in ladder["rungs"] if row["rung"] not in stale}
    return not ladder["machine"]["gpu"], len(ladder_of(labs.get(lab)).keys() - there)


def bears(name: str, rung: str) -> bool:
    """Whether a row of this name is this rung's."""
    return bool(re.fullmatch(re.escape(rung) + r"(:.*| \(.*)?", name))


def row_of(line: str) -> str:
    """The name in a row of a ladder."""
    return line.removeprefix("| ").split(" |")[0].removesuffix(f" {STALE}")


def times(gain: float) -> str:
    """A gain as it is shown: 1.05 is not 1.1, and 18.24 says no more than 18.2."""
    return f"{gain:.2f}x" if gain < 2 else f"{gain:.1f}x"


def filled(lines: list[str], ladder: dict[str, Any], lab: str, stale: Collection[str] = ()) -> list[str]:
    """The lines of a ladder cell with milliseconds and gains of its rungs, and what they were measured on in place of what
    said that they were not. stale: the rungs whose figures are not of today's loop and form; they are marked."""
    made, empty = [], 0
    for line in lines:
        name = row_of(line)
        row = next((row for row in ladder["rungs"] if bears(name, row["rung"])), None)
        rung = line.startswith("| ") and line.count("|") == 4  # other tables of the cell have more columns
        if rung and row:
            name += f" {STALE}" * (row["rung"] in stale)
            line = f"| {name} | {row['step_ms']:,.1f} | {times(row['gain'])} |\n"
        empty += rung and bool(re.search(r"\|\s*\|", line))
        made.append(line)
    return _headed(made, ladder, empty, lab)


def _headed(made: list[str], ladder: dict[str, Any], empty: int, lab: str) -> list[str]:
    begin = next((n for n, line in enumerate(made) if re.match(r"Not measured|NVIDIA", line)), None)
    if begin is None:
        return made
    end = next(n for n, line in enumerate(made) if n > begin and not line.strip())
    said = f"{ladder_made_on(ladder)}."
    lacks = ["Empty rungs were not measured yet"] * bool(empty)
    lacks += [f"Rungs {STALE} are of an older loop or form of this lab"] * any(f"{STALE} |" in line for line in made)
    said += f" {'. '.join(lacks)}: `python -m tests.benchmarks.measured --labs {lab}`." if lacks else ""
    return [*made[:begin], f"{said}\n", f"{TURNS}\n", *made[end:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="measured", type=Path, default=MEASURED)
    parser.add_argument("--labs", default="")
    options = parser.parse_args()
    named = set(filter(None, options.labs.split(",")))
    shown = to_show(options.measured)
    if missing := named - shown.keys():
        make = f"python -m tests.benchmarks.measured --parts ladder --labs {','.join(sorted(missing))}"
        parser.error(f"{options.measured} has no ladder of {', '.join(sorted(missing))}: `{make}` measures it.")
    for lab, ladder in shown.items():
        notebook_path = REPOSITORY / "solutions" / lab / f"{lab}.ipynb"
        notebook = json.loads(notebook_path.read_text(encoding="utf-8"))
        cell = next(cell for cell in notebook["cells"] if cell["id"] == "ladder")
        stale = stale_rungs(labs.get(lab), ladder)
        lacking = re.search(
            r"^Not measured|not measured yet|" + re.escape(STALE), "".join(cell["source"]), re.MULTILINE
        )
        if not (lacking or stale or lab in named):
            continue
        if not any(bears(row_of(line), row["rung"]) for line in cell["source"] for row in ladder["rungs"]):
            rungs = ", ".join(row["rung"] for row in ladder["rungs"])
            print(f"{lab}: no row of its ladder has the name of a rung, so none is filled. The rungs are: {rungs}.")
            continue
        cell["source"] = filled(cell["source"], ladder, lab, stale)
        write_text(notebook_path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        print(f"{lab}: filled")


if __name__ == "__main__":
    main()
