"""What a night's records say by now: each part's status, what is to be measured again, the night's line in the history."""

from dataclasses import dataclass
from typing import Any

from grader.nightly import parts
from grader.nightly.history import Change, judge
from grader.nightly.night import Night
from grader.nightly.parts import Outcome, Part


@dataclass
class Assessed:
    outcomes: list[Outcome]
    changes: dict[str, list[Change]]  # by the part's name; of those that had nights to be compared with
    tables: list[str]  # Markdown: adversaries, a lab each

    def worst(self) -> str:
        """The night's status: failed, slower, missing, or ok."""
        there = {outcome.status for outcome in self.outcomes}
        return next((status for status in (parts.FAILED, parts.SLOWER, parts.MISSING) if status in there), parts.OK)

    def counts(self) -> dict[str, int]:
        """How many parts have each status, the worst first."""
        made = [outcome.status for outcome in self.outcomes]
        return {status: made.count(status) for status in parts.ORDER if status in made}


def assess(night: Night) -> Assessed:
    """What the records say by now."""
    outcomes = [parts.outcome(part, night.runs(part)) for part in night.parts]
    tables = _judge_adversaries(night, outcomes)
    changes = {}
    for outcome in outcomes:
        part = outcome.part
        if part.kind != "grade" or part.what != "solution" or not outcome.repeats:
            continue
        made = judge(outcome, night.history.before(part.name, outcome.machine, night.manifest["quick"], night.name))
        if made:
            changes[part.name] = made
        if any(change.slower for change in made) and outcome.status != parts.FAILED:
            outcome.status = parts.SLOWER
            outcome.why = "; ".join(change.says() for change in made if change.slower)
    return Assessed(outcomes, changes, tables)


def _judge_adversaries(night: Night, outcomes: list[Outcome]) -> list[str]:
    """Let the corpus that was handed in set the status of each adversary and control; its tables."""
    mine = [outcome for outcome in outcomes if outcome.part.corpus]
    corpus = mine[0].part.corpus if mine else None
    device = night.manifest["device"]
    return corpus.judge(mine, night.folder / "adversaries" / device, device) if corpus else []


def again(night: Night, assessed: Assessed) -> list[tuple[Part, int]]:
    """What is to be measured again, with the run's number: what is not as expected, with an adversary's control, or looks slower."""
    wanted: dict[str, tuple[Part, int]] = {}
    by_name = {outcome.part.name: outcome for outcome in assessed.outcomes}

    def want(outcome: Outcome) -> None:
        lost = outcome.runs - len(outcome.repeats) if outcome.repeats else 0  # runs that measured nothing
        if 0 < outcome.runs < min(parts.TRIES + lost, parts.MOST_TRIES) and not outcome.part.lacks:
            wanted[outcome.part.name] = (outcome.part, outcome.runs)

    for outcome in assessed.outcomes:
        part, status = outcome.part, outcome.status
        if part.kind == "grade":
            unclear = status == parts.FAILED or (status == parts.UNDECIDED and not night.manifest["quick"])
            # a solution whose notebook came to no grade is graded without it
            gradable = outcome.points is not None or part.retry
            if gradable and (unclear or any(c.suspicious for c in assessed.changes.get(part.name, []))):
                want(outcome)
        elif part.kind == "adversary" and status in (parts.FAILED, parts.UNDECIDED):
            control = by_name.get(f"adversary {part.subject} {part.control}")
            lost = control is not None and not control.repeats  # it says nothing of an adversary
            if control is outcome or (outcome.repeats and not lost):
                want(outcome)
                if control:
                    want(control)
    return list(wanted.values())


def finished(night: Night, assessed: Assessed) -> bool:
    return not again(night, assessed) and all(outcome.status != parts.MISSING for outcome in assessed.outcomes)


def hosts(night: Night) -> list[dict[str, Any]]:
    """The machines that graded, the one of most grades first; the one that the night began on where nothing was graded."""
    made = (run["result"] for part in night.parts for run in night.runs(part) if "result" in run)
    graded = (result.get("grade", result) for result in made)
    facts = [result["machine"] for result in graded if "checks" in result]
    return sorted(facts, key=facts.count, reverse=True) or [night.manifest["host"]]


def entry(night: Night, assessed: Assessed) -> dict[str, Any]:
    """The night's line in the history."""
    kept = ("status", "why", "seconds", "runs", "machine", "values", "noise")
    made: dict[str, dict[str, Any]] = {}
    for outcome in assessed.outcomes:
        every = {name: getattr(outcome, name) for name in kept}
        made[outcome.part.name] = {name: value for name, value in every.items() if value not in ("", {}, None)}
    return {
        "night": night.name,
        "date": night.manifest["date"],
        "status": assessed.worst(),
        **{
            name: night.manifest[name]
            for name in ("device", "quick", "select", "grader", "torch", "commit", "packages")
        },
        "host": hosts(night)[0],
        "parts": made,
    }
