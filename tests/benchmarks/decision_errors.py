"""How often the decision is wrong. Simulates whole grades, pair by pair, with the rule of `grader.measure.decision`, over
many kinds of noise, and replays the pairs that were measured. Takes one and a half minutes on one core.

    python -m tests.benchmarks.decision_errors [--grades 2500] [--seed 1] [--out data/measured]

Writes decision.md and decision.png. All times are logarithms here: a block that is 5% slower is 0.05 higher."""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from grader import labs
from grader.measure import decision
from grader.measure.blocks import Plan
from grader.result import write_text

MEASURED = Path(__file__).resolve().parents[2] / "data" / "measured"
PLAN = Plan()
DOUBT = 2 * PLAN.precision
WRONG = 0.10  # of the points: what a mark may be off before it is called wrong
NOISE = (0.001, 0.003, 0.01, 0.02, 0.05, 0.07, 0.10, 0.12, 0.15)  # relative sd of one pair's ratio
FEW_NOISE = (0.003, 0.02, 0.05, 0.10)
GAINS = {"starter": 0.0, "half": 0.5, "nearly": 0.9, "target": 1.0, "solution": 1 / 0.87}  # log(gain) / log(target)
CLEAR = ("starter", "solution")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b7280"


@dataclass(frozen=True)
class Setting:
    """A lab's target and noise floor, as `decide` gets them."""

    name: str
    target: float
    floor: float

    @property
    def worth(self) -> float:
        return math.log(self.target)


@dataclass(frozen=True)
class Kind:
    """A kind of noise. hits: how much of it reaches the starter's blocks and the submission's. seen: the grader's gauge of
    time lost to other programs sees it. most: the highest noise, as a share of log(target), for which the rule is claimed
    to hold."""

    name: str
    hits: tuple[float, float] = (1, 1)
    seen: bool = False
    most: float = 1 / 8  # a lab whose noise is x has a gain of exp(8x) at least

    @property
    def title(self) -> str:
        whom = {(1, 1): "both alike", (1, 0): "the starter only", (0, 1): "the submission only"}[self.hits]
        return self.name if self.name == "independent" else f"{self.name}, {whom}"


def kinds() -> list[Kind]:
    both, starter, submission = (1, 1), (1, 0), (0, 1)
    made = [Kind("independent")]
    made += [Kind(name, hits) for name in ("drift", "heat") for hits in (both, starter, submission)]
    made += [Kind("wander", hits, most=1 / 30) for hits in (both, starter, submission)]
    made += [Kind(name, hits) for name in ("outliers", "comes", "on and off") for hits in (both, starter, submission)]
    return [*made, Kind("always", both), Kind("always", starter, seen=True), Kind("always", submission, seen=True)]


def settings() -> list[Setting]:
    known = json.loads((MEASURED / "calibration.json").read_text())
    found = []
    for name in ("2a_workers", "3a_precision"):
        form = labs.get(name).forms["cuda"]
        for entry in known[f"{name} cuda"].values():
            found.append(Setting(f"{name}, calibrated", decision.target(entry["gain"]), form.noise))
        found.append(Setting(f"{name}, minimum", form.minimum_gain, form.noise))
    return found


# ---------------------------------------------------------------- blocks


