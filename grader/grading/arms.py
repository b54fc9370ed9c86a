"""Starting the loops that a grade measures: the submission's, the starter's and the reference solution's arm."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from grader.grading.forms import prepared
from grader.grading.half import in_fp16, lacks_on
from grader.labs.lab import AnyForm, Form
from grader.measure.blocks import Arm
from grader.sandbox.drive import Drive
from grader.sandbox.parent import Child
from grader.sandbox.setting import Limits, Setting
from grader.sandbox.workspace import Workspace
from grader.workloads.drive import NAME

WEIGHTS, FIRST_WEIGHTS = "weights.safetensors", "first.safetensors"  # in the exchange folder
TOO_LARGE = (
    " Twice what the untouched loop's file has is enough for its tensors: `job.weights` returns these and nothing else."
)
MAX_TRACE = 256 << 20  # bytes
# Nothing is compiled: the same training, and where a compiler takes a minute it is there a minute sooner. The second name is what
# releases of torch ask for that are imported already
EAGER = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True)
class Setup:
    """What all arms of one grade have in common."""

    form: Any  # of the lab's kind: chapters read from it what their kind has
    form_name: str  # "cuda" or "cpu"
    options: dict[str, Any]  # the workload's
    readable: list[Path]
    allow_unconfined: bool = False
    counted: bool = False  # see `Child`
    waits: dict[str, list[float]] = field(default_factory=dict)  # that no child knows: see `Drive`

    @property
    def untimed(self) -> Self:
        """For runs that nobody times: waiting for the storage trains nothing."""
        waits = {name: 0.0 for name in ("read_s", "write_bps") if name in self.options}
        return replace(self, options=self.options | waits) if waits else self

    @property
    def eager(self) -> Self:
        """For runs in which nothing is compiled."""
        return replace(self, form=replace(self.form, environment=self.form.environment | EAGER))


def set_up(form: Form, form_name: str, allow_unconfined: bool = False, counted: bool = False) -> Setup:
    """The arms' setup with the form's data, which are made where they are missing."""
    return Setup(form, form_name, *prepared(form), allow_unconfined, counted)


@contextlib.contextmanager
def workspace_of(source: str) -> Iterator[Workspace]:
    workspace = Workspace(source)
    try:
        yield workspace
    finally:
        workspace.remove()


@contextlib.contextmanager
def open_arm(
    source: str,
    setup: Setup,
    limits: Limits | None = None,
    trusted: bool = False,
    kept: Workspace | None = None,
) -> Iterator[Arm]:
    """One loop in a confined process. kept: a workspace whose compiler caches are reused. trusted: the course's; fp16 without bf16."""
    form: AnyForm = setup.form
    options = setup.options
    if trusted and "bf16" in lacks_on(setup.form_name):
        source = in_fp16(source)
    setting = Setting(
        workload=form.workload,
        options=options,
        device=setup.form_name,
        # past the drive a submission reads that the data are there, and not the data, which would come at once
        readable=setup.readable
        if trusted or not options.get("read_s")
        else [Path(options["folder"]) / "manifest.json"],
        threads=form.threads,
        environment=environment_of(form),
        limits=limits or Limits(),
        trusted=trusted,
        allow_unconfined=setup.allow_unconfined,
        counted=setup.counted,
        ranks=form.ranks,
        budget=form.budget,
        exact_memory=form.exact_memory,
        serves=form.serves,
    )
    workspace = kept or Workspace(source)
    try:
        with (
            _drive(workspace, options, setup.waits) as drive,
            Child(workspace, setting, drive) as child,
        ):
            yield Arm(
                child,
                drive,
                gpus=form.ranks if setup.form_name == "cuda" else 0,
                round_of=form.round,
                prepared_for=form.prepared_for if form.prepare_s else None,
            )
    finally:
        workspace.empty() if kept else workspace.remove()


def environment_of(form: AnyForm) -> dict[str, str]:
    """What the processes of a form's loop have in theirs: OpenMP reads its number of threads there when torch is imported."""
    return form.environment | ({"OMP_NUM_THREADS": str(form.threads)} if form.threads else {})


def _drive(
    workspace: Workspace, options: dict[str, Any], waits: dict[str, list[float]]
) -> contextlib.AbstractContextManager[Drive | None]:
    """The slow drive that the lab's files lie on, its checkpoints go to, or its steps wait for, where it has one."""
    read_s, write_bps = options.get("read_s"), options.get("write_bps", 0.0)
    if not read_s and not write_bps and not waits:
        return contextlib.nullcontext()
    folder = options["folder"] if read_s else ""
    return Drive(workspace.folder / NAME, folder, read_s or 0.0, False, workspace.uid, write_bps, waits)


def start_training(arm: Arm, seed: int, keep_initial: bool) -> None:
    """Have a frozen arm begin its training; no process knows the seed before."""
    with arm.untimed_turn():
        arm.child.start(seed, keep_initial)


@contextlib.contextmanager
def reference_arm(source: str, setup: Setup, seed: int, compiles: bool = False, nudge: int = 0) -> Iterator[Arm]:
    """A trusted loop that has made its first steps from `seed`, for `compare`. compiles: whether it may. nudge: see `Child.start`."""
    form: Form = setup.form
    with open_arm(source, setup if compiles else setup.eager, trusted=True) as arm:
        arm.child.load()
        if form.prepare_s:
            arm.prepare(form.prepare_s)
        arm.child.start(seed, keep_initial=True, nudge=nudge)
        arm.warm_up(form.parity.steps)
        yield arm


def max_weights_bytes(trusted: Child, file: str) -> int:
    """Bytes that a submission's file of weights may have: twice a trusted loop's, for float64, and the names."""
    return 2 * (trusted.workspace.exchange / file).stat().st_size + (1 << 20)
