"""Did the timed steps do what they cannot do without, and can they have been as fast as they were measured?"""

from collections.abc import Sequence

from grader import machine
from grader.devices import PEAKS
from grader.labs.lab import Form
from grader.measure.decision import Pair
from grader.result import FAIL, INCONCLUSIVE
from grader.sandbox.processes import Doing
from grader.trace import Metrics

# Of a rank's share of a batch what its matrix products may be, in any step: to compute the forward pass once more adds a third.
LEAST_OF_SHARE, MOST_OF_SHARE = 0.9, 1.5
# Of the processor time that the starter's main process takes for a step, in 2a: 24 to 36% with 4 or 16 worker processes, 87 to
# 100% where its own threads decode (two cores that others used as well)
LEAST_IN_MAIN, MOST_IN_MAIN = 0.08, 0.6
# of a loop's work, in the thread that a trace shows (seen: 99 to 100%); of its time, asleep beside waits for data (seen: 7 to 9%)
LEAST_SHOWN, MOST_ASLEEP = 0.8, 0.25
# A profiled step's length, in timed ones, up to which both may be the same step. The profiler itself adds 30 to 60% where a loop is
# all small operators (3j on a CPU), and a loop that waits for its launches took 3.1 times as long (H200); one that trained alone while
# nobody profiled it was 20 times as fast.
SAME_STEP = 5.0
# What ranks do in a timed step, of what they do in a profiled one: bytes (honest loops: 0.99 to 1.01), processor time of a rank that is
# not profiled (0.8 to 2, on two busy cores), and of the rank that does least beside the one that does most (0.7 and more)
# What none of it tells: ranks that train alone, and send and compute as much for nothing beside. Their own steps took 21 ms of processor time
# each, where the half fix that they showed while they were profiled takes 72 to 80, and the solution 41 to 47.
LEAST_SENT, LEAST_OF_PROFILED, LEAST_OF_RANKS = 0.9, 0.5, 0.4
OF_OPERATORS = ("cpu_ops", "score_matrices", "work")  # metrics that are made of a CPU's operators


def least_step_s(gpu: str | None, flops: float | None) -> float | None:
    """The shortest possible time, in seconds, of a step that must do `flops` operations; None where it is unknown."""
    peaks = PEAKS.get(gpu or "")
    return flops / peaks.half if peaks and peaks.half and flops else None


def impossible(form: Form, form_name: str, pairs: Sequence[Pair]) -> str:
    """Why the measured rate cannot be true, or ''."""
    least = least_step_s(machine.gpu_name(), form.flops) if form_name == "cuda" else None
    fastest = min(pair.submission_s for pair in pairs if not pair.disturbed)
    if least is None or fastest >= least:
        return ""
    return (
        f"Not counted: a step took {1e3 * fastest:.2f} ms, but this GPU needs at least {1e3 * least:.2f} ms "
        "for the matmuls of a step. Something was not computed."
    )


def missing_work(form: Form, metrics: Metrics) -> tuple[str, str] | None:
    """Why it is not known, or not so, that a step did what it cannot do without, no more at once than it may: status, reason."""
    if (form.exchanged or form.min_h2d_bytes or form.max_tokens_per_forward) and (other := _other_step(metrics)):
        return INCONCLUSIVE, other
    given, copied = metrics.exchanged, metrics.h2d_bytes
    if form.exchanged is not None:
        if given is None:
            return INCONCLUSIVE, (
                "Not counted: the trace doesn't show what the ranks exchange. The profiler notes no sizes "
                "for a list of more than 30 tensors. Send one tensor, or shorter lists, and check again."
            )
        if metrics.smallest_group is not None and metrics.smallest_group < form.ranks:
            return FAIL, (
                f"Not counted: the trace shows a process group of {metrics.smallest_group} of the {form.ranks} ranks, so the "
                "others get nothing from it. Average the gradients in the default group, which has all ranks."
            )
        if given < form.exchanged:
            return FAIL, (
                f"Not counted: each rank sends {given:,.0f} values to the others per step. Averaging the gradients takes at "
                f"least {form.exchanged:,}, a quarter of them. A part of the step is missing."
            )
    if form.min_h2d_bytes is not None:
        if copied is None:
            return INCONCLUSIVE, "Not counted: the trace doesn't show what was copied to the GPU. Check again."
        if copied < form.min_h2d_bytes:
            return FAIL, (
                f"Not counted: {copied / 1e6:.1f} MB were copied to the GPU per step, and a batch has more. "
                "Don't keep the data set on the GPU. It stands for one that doesn't fit there."
            )
    return _not_its_share(form, metrics) if form.max_tokens_per_forward is not None else None


def _other_step(metrics: Metrics) -> str:
    """Why the profiled steps may not be those that were timed, or ''."""
    if not metrics.step_ns or not metrics.step_ns_traced:
        return ""
    longer = metrics.step_ns_traced / metrics.step_ns
    if longer <= SAME_STEP:
        return ""
    return (
        f"Not counted: a profiled step takes {longer:.2g} times as long as a timed one. So the trace doesn't tell what the timed steps "
        "did. A loop must do the same whether or not it is profiled. If it does, something else slowed it meanwhile. Check again."
    )


