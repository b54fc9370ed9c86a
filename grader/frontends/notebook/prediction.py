"""The prediction that a learner makes before the first profile. The first complete one is locked, beside the notebook."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from grader.checks.prediction import DEVICES
from grader.labs.lab import CAUSES
from grader.result import read_json, write_json
from grader.submission import Submission
from grader.trace import causes

PREDICTIONS = "prediction.json"  # in the learner's folder: {lab: the fields of a LockedPrediction}

MEANING = {f"{name}-bound": cause.meaning for name, cause in causes.CAUSES.items() if cause.offered}


@dataclass(frozen=True)
class LockedPrediction:
    cause: str  # one of CAUSES
    gain: float  # how many times as fast the loop can get
    device: str = "cuda"  # what the gain is for
    time: str = field(default="", compare=False)  # when it was made, ISO 8601

    @classmethod
    def now(cls, cause: str, gain: float, device: str) -> Self:
        return cls(cause, gain, device, datetime.now(UTC).isoformat(timespec="seconds"))

    def arguments(self) -> dict[str, Any]:
        """Those of the call that made it, as a submission has them."""
        return {"cause": self.cause, "gain": self.gain, "device": self.device}

    def in_words(self) -> str:
        said = f"{self.cause}, {self.gain:g} times as fast on {DEVICES[self.device]}"
        try:
            when = datetime.fromisoformat(self.time).astimezone(UTC)
        except (ValueError, OverflowError):
            return said
        return f"{said}, made {when:%Y-%m-%d %H:%M} UTC"


def locked(folder: Path, lab: str) -> LockedPrediction | None:
    """The prediction that is locked in `folder`; None where none is, or none that can be used."""
    made = read_json(folder / PREDICTIONS).get(lab)
    if not isinstance(made, dict):
        return None
    cause, gain, device = made.get("cause", ...), made.get("gain", ...), made.get("device") or "cuda"
    return None if problem(cause, gain, device) else LockedPrediction(cause, gain, device, str(made.get("time", "")))


def lock(folder: Path, lab: str, prediction: LockedPrediction) -> None:
    """Raises OSError, and ValueError for what JSON does not have."""
    write_json(folder / PREDICTIONS, read_json(folder / PREDICTIONS) | {lab: asdict(prediction)})


def other_than_submitted(folder: Path, lab: str, submission: Submission) -> str:
    """What is to be said where the prediction that is locked in `folder` is not the one in the notebook itself; else ''."""
    made = locked(folder, lab)
    if made is None or made.arguments() == {"device": "cuda"} | dict(submission.prediction or ()):
        return ""
    return (
        f"Another prediction is locked beside this notebook ({made.in_words()}), and lab.check() counts that one. Counted here is "
        "what the notebook's own cell says, as in a class."
    )


def problem(cause: Any, gain: Any, device: Any = None) -> str:
    """What is missing or wrong in a prediction, "" when it is complete. `...`: not filled in."""
    if cause is ... or gain is ...:
        return "Fill in both: lab.predict(cause=..., gain=...)."
    if cause not in CAUSES:
        return f"cause={cause!r} is none of the causes below."
    if isinstance(gain, bool) or not isinstance(gain, int | float) or not 0 < gain < 1e6:
        return f"gain={gain!r} is not a number between 1 and a million: 2.5 says 2.5 times as fast."
    if device not in (None, "cuda", "cpu"):
        return f'device={device!r} is not what a gain can be for: "cuda" is a GPU, "cpu" a CPU.'
    if gain < 1:
        times = "half" if gain == 0.5 else f"{gain:g} times"
        return (
            f"{gain:g} would be {times} as fast. A loop that gets {100 * gain:.3g}% faster gains {1 + gain:.4g}; where nothing is "
            "to be gained it is 1."
        )
    return ""
