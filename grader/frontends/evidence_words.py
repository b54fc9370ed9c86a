"""What the fields of a check's evidence are called in a report; the result file keeps the fields' own names."""

from typing import Any

from grader.safe_text import inline, key_words
from grader.trace import catalogue

NAMES = {
    # the same training
    "loss_difference": "losses differ from the starter's on average by",
    "loss_tolerance": "losses may differ by",
    "first_loss_difference": "the first loss differs by",
    "update_norm_ratio": "how far the weights moved, beside the starter's",
    "norm_tolerance": "that may differ by",
    "update_cosine": "direction of the weights' change: cosine with the starter's",
    "cosine_at_least": "that cosine must be at least",
    "steps_in_all": "steps of the whole run",
    "worst_window": "ten losses in a row differ at worst by",
    "window_tolerance": "ten losses in a row may differ by",
    "replayed": "beside the reference solution",
    "found": "found",
    "allowed": "allowed",
    "twin": "rounding alone gives",
    "norm": "how far the weights moved differs by",
    "distance": "direction of the weights' change, 1 - cosine",
    "loss": "losses differ by",
    "held_out": "loss on held-out data differs by",
    "stretch": "direction over the last steps, 1 - cosine",
    "untold": "rounding from this seed may explain the difference",
    "held_out_loss": "loss on held-out data",
    "reference_held_out_loss": "loss on held-out data, reference solution",
    "held_out_tolerance": "these may differ by",
    "worst_beside_the_starter": "answers differ from the starter's at worst by",
    "worst_beside_the_reference_solution": "answers differ from the reference solution's at worst by",
    "files_read": "files read from the drive",
    "checkpoints": "checkpoints on the drive",
    "files_needed": "files that these samples need",
    # long runs
    "band_from": "long runs begin at step",
    "band_to": "long runs end at step",
    "band_seeds": "seeds of the long runs",
    "band_made_on": "long runs made on",
    # the prediction
    "within_factor": "the gain is right within a factor of",
    "gains": "measured gains",
    # the order of changes
    "on_top": "each on top of those before gains",
    "blocks_differ": "two blocks of the same loop differ by up to",
    "rungs_ms": "the untouched loop with these changes, ms per step",
    # speed
    "gain": "speed-up",
    "gain_lower": "90% interval from",
    "gain_upper": "90% interval to",
    "gain_certain": "speed-up that is certain",
    "noise": "single pairs scatter by",
    "target": "speed-up for full points",
    "reference_gain": "speed-up of the reference solution",
    "target_source": "the target is",
    "starter_ms": "starter, ms per step",
    "submission_ms": "submission, ms per step",
    "alone_ms": "each loop alone, ms per step",
    "pairs": "pairs of timed blocks, ms per step of starter and submission",
    "pairs_left_out": "pairs that don't count",
    "lost": "share of each block that other programs took",
    "lost_to_others": "largest such share",
    "compile_s": "compiling, s",
    "cores": "cores that the training process worked on at once",
    "slowed": "the starter was slowed beside the submission by a factor of",
    "overstated": "the submission was flattered beside the starter by a factor of",
    "worked_ahead": "the loop could have worked ahead",
    "untouched": "this is the starter itself",
    "prepare_s": "preparation, s",
    "prepare_ms_a_step": "preparation, ms per step",
    # memory
    "grows_kb_a_step": "memory grows per step by, KB",
    "of_it_on_the_gpu": "of this on the GPU, KB",
    "starter_grows_kb_a_step": "the starter's grows per step by, KB",
    "at_most_kb_a_step": "up to this counts as level, KB",
    "held_in_advance_mb": "held in advance (GPU, main memory), MB",
    "levels_mb": "step, GPU memory and main memory, MB",
    "peak_mb": "memory at the peak, MB",
    "budget_mb": "the budget, MB",
    "allowed_mb": "allowed, MB",
    # kinds of labs that are no training loop
    "answered": "your answer",
    "step_ms": "ms per step, without the profiler",
    "speed": "speed, of the plain loop's",
    "lower": "90% interval from",
    "upper": "90% interval to",
    "at_most_lost": "speed that may be lost",
    "pairs_ms": "pairs of timed blocks, ms per step of the plain loop and the submission",
    "plain_share": "part of the roof that separate operations reach",
    "gb_per_s": "bytes moved, GB/s",
    "us_a_call": "µs per call, in each round",
    "looks_apart": "two looks at one result differ by",
    "benchmark_says": "the benchmark says, samples/s",
    "grader_measured": "the grader measured before and after it, samples/s",
    "off": "off by",
    "within": "at most that far off",
    "requests": "requests that were compared",
    # the trace
    "at_least": "wanted: at least",
    "at_most": "wanted: at most",
    "steps": "steps looked at",
    "names": "values that were logged",
}
ENDINGS = {
    "_of_the_tolerance": "{}: part of the tolerance that is used",
    "_of_the_band": "{} in long runs of the reference",
    "_half_width": "{} may differ by",
    "_of_this_seed": "{} of the reference solution from this seed",
}
SHARES = {
    *("loss_difference", "loss_tolerance", "first_loss_difference", "norm_tolerance", "worst_window"),
    *("window_tolerance", "noise", "lost_to_others", "speed", "at_most_lost", "plain_share"),
}


def label(name: Any, within: str = "") -> str:
    """`within`: the field that this one lies in."""
    name = str(name)
    if within == "replayed":
        return f"after step {name}"
    if name in NAMES:
        return NAMES[name]
    if catalogue.unit(name):
        return "the trace shows"
    for ending, words in ENDINGS.items():
        if name.endswith(ending):
            return words.format(key_words(name.removesuffix(ending)))
    return key_words(name)


def shown(name: Any, value: Any) -> str:
    """A value, in the unit that its field has."""
    metric = catalogue.metric(str(name))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return inline(value)
    if metric:
        return f"{f'{value:.1%}' if metric.unit == catalogue.SHARE else inline(value)} {metric.words}"
    return f"{100 * value:.3g}%" if name in SHARES else inline(value)