def blocks(
    random: np.random.Generator, grades: int, log_gain: float, noise: float, kind: Kind
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logs of the seconds per step of the starter's and the submission's blocks, and the share of each that was seen to be
    lost: (grades, pairs), (grades, pairs), (2, grades, pairs)."""
    slots = 2 * PLAN.max_pairs  # places in time, two a pair
    state, own = _state(random, grades, slots, noise, kind.name)
    first = random.random((grades, PLAN.max_pairs)) < 0.5  # the pair's order
    state = state.reshape(grades, PLAN.max_pairs, 2)
    states = np.where(first, state[..., 0], state[..., 1]), np.where(first, state[..., 1], state[..., 0])
    times = [hit * s + own * random.standard_normal(s.shape) for hit, s in zip(kind.hits, states, strict=True)]
    lost = np.stack([kind.seen * (1 - np.exp(-hit * s)) for hit, s in zip(kind.hits, states, strict=True)])
    return times[0], times[1] - log_gain, lost


def _state(random: np.random.Generator, grades: int, slots: int, noise: float, name: str) -> tuple[np.ndarray, float]:
    """How much slower than at its best the machine is, by place in time; and the sd of what each block has of its own."""
    at, own = np.arange(slots), noise / math.sqrt(2)
    slower = random.uniform(0.1, 0.9, (grades, 1))  # 1.1 to 2.5 times as long
    if name == "drift":  # 22% slower in the end
        return np.tile(0.2 * at / (slots - 1), (grades, 1)), own
    if name == "heat":  # the clocks fall by 15% within some blocks, from any moment on
        return 0.15 * (1 - np.exp(-np.maximum(0, at - random.integers(0, slots, (grades, 1))) / 6)), own
    if name == "wander":  # as strong as the noise, forgotten within ten blocks
        state = np.empty((grades, slots))
        state[:, 0] = noise * random.standard_normal(grades)
        for i in range(1, slots):
            state[:, i] = 0.9 * state[:, i - 1] + noise * math.sqrt(1 - 0.9**2) * random.standard_normal(grades)
        return state, own / 3
    if name == "outliers":  # one block in twenty takes 1.5 to 3 times as long
        much = random.uniform(math.log(1.5), math.log(3), (grades, slots))
        return np.where(random.random((grades, slots)) < 0.05, much, 0), own
    if name == "comes":  # after one to five undisturbed pairs, and stays
        return np.where(at >= random.integers(2, 11, (grades, 1)), slower, 0), own
    if name == "on and off":  # changes after three blocks on the average; not there during the first pair
        changes = (random.random((grades, slots)) < 1 / 3).cumsum(1)
        return (np.maximum(0, changes - changes[:, 1:2]) % 2) * slower, own
    if name == "always":
        return np.tile(slower, (1, slots)), own
    return np.zeros((grades, slots)), own


# ---------------------------------------------------------------- the rule, for many grades at once


@dataclass
class Marks:
    """By grade: the share of the points, whether it was INCONCLUSIVE, and the pairs that were measured."""

    points: np.ndarray
    open: np.ndarray
    pairs: np.ndarray


def marks(starter: np.ndarray, submission: np.ndarray, lost: np.ndarray, setting: Setting, agree: bool = True) -> Marks:
    """What `decision.decide` makes of each grade, pair after pair as in `grader.grade`; tests hold the two together. With
    agree=False by the interval alone, whether or not the arms agree with themselves."""
    grades, most = starter.shape
    found = Marks(np.zeros(grades), np.ones(grades, bool), np.full(grades, most))
    going = np.arange(grades)
    for n in range(PLAN.min_pairs, most + 1):
        a, b = starter[going, :n], submission[going, :n]
        points, settled = _look(a, b, lost[:, going, :n], setting, agree)
        ends = settled if n < most else np.ones(len(going), bool)
        these = going[ends]
        found.points[these], found.pairs[these] = points[ends], n
        found.open[these] = ~settled[ends] & (points[ends] < 1)
        going = going[~ends]
        if not len(going):
            break
    return found


def _look(
    a: np.ndarray, b: np.ndarray, lost: np.ndarray, setting: Setting, agree: bool
) -> tuple[np.ndarray, np.ndarray]:
    worth, tolerance = setting.worth, DOUBT * setting.worth
    best, fastest = (a + np.log(1 - lost[0])).min(1), (b + np.log(1 - lost[1])).min(1)
    everything = np.ones(a.shape, bool)
    quiet = (a - best[:, None] <= tolerance) & (-np.log(1 - lost[1]) <= tolerance)
    points, settled = np.zeros(len(a)), np.zeros(len(a), bool)
    for chosen in (everything, quiet) if agree else (everything,):
        n = chosen.sum(1)
        use = ~settled & (n >= (PLAN.min_pairs if chosen is everything else decision.FEW))
        mean, half = _interval(a - b, chosen, n, setting.floor)
        slow, fast = ((x * chosen).sum(1) / np.maximum(n, 1) - low for x, low in ((a, best), (b, fastest)))
        low, high = _points(mean - half, worth), _points(mean + half, worth)
        least = _points(mean - half - slow, worth)
        known = (high - low <= DOUBT) & (mean < worth) & ((n >= decision.FEW) | (high <= decision.FAR))
        firm = np.ones(len(a), bool)
        if agree:
            firm = low - least <= DOUBT
            known &= ~((low < 1 - DOUBT) & (mean + fast + 3 * half >= worth))
            known &= _points(mean + fast, worth) - _points(mean, worth) <= DOUBT
        points = np.where(use, np.where(firm, low, least), points)
        settled |= use & firm & ((low >= 1) | known)
    return points, settled


def _interval(ratios: np.ndarray, chosen: np.ndarray, n: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    mean = (ratios * chosen).sum(1) / np.maximum(n, 1)
    variance = (((ratios - mean[:, None]) ** 2) * chosen).sum(1) / np.maximum(n - 1, 1)
    t = np.array([math.inf, math.inf, *decision._T95])[n]
    return mean, t * np.maximum(np.sqrt(variance), floor) / np.sqrt(np.maximum(n, 1))


def _points(log_gain: np.ndarray, worth: float) -> np.ndarray:
    return np.clip(log_gain / worth, 0, 1)


# ---------------------------------------------------------------- how often it is wrong


@dataclass(frozen=True)
class Rates:
    """Shares of the grades. too_high: the points are more than `WRONG` above what the true gain earns. too_low: the true
    gain is the target or more, the verdict is FAIL, and more than `WRONG` of the points are lost."""

    too_high: float
    too_low: float
    open: float


def rates(found: Marks, share: float) -> Rates:
    too_high = found.points > min(share, 1) + WRONG
    too_low = (share >= 1) & (found.points < 1 - WRONG) & ~found.open
    return Rates(too_high.mean(), too_low.mean(), found.open.mean())


def simulate(grades: int, seed: int) -> Iterator[tuple[Setting, Kind, float, str, Rates, Rates]]:
    """By setting, kind, noise and true gain: the rates of the interval alone, and of the rule."""
    random = np.random.default_rng(seed)
    for setting in settings():
        for kind in kinds():
            for noise in NOISE if kind.name == "independent" else FEW_NOISE:
                for gain, share in GAINS.items():
                    a, b, lost = blocks(random, grades, share * setting.worth, noise, kind)
                    before, now = (marks(a, b, lost, setting, agree) for agree in (False, True))
                    yield setting, kind, noise, gain, rates(before, share), rates(now, share)


def replayed() -> list[dict[str, Any]]:
    """The grades that were measured: what was decided, and what the rule makes of the same pairs."""
    rows = []
    for path in sorted(MEASURED.glob("*/*/*.json")):
        result = json.loads(path.read_text())
        check = next((c for c in result.get("checks", ()) if c["name"] == "throughput"), None)
        if "checks" in result and not result["source"]:
            continue  # its lab asks for something else since
        if not check or not check["evidence"] or result["form"] != "cuda" or labs.get(result["lab"]).throughput.healthy:
            continue
        evidence, form = check["evidence"], labs.get(result["lab"]).forms["cuda"]
        if "lost" not in evidence and evidence.get("lost_to_others"):
            continue  # an older record: what each pair lost, which the rule asks for, is not in it
        if check["reason"].startswith("Not counted"):
            continue  # it was another check that decided
        if evidence.get("pairs_left_out"):
            continue  # the rule looked at them, too, and they are not in it
        lost = evidence.get("lost", [(0.0, 0.0)] * len(evidence["pairs"]))
        pairs = [decision.Pair(*each, *shares) for each, shares in zip(evidence["pairs"], lost, strict=True)]
        least = min(len(pairs), PLAN.min_pairs)  # some were asked for parity only, with two pairs
        found = decision.decide(pairs, evidence["target"], form.noise, PLAN.precision, least)
        # what could have been made ahead is not in the pairs
        ahead = evidence["overstated"] if evidence.get("worked_ahead") else 1.0
        share = decision.fraction(found.certain / ahead, evidence["target"])
        rows.append(
            {
                "pairs": len(pairs),
                "name": f"{result['lab']}/{path.stem}",
                "points": check["points"],
                "status": check["status"],
                "now": round(share * check["max_points"], 2),
                "now_status": "PASS" if share >= 1 else "FAIL" if found.settled else "INCONCLUSIVE",
            }
        )
    return rows


def few(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have too few pairs by now: the rule would ask for another one."""
    return [row for row in rows if row["now_status"] == "INCONCLUSIVE" and row["pairs"] < decision.FEW]


# ---------------------------------------------------------------- the report


@dataclass
class Row:
    setting: Setting
    kind: Kind
    noise: float
    gain: str
    before: Rates
    now: Rates

    @property
    def within(self) -> bool:
        """Whether the rule is claimed to hold for this much noise."""
        return self.noise <= self.kind.most * self.setting.worth


def worst(rows: list[Row], rate: str, which: str = "now") -> float:
    return max((getattr(getattr(row, which), rate) for row in rows), default=math.nan)


def table(rows: list[Row]) -> list[str]:
    """By kind of noise, the worst of all settings, gains and amounts of noise."""
    lines = [
        "| noise | too high, interval alone | too high | too low, interval alone | too low | INCONCLUSIVE, gain clear |",
        "|---|---|---|---|---|---|",
    ]
    for kind in kinds():
        some = [row for row in rows if row.kind == kind]
        if not some:
            continue
        clear = [row for row in some if row.gain in CLEAR]
        cells = [worst(some, rate, which) for rate in ("too_high", "too_low") for which in ("before", "now")]
        lines.append(f"| {kind.title} | " + " | ".join(f"{100 * x:.1f}" for x in (*cells, worst(clear, "open"))) + " |")
    return lines


def independent(rows: list[Row]) -> list[str]:
    """Noise that is independent from block to block, by its amount."""
    names = list(dict.fromkeys(row.setting.name for row in rows))
    lines = [f"| sd of a pair | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for noise in NOISE:
        cells = []
        for name in names:
            some = [r for r in rows if r.setting.name == name and r.noise == noise and r.kind.name == "independent"]
            each = [100 * worst(some, "too_high"), 100 * worst(some, "too_low")]
            each += [
                100 * worst([r for r in some if r.gain in gains], "open") for gains in (CLEAR, ("half",), ("target",))
            ]
            text = f"{each[0]:.1f}, {each[1]:.1f}; {each[2]:.0f}, {each[3]:.0f}, {each[4]:.0f}"
            cells.append(text if some[0].within else f"({text})")
        lines.append(f"| {100 * noise:g}% | {' | '.join(cells)} |")
    return lines


def page(rows: list[Row], grades: int, seed: int) -> str:
    held = [row for row in rows if row.within]
    measured = replayed()
    more = few(measured)
    changed = [r for r in measured if r not in more and (r["status"], r["points"]) != (r["now_status"], r["now"])]
    shown = ", ".join(f"{s.name}: {s.target:.2f}x (noise floor {100 * s.floor:g}%)" for s in settings())
    text = f"""# How often a mark for throughput is wrong

Made by `python -m tests.benchmarks.decision_errors --grades {grades} --seed {seed}`: whole grades are simulated pair by pair
with the rule of `grader/measure/decision.py`, {grades} for each combination of target, kind and amount of noise, and true gain.
All figures are per cent of the grades.

The words:

- **true gain**: what the loop gains on the quiet machine. It earns `log(gain) / log(target)` of the points, at most all.
- **too high** (a wrong PASS): the points are more than a tenth of all points above what the true gain earns. A starter that
  gets 11% of the points is one, half a fix that gets 61% is one.
- **too low** (a wrong FAIL): the true gain is the target or more, the verdict is FAIL, and more than a tenth of the points
  are lost. INCONCLUSIVE is no such error: it says that the machine did not allow a verdict.
- **noise**: the relative standard deviation of one pair's ratio. {len(NOISE)} amounts, {100 * NOISE[0]:g}% to {100 * NOISE[-1]:g}%, for
  independent noise, {len(FEW_NOISE)} ({", ".join(f"{100 * x:g}%" for x in FEW_NOISE)}) beside every other kind.
- true gains: {", ".join(f"{name} ({100 * share:.0f}% of log(target))" for name, share in GAINS.items())}. The first and the last are **clear**.
- targets: {shown}; pairs: {PLAN.min_pairs} to {PLAN.max_pairs}.

The kinds: *drift*: up to 22% slower over the whole grade. *Heat*: clocks fall by 15% within three pairs, from any moment on.
*Wander*: as strong as the noise, and forgotten only within ten blocks. *Outliers*: one block in twenty takes 1.5 to 3
times as long. *Comes*: a neighbour comes after one to five pairs and stays; everything takes 1.1 to 2.5 times as long from
then on. *On and off*: such a neighbour comes and goes. *Always*: one who is there from the start; where it slows one loop
only, the grader knows only because it measures what a loop loses to other programs, and here it does.

## With as much noise as a lab may have

A lab whose noise is x has a target of at least exp(8x), and exp(30x) for noise that wanders. The worst of all
combinations within that; "interval alone" is the rule without the demand that each arm agrees with itself.

{chr(10).join(table(held))}

## Noise that is independent from block to block

By its amount: too high, too low; then INCONCLUSIVE for a clear gain, for half the fix, for a gain at the target exactly. In
brackets: more noise than such a lab may have.

{chr(10).join(independent(rows))}

## With more noise than that

The rule is not claimed to hold here; a lab with so little to gain is graded on its counts. (Most of such grades end
INCONCLUSIVE. What slips through is noise that wanders: within one grade it looks like a gain.)

{chr(10).join(table([row for row in rows if not row.within]))}

## What no rule can see

A neighbour who is there during all of a grade, slows only one of the two loops, and takes neither processor time nor the GPU
(it fills the memory bus, the disk or the network, say) changes the gain itself. So does noise that wanders more slowly than
a grade takes.

Cores that are not equally fast are such a noise, for a loop stays where it is: of 16 cores of one virtual machine, each a
thread of a core that it shared with strangers, the slowest needed 1.9 times as long for the same work. So both loops of a
pair begin on the same core, drawn for each pair. Measured by `python -m tests.benchmarks.pair_noise`, twelve grades each
of a loop against itself (2c_transforms, its CPU form, on 16 cores of a machine with four NVIDIA H200, Intel Xeon, torch 2.11,
Python 3.12, 2026-11-22):

| a loop against itself | a pair scatters by | a grade should by | it does by | intervals that miss 1 |
|---|---|---|---|---|
| each is left where it is | 13.6% | 6.8% | 6.7% | 0 of 12 |
| pairs begin on one core | 9.6% | 4.8% | 4.5% | 0 of 12 |

A loop that reads its data itself is as slow as its core, one with workers as slow as most cores are. So one of 24 grades on
another such machine was wrong (quick measurements, half of the fix of 2a_workers, 2026-11-22): 3.49x, interval 3.37 to 3.61.
In each of its three pairs the starter had a slow core: 550, 494 and 445 ms a step, where most others had 240 to 330 ms. The
three other grades of this loop found 1.66x, 1.86x and 2.46x, with intervals as wide as that. Since then a core is drawn from
those that do the same work in about the same time as most. On a third machine of this kind, eight of its cores, the others
busy (2026-11-22), nothing of all this could be seen: twelve grades each tell apart what differs by half, not these.

| a loop against itself | a pair scatters by | a grade should by | it does by | intervals that miss 1 |
|---|---|---|---|---|
| each is left where it is | 11.7% | 5.9% | 4.8% | 0 of 12 |
| pairs begin on one core | 12.6% | 6.3% | 5.3% | 2 of 12 |
| pairs begin on a usual core | 15.5% | 7.7% | 3.7% | 0 of 12 |

## The grades that were measured

{len(measured)} grades on a GPU were decided again from their pairs: {len(changed) or "none"} came out differently.
{len(more)} of them ended after two or three pairs, before {decision.FEW} were asked for where neither all points are certain nor
most are lost; they would go on.

![Errors by kind of noise](decision.png)
"""
    return text


def picture(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(12, 6.2), facecolor="white", layout="constrained")
    left, middle, right = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1, 1, 1.1]})
    shown = kinds()
    held = [row for row in rows if row.within]
    for axes, rate, colour, title in (
        (left, "too_high", BLUE, "points too high"),
        (middle, "too_low", ORANGE, "points too low"),
    ):
        for y, kind in enumerate(shown):
            some = [row for row in held if row.kind == kind]
            before, now = (100 * max(worst(some, rate, which), 1e-4) for which in ("before", "now"))
            axes.plot([before, now], [y, y], color="#D9D9D9", linewidth=2, zorder=1)
            axes.plot(before, y, "o", mfc="white", mec=colour, label="interval alone" if not y else None, zorder=2)
            axes.plot(now, y, "o", color=colour, label="the rule" if not y else None, zorder=3)
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
        axes.text(1.1, -0.8, "1%", color=GREY, fontsize=9, va="center")
        axes.set_xscale("log")
        axes.set_xlim(7e-3, 130)
        axes.set_xticks([0.01, 0.1, 1, 10, 100], ["none", "0.1", "1", "10", "100"])
        axes.minorticks_off()
        axes.set_ylim(len(shown) - 0.5, -1.3)
        axes.set_yticks(range(len(shown)), [k.title for k in shown] if axes is left else [""] * len(shown), fontsize=9)
        axes.set_xlabel("worst case, % of the grades")
        axes.set_title(f"Wrong marks: {title}", loc="left", fontsize=11)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize=9, frameon=False)
    styles = {"starter": ("o", "-"), "solution": ("s", "-"), "half": ("^", "--"), "target": ("D", ":")}
    for (gain, (marker, line)), colour in zip(styles.items(), (BLUE, ORANGE, "#009E73", GREY), strict=True):
        at: dict[float, list[float]] = {}
        for row in rows:
            if row.kind.name == "independent" and row.gain == gain:
                at.setdefault(round(100 * row.noise / row.setting.worth, 1), []).append(100 * row.now.open)
        x = sorted(at)
        right.plot(x, [max(at[v]) for v in x], marker=marker, linestyle=line, color=colour, markersize=4, label=gain)
    right.axvline(12.5, color=GREY, linestyle="--", linewidth=1)
    right.text(12.2, 95, "as much noise as\na lab may have", color=GREY, fontsize=8, ha="right", va="top")
    right.set_xlabel("sd of a pair, % of log(target)")
    right.set_ylabel("% of the grades")
    right.set_ylim(0, 100)
    right.set_title("INCONCLUSIVE, independent noise", loc="left", fontsize=11)
    right.legend(title="true gain", fontsize=8, frameon=False, loc="center left")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grades", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=MEASURED)
    options = parser.parse_args()
    began = time.process_time()
    rows = []
    for row in simulate(options.grades, options.seed):
        if not rows or rows[-1].setting != row[0]:
            print(f"{row[0].name}: target {row[0].target:.2f}x", flush=True)
        rows.append(Row(*row))
    write_text(options.out / "decision.md", page(rows, options.grades, options.seed))
    picture(rows).savefig(options.out / "decision.png", dpi=90)
    print("\n".join(table([row for row in rows if row.within])))
    print(f"{time.process_time() - began:.0f} s; written: {options.out / 'decision.md'}")


if __name__ == "__main__":
    main()
