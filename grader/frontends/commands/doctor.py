"""`grader doctor`: what this machine can grade, and what is missing."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from grader import calibrate, labs, machine
from grader.data.cache import cache_dir
from grader.devices import PEAKS, PRETEND, keep, measured_here, peaks, pretence
from grader.frontends.commands.labs import form_here
from grader.grading.forms import fitted, lacking
from grader.labs.lab import AnyLab, Lab
from grader.measure import calibration
from grader.paths import REPOSITORY, with_this_package
from grader.safe_text import cores_text
from grader.sandbox import rights
from grader.sandbox.probe import Confinement, confinement

NOT_CALIBRATED = ", not calibrated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 where marks can be given, else 1."""
    confined = _show_machine()
    print()
    calibrated = [_show_lab(labs.get(name)) for name in labs.NAMES]
    if not all(calibrated):
        print(
            '\n"not calibrated" means that full points need the lab\'s own minimum gain, even if this machine could gain more.'
            "\n`grader calibrate LAB` measures how much it can gain. For the marks of a class, add --for-class."
        )
    return 0 if confined.files else 1


def gradable() -> list[str]:
    """The labs of which this machine can measure something."""
    found = [(lab, form_here(lab)) for lab in map(labs.get, labs.NAMES)]
    return [lab.name for lab, form in found if form and not lacking(lab, form) and lab.measurable(form)]


def _show_machine() -> Confinement:
    """Raises UserError where nothing can be written, when all that needs no file is said."""
    facts, versions = machine.facts(), machine.versions()
    own, why = machine.share(int(machine.has_gpu()))
    of_a_grade = "" if why == "all" else f", of which a grade has {len(own)} ({machine.written(own)}, {why})"
    print(f"processor    {facts['cpu']}, {cores_text(facts['cores'])}{of_a_grade}")
    print(f"GPU          {facts['gpu'] or 'none, so labs run in their CPU form or say NOT MEASURED'}")
    if lacks := machine.gpu_lacks():
        print(f"             has no units for {', '.join(lacks)}. Train in fp16 with a GradScaler, as lab 3m shows")
    print(f"versions     {', '.join(f'{k} {v}' for k, v in versions.items())}")
    sys.stdout.flush()
    confined = confinement()
    print(f"confinement  what submissions can't get through, tried just now (Landlock ABI {confined.landlock}):")
    for line in confined.lines():
        print(f"  {line}")
    if not confined.files:
        print(
            "  Files aren't confined here, so there are no marks unless you pass --allow-unconfined. For your own "
            "learning nothing is missing."
        )
    if shared := rights.too_little_shared_memory():
        print(f"/dev/shm     {shared}")
    print(f"data         {cache_dir()} ({shutil.disk_usage(cache_dir()).free / 1e9:.0f} GB free)")
    compiler = shutil.which("gcc") or shutil.which("cc") or "none found, so torch.compile won't work"
    print(f"C compiler   {compiler}")
    state = machine.gpu_state()
    if state:
        busy = "in use by another program" if state.utilisation >= machine.BUSY_PERCENT else "free"
        print(f"GPU now      {busy}, {state.free_bytes / 1e9:.0f} GB free{', throttling' if state.throttling else ''}")
        _show_peaks(facts["gpu"])
    return confined


def _show_peaks(gpu: str) -> None:
    """What the GPU reaches at most. Of one that nobody measured it is measured now, and kept."""
    if pretence():
        print(f"peaks        not measured: {PRETEND} is set")
        return
    kept = ""
    if not (known := PEAKS.get(gpu) or measured_here(gpu)):
        print("peaks        measured now, in about ten seconds")
        try:
            kept = f", kept in {_measure_peaks(gpu)}"
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"             not measured: {str(error).splitlines()[0][:200]}")
        known = peaks(gpu)
    if known:
        rates = (("16 bits", known.half), ("TF32", known.tf32), ("fp32", known.fp32))
        shown = [f"{rate / 1e12:.0f} TFLOP/s in {what}" for what, rate in rates if rate]
        shown += [f"{known.memory / 1e12:.2f} TB/s in its memory"] if known.memory else []
        print(f"             {', '.join(shown)} ({known.source}{kept})")


def _measure_peaks(gpu: str) -> Path:
    """Returns the file in which they are kept. Raises SubprocessError, OSError and ValueError."""
    if not machine.wait_idle():
        raise ValueError("another program keeps this GPU busy. Call `grader doctor` again when it is free.")
    command = [sys.executable, "-m", "grader.workloads.peaks"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, env=with_this_package(), cwd=REPOSITORY)
    if made.returncode:
        raise ValueError((made.stderr.strip().splitlines() or ["it failed"])[-1])
    return keep(gpu, machine.gpu_capability(), json.loads(made.stdout))


def _show_lab(lab: AnyLab) -> bool:
    """False for a lab that should be calibrated and is not."""
    form = form_here(lab)
    lacks = lacking(lab, form) if form else "needs an NVIDIA GPU"
    if form is None or lacks:
        print(f"{lab.name:<16} not here: {lacks}")
        return True
    known = ""
    lab, why = fitted(lab, form)
    if isinstance(lab, Lab) and calibrate.calibrated(lab, form):
        gain, source = calibration.reference_gain(lab, form)
        known = f", solution gains {gain:.1f}x ({source})" if gain else NOT_CALIBRATED
    print(f"{lab.name:<16} {lab.measurable(form):g} of {lab.max_score:g} points can be measured{known}")
    if why:
        print(f"{'':<16} {why}")
    return known != NOT_CALIBRATED
