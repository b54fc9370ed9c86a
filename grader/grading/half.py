"""What a GPU without some units asks for: the course's own loops in fp16, checks that such a GPU can pass, a target it can reach."""

import math
import re
from collections.abc import Collection
from dataclasses import replace

from grader import machine
from grader.checks.parity import NAME as PARITY
from grader.labs.lab import AnyLab, AtLeast, Form, Hints, TraceCheck
from grader.measure.calibration import LEAST_GAIN
from grader.result import FAIL, CheckResult

# As in lab 3m: a gradient of 1e-11 is more than fp16's smallest number then, and one of 7 still below its largest
INIT_SCALE = "2.0**13"
SIXTEEN_BITS = ("half_share", "fp16_share", "tensor_core_share.yes")  # metrics that need matmuls in 16 bits
NO_16_BITS = "This GPU has no units for matmuls in 16 bits, so it cannot show this; no points are given for what was not measured."
SCALER = f"GradScaler(init_scale={INIT_SCALE})"
IN_FP16 = f"This GPU has no bf16. Take torch.float16 and a {SCALER} in its place, as lab 3m shows."
LEFT_OUT = (
    f"If you use a GradScaler, it may have left out a step. It does so when its scale is too high, and its own first scale of 65,536 can be. "
    f"Begin with {SCALER}."
)
NOT_CALIBRATED = (
    "the least gain that can be told here, since the lab's own minimum holds for GPUs with bf16; `grader calibrate` "
    "measures what this GPU can gain"
)


def lacks_on(form_name: str) -> list[str]:
    """What the GPU has no units for, see `machine.gpu_lacks`; [] for a form that is not measured on one."""
    return machine.gpu_lacks() if form_name == "cuda" else []


def in_fp16(source: str) -> str:
    """A loop of the course's in fp16 with a scaler in place of bf16; as it is where it has no bf16, or knows of older GPUs itself."""
    if "GradScaler" in source or not re.search(r"bfloat16|\bbf16=", source):
        return source
    for bf16, fp16 in (
        (r"\btorch\.bfloat16\b", "torch.float16"),
        (r"\.bfloat16\(\)", ".half()"),
        (r"\bbf16=", "fp16="),  # Hugging Face's Trainer, which has a scaler of its own
        (
            r"^( *)(optimizer = .*)$",
            rf"\1\2\n\1scaler = torch.amp.GradScaler(job.device.type, init_scale={INIT_SCALE})",
        ),
        (r"\bloss\.backward\(\)", "scaler.scale(loss).backward()"),
        (r"^( *)optimizer\.step\(\)", r"\1scaler.step(optimizer)\n\1scaler.update()"),
    ):
        source = re.sub(bf16, fp16, source, flags=re.MULTILINE)
    return source


def on_device(check: TraceCheck, lacks: Collection[str]) -> tuple[TraceCheck, str]:
    """The check as a GPU that lacks these units can pass it; and why it cannot be measured there, '' where it can."""
    check = replace(check, hints=hints_here(check.hints, lacks))
    if check.metric in SIXTEEN_BITS and "fp16" in lacks:
        return check, NO_16_BITS
    if check.metric == "flash_share" and "flash" in lacks:  # any fused kernel writes no scores
        says = f"{check.says}, which this GPU does not have: another fused kernel counts as well"
        return replace(check, wanted=AtLeast(check.metric, 0.0), says=says), ""
    return check, ""


def says_bf16(lab: AnyLab) -> str:
    """What holds on a GPU before Ampere for a lab that speaks of bf16 or asks for flash kernels; '' for the others."""
    hints = [hint for check in lab.checks for hint in getattr(check, "hints", ())]
    flash = any(getattr(check, "metric", "") == "flash_share" for check in lab.checks)
    in_bf16 = in_fp16(lab.starter) != lab.starter and "bf16=False" not in lab.starter
    if not (in_bf16 or flash or any(map(_only_bf16, hints))):
        return ""
    return " ".join(
        [
            "A GPU before Ampere (T4, V100) has no units for bf16 and TF32. Where the lab says bf16, use fp16 with a GradScaler, as lab 3m shows. "
            f"Begin with `{SCALER}`. With the default scale it may leave out a step, and then you train a different model.",
            *(["There the untouched loop runs in fp16, too."] if in_bf16 else []),
            *(["Such a GPU has no flash kernels either, so any fused attention counts."] if flash else []),
        ]
    )


def _only_bf16(hint: str) -> bool:
    return "bf16" in hint and "fp16" not in hint


def hints_here(hints: Hints, lacks: Collection[str]) -> Hints:
    """What is said of bf16, on a GPU that has none."""
    if "bf16" not in lacks:
        return hints
    first, second, third = (f"{hint} {IN_FP16}" if _only_bf16(hint) else hint for hint in hints)
    return first, second, third


def parity_here(check: CheckResult, lacks: Collection[str]) -> CheckResult:
    """The verdict on the training, with what a loop in fp16 may have done wrong where there is no bf16."""
    if check.name != PARITY or check.status != FAIL or "bf16" not in lacks:
        return check
    return replace(check, hint=f"{check.hint} {LEFT_OUT}")


def least_target(form: Form, lacks: Collection[str]) -> tuple[float | None, str]:
    """The gain that earns full points where a machine was never calibrated, and where it comes from where that is not the lab."""
    declared = form.minimum_gain
    if declared is None or "bf16" not in lacks:
        return declared, ""
    told = max(LEAST_GAIN, math.exp(8 * form.noise))
    return (told, NOT_CALIBRATED) if told < declared else (declared, "")
