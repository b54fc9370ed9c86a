"""Whether the confidence of a diagnosis means something: of the verdicts that are so sure, how many are right.

    python -m tests.benchmarks.reliability [--loops 400] [--cases FOLDER] [--out data/measured/reliability.md]

Labelled are the recorded traces of the course, each with and without the step time that was measured beside it, the traces of
tests/data/traces, simulated loops whose truth is known, and what FOLDER holds: NAME.json with "EXPECTED" and "step_ms" beside
NAME_slow.json.gz. Exits with 1 where a row of verdicts is less often right than it says, by more than chance (5%)."""

import argparse
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from grader import paths, trace
from grader.data import record
from grader.result import write_text
from grader.trace.causes import WORK
from tests import loops

LABELLED = Path(__file__).resolve().parents[1] / "data" / "traces"
ROWS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
HEALTHY = "healthy"
CHANCE = 0.05


@dataclass(frozen=True)
class Verdict:
    of: str  # where the trace is from
    name: str
    cause: str
    confidence: float
    accepted: tuple[str, ...]

    @property
    def right(self) -> bool:
        return self.cause in self.accepted


def verdict(of: str, name: str, read: trace.Trace, accepted: list[str], step_ms: float | None) -> Verdict:
    found = trace.analyse(read, step_ms and step_ms * 1e6).diagnosis
    return Verdict(of, name, (found.cause or "none").removesuffix("-bound"), found.confidence, tuple(accepted))


def recorded() -> Iterator[Verdict]:
    for side in record.side_files(record.TRACES):
        accepted = [side["cause"]] if isinstance(side["cause"], str) else [*side["cause"], *WORK]
        read = trace.read(record.TRACES / side["trace"])
        yield verdict("the course's", side["trace"], read, accepted, side["step_ms"])
        yield verdict("the course's, step time unknown", side["trace"], read, accepted, None)


def others() -> Iterator[Verdict]:
    for name, label in json.loads((LABELLED / "labels.json").read_text()).items():
        yield verdict("others'", name, trace.read(LABELLED / name), label["accepted"], label["step_ms"])


def cases(folder: Path) -> Iterator[Verdict]:
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text())
        recording = path.with_name(f"{path.stem}_slow.json.gz")
        if "EXPECTED" in about and recording.exists():
            accepted = ["host" if said.startswith("other") else said for said in about["EXPECTED"]]
            accepted += [*WORK] if HEALTHY in accepted else []
            yield verdict("cases", path.stem, trace.read(recording), accepted, about["step_ms"]["slow"])


def simulated(count: int) -> Iterator[Verdict]:
    rng = random.Random(0)
    for number in range(count):
        options = loops.some_loop(rng)
        accepted = [*loops.accepted(loops.gains(options))]
        loop = loops.Loop(**options)
        step_ms = loop.length() / 1e6 if number % 2 else None
        yield verdict("simulated", f"{number}", loop.record()[0].read(), accepted, step_ms)


def too_rarely(right: int, of: int, said: float) -> bool:
    """Whether so few right ones come by chance in fewer than 5% of cases, if each is right with probability `said`."""
    return sum(math.comb(of, k) * said**k * (1 - said) ** (of - k) for k in range(right + 1)) < CHANCE


def table(verdicts: list[Verdict]) -> tuple[str, bool]:
    kinds = list(dict.fromkeys(v.of for v in verdicts))
    lines = [f"| confidence | {' | '.join(kinds)} | all | right |", "|---" * (len(kinds) + 3) + "|"]
    bad = False
    for low, high in pairwise(ROWS):
        row = [v for v in verdicts if low <= v.confidence < high and v.cause != "none"]
        if not row:
            continue
        counts = [f"{sum(v.right for v in row if v.of == kind)} of {sum(v.of == kind for v in row)}" for kind in kinds]
        right = sum(v.right for v in row)
        lines.append(
            f"| {low:.0%} to {min(high, 1):.0%} | {' | '.join(counts)} | {right} of {len(row)} | {right / len(row):.0%} |"
        )
        bad |= too_rarely(right, len(row), low)
    wrong = [v for v in verdicts if not v.right and v.confidence > 0.6]
    lines += ["", f"Wrong and more than 60% sure: {len(wrong)} of {len(verdicts)}."]
    lines += [
        f"- {v.of}, {v.name}: {v.cause} ({v.confidence:.0%}), right: {', '.join(v.accepted) or 'none'}" for v in wrong
    ]
    return "\n".join(lines), bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=400)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    verdicts = [*recorded(), *others(), *simulated(options.loops)]
    verdicts += cases(options.cases) if options.cases else []
    text, bad = table(verdicts)
    print(text)
    if options.out:
        head = "# Is a diagnosis as often right as it says?\n\n`python -m tests.benchmarks.reliability`\n\n"
        write_text(paths.REPOSITORY / options.out, f"{head}{text}\n")
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
