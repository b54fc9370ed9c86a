"""What all labs' pages say in the same words, made from each lab's declaration, for the solutions' cells tagged "generated:NAME"."""

from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.notebooknode import NotebookNode

from grader import labs
from grader.checks import order as order_check
from grader.checks.logs import LATEST
from grader.checks.prediction import MADE_FOR, RULE
from grader.frontends import sizes
from grader.frontends.notebook.prediction import MEANING
from grader.grading.half import says_bf16
from grader.labs.lab import AnyLab, Budget, Growth, Lab
from grader.sandbox.setting import QUICK_LIMITS, Limits
from grader.trace.job_words import listed

GENERATED = "generated:"

YOURS = """\
**Yours.** All code inside the function and outside of it.

**Set-up.** We don't time what you do once before the first step, such as compiling the model or converting the whole data set. Batches
that you prepare in advance gain you nothing. We let your loop use them up before the clock starts. {limit}

**What must stay.** Your loop must train the same model on the same batches of `job.batches`. Loss, optimizer and learning rate stay as
they are. Each batch is one optimizer step with one `yield`. The weights stay fp32.{formats}

**What you yield.** A plain 0-d tensor, `loss.detach()`. A Python number doesn't count."""

SERVES = """\
**Yours.** All code inside the function and outside of it.

**Set-up.** We don't time what you do before the first answer, nor the first answers themselves. You may compile in either place. {limit}

**What must stay.** The answers to each request, as the loop yields them."""

LOOKING = """\
| call | what you get | when you need it |
|---|---|---|
| `lab.run()` | {result}, and the time of a step | does the loop run? |
| `lab.peek()` | what one step does, in numbers, without timing | after each small change |
| `lab.profile()` | the timeline of a step from its [trace](../../notebooks/glossary.ipynb#trace), and what it waits for | to find out why |

None of these calls gives or takes points. Each runs your `%%submission` cell as it was when you last ran it."""

COUNTED = """\
*Arithmetic* counts all matmuls with weights, forward and backward, at 6 FLOP for each weight and token. Attention's two matmuls have
no weights, so they have their own row. That row counts all scores, though a causal mask needs only half of them."""

SMALLER = "If your GPU has too little free memory for the first column, you get the largest form that fits."

SOLVED_IN_BF16 = """\
Most of the course's solutions use bf16. To run such a solution by hand, write `torch.float16` for `torch.bfloat16`, and add the scaler."""

FIX = """\
## 3. Fix

Go back up to *The loop*. If you see something to improve, change that one thing and run its cell. Then run the cells under *Look*
again. When you see nothing more to improve, run `lab.check()`{goal}"""


def refresh(solutions: Path) -> list[Path]:
    """Write the generated cells of all labs below `solutions`. Returns the notebooks that changed."""
    files = (solutions / name / f"{name}.ipynb" for name in labs.NAMES)
    return [file for file in files if file.is_file() and fill(file, labs.get(file.stem))]


def fill(file: Path, lab: AnyLab) -> bool:
    """Write the generated cells of one notebook; whether that changed it."""
    old = file.read_text(encoding="utf-8")
    notebook = nbformat.reads(old, as_version=4)
    for cell in notebook.cells:
        if name := generated(cell):
            cell.source = CELLS[name](lab)
    new = nbformat.writes(notebook).rstrip("\n") + "\n"
    if new.rstrip("\n") == old.rstrip("\n"):
        return False
    file.write_text(new, encoding="utf-8")
    return True


def generated(cell: NotebookNode) -> str:
    """Which of CELLS a cell holds; "" for none."""
    names = [tag.removeprefix(GENERATED) for tag in cell.metadata.get("tags", []) if tag.startswith(GENERATED)]
    return names[0] if names else ""


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _sizes(lab: AnyLab) -> str:
    parts = [sizes.markdown(lab)]
    if isinstance(lab, Lab):
        older = says_bf16(lab)
        parts += [
            COUNTED if "attention's scores" in parts[0] else "",
            SMALLER if any(form.measured for form in lab.smaller) else "",
            _without_gpu(lab),
            _peaks() if "cuda" in lab.forms else "",
            _folded("On a GPU before Ampere, such as Colab's T4", f"{older} {SOLVED_IN_BF16}") if older else "",
        ]
    return "\n\n".join(filter(None, parts))