def _not_its_share(form: Form, metrics: Metrics) -> tuple[str, str] | None:
    """Why it is not known, or not so, that the recorded rank trained on its share of each batch, in parts that are small
    enough. Told from the matrix products, which no loop can do without: a lookup has other forms, and zeros can be sent."""
    largest, steps = metrics.largest_product, metrics.per_step.get("product_flops")
    if largest is None or not steps:
        return INCONCLUSIVE, (
            "Not counted: the trace doesn't show all matmuls of a step, so nobody knows how many tokens rank 0 trained on. "
            "A CUDA graph hides matmuls, and a convolution doesn't show its own. Leave these out and check again."
        )
    assert form.max_tokens_per_forward and form.matrix and form.flops
    taken = largest / (2 * form.matrix)  # a product and a sum for each number in the matrix and each token
    if taken > form.max_tokens_per_forward:
        return FAIL, (
            f"Not counted: a forward pass took {taken:,.0f} tokens at once, as its largest matmul shows. At "
            f"most {form.max_tokens_per_forward:,} are allowed, one micro-batch. The whole batch stands for "
            "one that doesn't fit into memory."
        )
    # of each step: ranks that take turns with whole batches have the right mean
    share = form.work[0] / form.ranks
    least, most = LEAST_OF_SHARE * share, MOST_OF_SHARE * share
    for done in (flops / form.flops * share for flops in steps):
        if not least <= done <= most:
            return FAIL, (
                f"Not counted: in one step rank 0 did the matmuls of {done:,.0f} tokens, and its share of the "
                f"batch is {share:,.0f}. Each rank must train on its own share in every step, with PyTorch's "
                f"own matmuls. From {least:,.0f} to {most:,.0f} tokens are allowed."
            )
    return None


def idle_ranks(form: Form, form_name: str, timed: Doing | None, profiled: Doing | None) -> tuple[str, str] | None:
    """Why it is not known, or not so, that the ranks did the same in each timed step as in the profiled ones, of which the trace tells:
    status, reason. By what the kernel counts; GPUs talk to each other past it."""
    if form.exchanged is None or form_name != "cpu":
        return None
    if not timed or not profiled:
        return (
            INCONCLUSIVE,
            "Not counted: nobody could see from outside what the ranks sent to each other. Check again.",
        )
    # a byte for each gradient: in bf16 there are two
    least = max(4.0 * form.ranks * form.exchanged, LEAST_SENT * profiled.sent)
    if timed.sent < least:
        return FAIL, (
            f"Not counted: in a timed step the ranks sent {timed.sent / 1e6:.2f} MB to each other, and {profiled.sent / 1e6:.2f} MB in a "
            f"profiled one. At least {least / 1e6:.2f} MB are needed. Exchange the same in every step, whether or not it is profiled."
        )
    shares = [now / before for now, before in zip(timed.ran_s[1:], profiled.ran_s[1:], strict=True) if before]
    if min(shares, default=1.0) < LEAST_OF_PROFILED or min(timed.ran_s) < LEAST_OF_RANKS * max(timed.ran_s):
        ran, before = (", ".join(f"{1e3 * each:.1f}" for each in doing.ran_s) for doing in (timed, profiled))
        return FAIL, (
            f"Not counted: in a timed step the ranks worked for {ran} ms of processor time, and in a profiled one for {before} ms. Each rank "
            "must train on its own share in every step, whether or not it is profiled."
        )
    return None


def made_in_main(form_name: str, main_step_s: tuple[float, float] | None) -> str:
    """Why it is not known that samples are made outside of the main process, or ''. What is read elsewhere can be handed to it for
    nothing, the work of decoding cannot. main_step_s: the main process's processor time a step, the starter's and the submission's."""
    if not main_step_s:
        return ""
    starter_s, submission_s = main_step_s
    least = 0.0 if form_name == "cuda" else LEAST_IN_MAIN  # the GPU trains there, and asks for next to nothing
    if least * starter_s <= submission_s <= MOST_IN_MAIN * starter_s:
        return ""
    return (
        f"The training process worked for {1e3 * submission_s:.1f} ms of processor time per step. The untouched loop makes "
        f"its samples itself and takes {1e3 * starter_s:.1f} ms. Training alone takes from {least:.0%} to {MOST_IN_MAIN:.0%} "
        "of that. So nobody knows whether other processes make your samples, and this one your steps. Let other processes "
        "hand over finished tensors, so that this one only trains and waits."
    )


def beside_the_trace(metric: str, value: float, form_name: str, main_thread: tuple[float, float] | None) -> str:
    """Why there may be more of a metric than a trace shows; '' where nothing speaks for it. The profiler looks into the main thread,
    and into no thread or process that the loop has started. main_thread: see `Arm.main_thread`."""
    if not main_thread or form_name == "cuda":  # a GPU's backward pass has a thread of its own, into which it does look
        return ""
    share, slept = main_thread
    if metric in OF_OPERATORS and share < LEAST_SHOWN:
        return (
            f"The trace shows the main thread's operators, and that thread did {share:.0%} of the loop's work on the processor. Which "
            "operators the rest calls is not known. Train in the main thread, and check again."
        )
    if metric == "data_wait" and slept > value + MOST_ASLEEP:
        return (
            f"The main thread slept for {slept:.0%} of the timed steps, and the trace shows a wait for data of {value:.0%}. What else it "
            "waits for is not known. Take the batches from a DataLoader, and check again."
        )
    return ""
