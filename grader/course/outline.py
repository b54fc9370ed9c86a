"""The course in the order in which it is learned: what the start notebook shows as a map.

A new lesson or lab is one line of `PHASES`. A lesson's title is its first heading, a lab's stands in its declaration."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from grader import labs, paths
from grader.errors import UserError
from grader.labs.lab import AnyLab

NOTEBOOKS = paths.course() / "notebooks"
GLOSSARY = NOTEBOOKS / "glossary.ipynb"
FIGURES = NOTEBOOKS / "figures"  # the lessons' drawings


@dataclass(frozen=True)
class Lesson:
    path: str  # below notebooks/, without .ipynb

    @property
    def file(self) -> Path:
        """As it was released; a learner's folder may have a copy."""
        return NOTEBOOKS / f"{self.path}.ipynb"

    @property
    def place(self) -> str:
        """Below the learner's folder."""
        return f"notebooks/{self.path}.ipynb"

    @property
    def title(self) -> str:
        """The notebook's first heading, as plain text. Learners open lessons in place: where one has none left, its path."""
        heading = next((line for line in self._text().splitlines() if line.startswith("# ")), f"# {self.path}")
        return heading[2:].strip().replace("`", "")

    @property
    def minutes(self) -> int | None:
        """What the notebook says that one needs."""
        said = re.search(r"(\d+) minutes", self._text())
        return int(said.group(1)) if said else None

    def _text(self) -> str:
        """All that is written in the notebook, "" where it cannot be read."""
        try:
            cells = json.loads(self.file.read_text(encoding="utf-8"))["cells"]
            return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        except (OSError, ValueError, LookupError, TypeError):
            return ""


@dataclass(frozen=True)
class LabStop:
    name: str  # one of grader.labs.NAMES
    core: bool = False  # on the core path; all others are electives
    minutes: int = 30  # about, as the lab's page says

    @property
    def place(self) -> str:
        """Below the learner's folder."""
        return f"work/{self.name}/{self.name}.ipynb"

    @property
    def file(self) -> Path:
        """The learner's own copy; it need not be there yet."""
        return paths.working_copy(self.name)

    @property
    def declared(self) -> AnyLab:
        return labs.get(self.name)


@dataclass(frozen=True)
class Phase:
    title: str
    milestone: str  # what one can do at its end
    stops: tuple[Lesson | LabStop, ...]


PHASES = (
    Phase(
        "Phase 1: See it",
        "Take a training loop that you have never seen, and say within ten minutes whether its input or the GPU holds it back.",
        (
            Lesson("1_instrumentation/1_throughput"),
            LabStop("1a_stopwatch"),
            Lesson("1_instrumentation/2_utilisation"),
            Lesson("1_instrumentation/3_profilers"),
            LabStop("1b_annotate"),
            Lesson("1_instrumentation/4_trace"),
            LabStop("1c_diagnose", core=True),
            Lesson("1_instrumentation/5_baseline"),
            LabStop("1d_mystery", core=True),
            Lesson("1_instrumentation/6_nsight"),
            LabStop("1e_retest", minutes=15),
        ),
    ),
    Phase(
        "Phase 2: Feed the GPU",
        "Shorten the gaps in which the GPU has nothing to do, and say why they were there.",
        (
            Lesson("2_data/1_disk_to_gpu"),
            Lesson("2_data/2_dataloader"),
            LabStop("2a_workers", core=True),
            Lesson("2_data/3_overlap"),
            LabStop("2b_transfers"),
            Lesson("2_data/4_transforms"),
            LabStop("2c_transforms"),
            Lesson("2_data/5_formats"),
            LabStop("2d_formats"),
            Lesson("2_data/6_syncs"),
            LabStop("2e_syncs"),
            Lesson("2_data/7_host"),
            LabStop("2i_host"),
            LabStop("2f_end_to_end", core=True),
            LabStop("2j_checkpoint"),
            LabStop("2g_healthy"),
            LabStop("2h_retest", minutes=15),
        ),
    ),
    Phase(
        "Phase 3: Make the step itself fast",
        "Map the three most expensive operations of a trace to lines of code, and say why they cost what they cost.",
        (
            Lesson("3_step/1_roofline"),
            LabStop("3b_top_ops", core=True),
            Lesson("3_step/2_precision"),
            LabStop("3a_precision", core=True),
            LabStop("3m_fp16"),
            Lesson("3_step/3_shapes"),
            LabStop("3c_shapes"),
            Lesson("3_step/4_launches"),
            LabStop("3d_tiny_ops"),
            Lesson("3_step/5_compile"),
            LabStop("3e_compile"),
            Lesson("3_step/6_attention"),
            LabStop("3f_attention"),
            Lesson("3_step/7_memory"),
            LabStop("3g_leak"),
            Lesson("3_step/8_fit"),
            LabStop("3h_fit"),
            Lesson("3_step/9_kernels"),
            LabStop("3i_triton", minutes=90),
            Lesson("3_step/10_communication"),
            LabStop("3j_communication"),
            Lesson("3_step/11_lengths"),
            LabStop("3n_lengths", minutes=45),
            Lesson("3_step/12_vocabulary"),
            Lesson("3_step/13_fp8"),
            Lesson("3_step/14_sharding"),
            LabStop("3o_sharded"),
            LabStop("3k_healthy"),
            LabStop("3l_retest", minutes=15),
        ),
    ),
    Phase(
        "Phase 4: Real models, fast",
        "Take a real training job that is slow in many ways at once, choose your own order, and train the same model many times faster.",
        (
            Lesson("4_models/1_own_loop"),
            LabStop("4a_resnet50", core=True, minutes=60),
            LabStop("4b_nanogpt", core=True, minutes=60),
            LabStop("4c_unet", minutes=60),
            LabStop("4d_trainer", minutes=60),
            LabStop("4e_inference", minutes=60),
            LabStop("4f_your_repository", minutes=60),
            Lesson("4_models/2_rules"),
            Lesson("4_models/3_order"),
            Lesson("4_models/4_long_runs"),
            Lesson("4_models/5_energy"),
        ),
    ),
)


def lab_stops() -> list[LabStop]:
    """All labs, in order."""
    return [stop for phase in PHASES for stop in phase.stops if isinstance(stop, LabStop)]


def lessons() -> list[Path]:
    """The notebooks of all lessons, in their order; also of those that are not in the outline."""
    return sorted(NOTEBOOKS.glob("[0-9]_*/[0-9]*_*.ipynb"))


def start(name: str) -> Path:
    """Copy what is missing of a lab's released folder to work/, and return the notebook's path. UserError where it cannot be made."""
    lab = labs.get(name).name
    source, notebook = paths.course() / "labs" / lab, paths.working_copy(lab)
    target = notebook.parent
    if paths.installed() and not paths.laid():
        raise UserError(
            f"{Path.cwd()} lies in no folder of the course. Make one with `grader course FOLDER`, and go there."
        )
    if not source.is_dir():
        raise UserError(f"{source} is missing. Run `make release`, or get the course anew.")
    try:
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            partial = target.with_name(f".{lab}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(source, partial)
            partial.rename(target)
        elif not notebook.exists():
            partial = notebook.with_name(f".{lab}.partial")
            shutil.copyfile(source / notebook.name, partial)
            partial.rename(notebook)
    except OSError as error:
        raise UserError(
            f"{notebook} cannot be made: {error.strerror}. Use a copy of the course in a folder that is yours to write to."
        ) from None
    return notebook