def _peaks() -> str:
    return _folded(
        "Peaks, to work out a prediction",
        "The cell above prints these peaks for your GPU, if we measured one like it. Otherwise, [the roofline lesson]"
        "(../../notebooks/3_step/1_roofline.ipynb) measures them. A peak is the most that a large matmul or copy reaches. "
        f"Your loop's kernels may be slower.\n\n{sizes.peaks()}",
    )


def _without_gpu(lab: Lab) -> str:
    if "cpu" not in lab.forms:
        return "This lab needs an NVIDIA GPU. Without one you can read it and lock a prediction, and every check says NOT MEASURED."
    if lab.forms["cpu"].minimum_gain is None:
        what = "answers" if lab.serves else "training"
        return f"Without a GPU this lab only compares your {what} with the untouched loop's. Every check then says NOT MEASURED."
    unmeasured = [check for check in lab.checks if not lab.measures(check, "cpu")]
    rest = " Checks that need a GPU then say NOT MEASURED." if unmeasured else ""
    return f"Without a GPU you get the sizes in the column *on a CPU*.{rest}"


def _contract(lab: AnyLab) -> str:
    assert isinstance(lab, Lab)
    name, step = (
        ("serve", "answers one request, yields its answers")
        if lab.serves
        else ("train", "makes one optimizer step, yields its loss")
    )
    limit = (
        f"If the first {'answer' if lab.serves else 'step'} takes longer than {Limits().first_step / 60:g} minutes "
        f"({QUICK_LIMITS.first_step / 60:g} in quick mode), we stop the loop."
    )
    formats = " You need no other number format in this phase. Formats come in phase 3." if lab.phase == 2 else ""
    parts = [
        f"**A generator.** `{name}(job)` {step}, and goes on when it's asked for the next. It never ends by itself. It holds no timing "
        "code, because the grader decides how long to warm up, what to time and when to stop.",
        SERVES.format(limit=limit) if lab.serves else YOURS.format(limit=limit, formats=formats),
    ]
    if lab.logs:
        names = listed([f"`{each}`" for each in lab.logs.names])
        parts.append(
            f"**What must be logged.** {names} of each step. The grader compares them with the untouched loop's. A value may come up to "
            f"{LATEST} steps late."
        )
    if lab.checkpoints:
        parts.append(
            "**What must be saved.** Each step N that is a multiple of `job.every` has a checkpoint `step-N`. It holds the same tensors as the "
            "untouched loop's, with their values after step N. It must arrive on the drive within `job.every` steps, so there is never "
            "more than one on its way. The grader reads the files on the drive and compares them with the untouched loop's."
        )
    parts.append(
        "**`%%submission`.** Only cells that begin with this line are measured and graded. Put your imports and helpers into such a cell, too."
    )
    folded = _folded(f"What <code>{name}(job)</code> is, and what must stay", "\n\n".join(parts))
    return f"Here is the loop. Read it and run its cell. Change nothing until you have made your prediction and profiled the loop as it is.\n\n{folded}"


def _prediction(lab: AnyLab) -> str:
    assert isinstance(lab, Lab)
    factor, made_for = lab.prediction.factor, f" {MADE_FOR}" if lab.scored_on_both else ""
    causes = [
        f'| [`"{name}"`](../../notebooks/glossary.ipynb#{name}) | {meaning} |' for name, meaning in MEANING.items()
    ]
    judged = (
        f"You get half of the {lab.prediction.points:g} points for the cause and half for the gain. If you predict 6, you are right with any "
        f"gain from {6 / factor:.2g} to {6 * factor:.2g}.{made_for}"
    )
    whose = f"{RULE.format(factor=factor)} While your loop doesn't run, its prediction earns nothing."
    return "\n".join(
        [
            "| cause | where the time of a step goes |",
            "|---|---|",
            *causes,
            "",
            "A loop can have several troubles. Name the one that takes most of a step. Where two take about as much, either is right. "
            "A matmul that is slow because of its size or number format counts as calculating.",
            "",
            judged,
            "",
            _folded("Which gain your prediction is compared with", whose),
            "",
            "Your first complete prediction is locked, so make it **before** you profile.",
        ]
    )


