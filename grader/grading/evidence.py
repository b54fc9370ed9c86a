"""What a grade finds out: each chapter's part is frozen, and the record of the grade holds the latest of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from grader import trace
from grader.grading.failure import WAIT
from grader.grading.half import lacks_on
from grader.labs.lab import AnyLab, Budget, Lab
from grader.measure.decision import Decision, Gain, Pair
from grader.result import FAIL, INCONCLUSIVE, CheckResult
from grader.sandbox.processes import Doing


@dataclass
class AnyFindings:
    """The record of a grade of any kind of lab, kept while it goes on: what fails half way is reported, too."""

    lab: AnyLab
    form_name: str
    allow_unconfined: bool = False
    confinement: dict[str, Any] = field(default_factory=dict)
    free_bytes: int = 0  # of GPU memory, before the grade
    submission_there: bool = True  # its processes have begun, and are not gone
    seed: int | None = None
    timelines: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    fatal: str = ""
    disturbed: str = ""
    advice: str = WAIT  # what to do where the grade was disturbed
    output: str = ""

    @property
    def form(self) -> Any:  # of the kind: what each kind reads of it is its own
        return self.lab.forms[self.form_name]

    @property
    def lacks(self) -> list[str]:
        return lacks_on(self.form_name)

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.lab.ranks(self.form_name)

    @property
    def all_warnings(self) -> list[str]:
        return self.warnings

    def stopped(self, what: str = "the submission did not run") -> tuple[str, str] | None:
        """Status and reason of every check, where nothing can be judged."""
        if self.fatal:
            return FAIL, f"Not counted: {what} (see above)."
        return (INCONCLUSIVE, f"Not measured: {self.disturbed} {self.advice}") if self.disturbed else None


# ---------------------------------------------------------------- of a training loop, made faster


@dataclass(frozen=True)
class Yardstick:
    """What a gain is compared with."""

    target: float = math.nan  # the gain that earns full points
    reference_gain: float | None = None  # of the reference solution on this machine
    source: str = ""  # where these come from
    untouched: bool = False  # the submission is the starter, as Python reads it, where nothing can be made faster


SEED_TELLS_NOTHING = (
    "From this grade's seed, rounding alone soon drives two trainings of this model apart. The reference solution may end "
    "as far away if it starts from rounded weights. So nobody can say whether yours is the same training."
)
ANOTHER_SEED = "Check again. A new seed will be drawn."


@dataclass(frozen=True)
class Work:
    """Whether the loop still does its work, as far as is known by now."""

    parity: CheckResult | None = None
    logs: CheckResult | None = None  # in labs that have logs
    checkpoints: CheckResult | None = None  # in labs that save some
    outcome: CheckResult | None = None  # in labs that compare with long runs
    memory: CheckResult | None = None  # in labs that ask for it

    @property
    def gates(self) -> list[CheckResult]:
        return [check for check in (self.parity, self.logs, self.checkpoints, self.outcome) if check]

    @property
    def same(self) -> bool:
        return all(check.status != FAIL for check in self.gates)


@dataclass(frozen=True)
class Losses:
    """What both loops yielded, up to the last timed step."""

    starter: Sequence[float]
    submission: Sequence[float]


@dataclass(frozen=True)
class Checkpoint:
    """The submission's weights on the way."""

    step: int
    file: Path  # while the grade lasts
    pairs: int  # that were timed by then
    samples: tuple[Path, ...] = ()  # of the other ranks' weights


@dataclass(frozen=True)
class Race:
    """The timed blocks of both loops."""

    pairs: tuple[Pair, ...] = ()  # all that were timed
    decided: Decision | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    alone_s: tuple[float, ...] = ()  # the starter's seconds a step with no submission there: before, perhaps after
    slowed: float = 1.0  # by what factor the starter was slower beside the submission, see `decision.slowed`
    overstated: float = 1.0  # see `blocks.overstated`
    worked_ahead: bool = False  # so that some of the gain is not certain
    compile_s: float | None = None  # None: nothing was compiled
    main_step_s: tuple[float, float] | None = None  # processor time of the main process a step: starter's, submission's
    main_thread: tuple[float, float] | None = None  # of the submission, see `Arm.main_thread`
    cores: float = 1.0  # that the submission took where the starter has one thread, see `Arm.cores`
    doing: Doing | None = None  # what the submission's ranks did per step
    warnings: tuple[str, ...] = ()

    @property
    def gain(self) -> Gain | None:
        return self.decided.gain if self.decided else None

    @property
    def counted(self) -> tuple[Pair, ...]:
        return self.decided.pairs if self.decided else self.pairs

    @property
    def step_s(self) -> tuple[float, float]:
        """Mean seconds per step of the pairs that count: starter, submission."""
        return fmean(pair.starter_s for pair in self.counted), fmean(pair.submission_s for pair in self.counted)

    @property
    def lost(self) -> float:
        """The share of the submission's time, in the pairs that count, that went to other programs."""
        lost_s = sum(pair.submission_s * pair.submission_lost for pair in self.counted)
        return lost_s / sum(pair.submission_s for pair in self.counted)


@dataclass(frozen=True)
class Profiles:
    """One profile of each loop."""

    metrics: dict[str, trace.Metrics] = field(default_factory=dict)  # "starter", "submission"
    timelines: dict[str, Any] = field(default_factory=dict)  # "before", "after"
    traces: dict[str, trace.Trace] = field(default_factory=dict)  # "before", "after"; where they are asked for
    doing: Doing | None = None  # what the submission's ranks did per profiled step
    problems: tuple[str, ...] = ()  # why the submission's cannot be trusted
    warnings: tuple[str, ...] = ()


@dataclass
class Findings(AnyFindings):
    """The record of a grade of a training loop."""

    lab: Lab
    yardstick: Yardstick = Yardstick()
    prepare_s: float = 0.0  # what the submission's own preparation took, in labs that have one
    work: Work = Work()
    losses: Losses | None = None
    logged: Sequence[dict[str, Any]] = ()  # by the submission, step by step, in labs that have logs
    race: Race = Race()
    profiles: Profiles = Profiles()
    order: CheckResult | None = None  # in labs that ask for one
    replay_warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the loop keeps within its memory budget, where the lab has one."""
        memory = self.work.memory
        return not (isinstance(self.lab.memory, Budget) and memory and memory.status == FAIL)

    @property
    def prepare_step_s(self) -> float:
        """The preparation's share of a step, in seconds."""
        return self.prepare_s / self.form.prepared_for

    @property
    def all_warnings(self) -> list[str]:
        return [*self.warnings, *self.race.warnings, *self.profiles.warnings, *self.replay_warnings]

    def note(self, **checks: CheckResult | None) -> None:
        """Keep a check of the work (`parity`, `logs`, `checkpoints`, `outcome`, `memory`)."""
        self.work = replace(self.work, **checks)

    def start_again(self) -> None:
        """Forget what was measured, not what is known of the lab."""
        self.work, self.race, self.losses = Work(), Race(), None