def _look(lab: AnyLab) -> str:
    assert isinstance(lab, Lab)
    return LOOKING.format(result="one number for each of a few answers" if lab.serves else "the losses of a few steps")


def _fix(lab: AnyLab) -> str:
    assert isinstance(lab, Lab)
    if isinstance(lab.memory, Growth):
        goal = ", which prints the growth that is left. If memory still grows, go on."
    elif lab.throughput.healthy:
        goal = "."
    else:
        goal = ", which prints the target. If you haven't reached it, go on."
    return FIX.format(goal=goal)


def _points(lab: AnyLab) -> str:
    assert isinstance(lab, Lab)
    same = "gives the same answers" if lab.serves else "trains the same model"
    parts = [
        f"**First, your loop must do the same work.** We run the first steps of both loops from the same seed. Their results may "
        f"differ only by rounding. We check the timed steps, too. Unless your loop {same}, nothing else counts."
    ]
    parts.append(_healthy(lab) if lab.throughput.healthy and not lab.memory else _throughput(lab))
    if isinstance(lab.memory, Growth):
        parts.append(
            f"**{lab.memory.title}.** *{lab.throughput.title}* earns at most the share of the leak that is gone. If half of the growth is left, "
            f"*{lab.throughput.title}* earns half of its points."
        )
    own = [lab.order, lab.memory if isinstance(lab.memory, Budget) else None]
    bounded = [check.title for check in (*lab.trace, *own) if check]
    if bounded:
        listed = "\n".join(f"- *{title}*" for title in bounded)
        parts.append(
            f"**The other checks.** They count only as far as your loop got faster. If you earn half of *{lab.throughput.title}*'s points, each of "
            f"these checks earns at most half of its own points:\n\n{listed}"
            if len(bounded) > 1
            else f"**{bounded[0]}.** This check counts only as far as your loop got faster. If you earn half of *{lab.throughput.title}*'s points, it "
            "earns at most half of its own points."
        )
    if lab.order:
        parts.append(
            f"**{lab.order.title}.** The grader makes your {lab.order.count} changes in the untouched loop, one after another, and times it "
            f"after each of them. {order_check.rule(lab.order)} Each earns a third of the points."
        )
    parts.append("**Your explanation.** A person reads it.")
    return _folded("How points are given", "\n\n".join(parts))


def _throughput(lab: Lab) -> str:
    if lab.throughput.healthy:
        return f"**{lab.throughput.title}.** You get full points if your loop isn't slower than the untouched one."
    return (
        f"**{lab.throughput.title}.** You get full points at the target, which `lab.check()` prints. If the reference solution's gain was "
        "measured on your machine or on one of its kind, the target is a little below that gain. Otherwise the target is a fixed number. "
        "Points grow with the logarithm of the speed-up. If the target were 9x, 3x would earn half. A measured gain has an error, so "
        "`lab.check()` gives a 90% [interval](../../notebooks/glossary.ipynb#interval) for it. We use its lower end."
    )


def _healthy(lab: Lab) -> str:
    return (
        f"**{lab.throughput.title}.** You get full points if your loop isn't slower than the untouched one. Below 0.97 of its speed you "
        "lose points, and at 0.64 they are all gone. You need a complete prediction, right or wrong, for any of them."
    )


CELLS: dict[str, Callable[[AnyLab], str]] = {
    "sizes": _sizes,
    "contract": _contract,
    "prediction": _prediction,
    "look": _look,
    "fix": _fix,
    "points": _points,
}
