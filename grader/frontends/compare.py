"""`grader compare`: is my loop faster than it was? As text for a terminal, as JSON, and as a page with pictures."""

import argparse
import math
from pathlib import Path
from typing import Any

from grader import machine, web_page
from grader.errors import UserError
from grader.frontends import diagnose, diagnosis_page
from grader.frontends.delivery import check_targets, deliver, names_of
from grader.frontends.options import add_device, add_json, add_unconfined
from grader.frontends.terminal import Terminal
from grader.grading.forms import choose_device
from grader.measure import decision
from grader.own.compare import FULL, QUICK, Comparison, compare
from grader.result import PASS
from grader.safe_text import clean, rounded, times, to_html, wrap

VERDICTS = {
    decision.FASTER: "{after} is faster than {before}",
    decision.SLOWER: "{after} is slower than {before}",
    decision.EQUAL: "{after} is as fast as {before}",
    decision.UNKNOWN: "We can't tell which one is faster, because the ratio of their times differed too much from start to start",
}
OF_THE_FIRST = "The rest is from the first start only."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(run=run)
    parser.epilog = "BEFORE and AFTER define train(job). JOB defines make_job(seed, device). notebooks/4_models/1_own_loop.ipynb has an example. Exit status: 0 if it measured, 1 if not, 2 for files that can't be read or loaded."
    add("before", type=Path, help="a Python file with train(job)")
    add("after", type=Path, help="the same file after a change")
    add("--job", type=Path, help="a Python file with make_job(seed, device) (default: job.py beside BEFORE)")
    words = "a file or folder that the loops may read, such as data or modules. You can give it several times"
    add("--read", type=Path, action="append", default=[], metavar="PATH", help=words)
    add("--quick", action="store_true", help="take fewer starts and shorter blocks")
    add_json(parser, "everything")
    add("--html", metavar="FILE", help="write a page with pictures")
    add_unconfined(parser)
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 measured, 1 not, 2 for a file that could not be loaded. Raises UserError for files that cannot be read."""
    for path in (options.before, options.after):
        if path.is_dir():
            raise UserError(f"{path} is a folder. Name the file with the loop in it.")
    job = options.job or options.before.with_name("job.py")
    if options.before.exists() and not job.exists():
        raise UserError(
            f"{job} is missing. Its make_job(seed, device) makes the model and the data for both loops. "
            "notebooks/4_models/1_own_loop.ipynb shows one. If it is elsewhere, add --job FILE."
        )
    check_targets(options)
    with machine.own_cores(int(choose_device(options.device) == "cuda")):
        comparison = compare(
            options.before,
            options.after,
            job,
            device=options.device,
            readable=tuple(options.read),
            plan=QUICK if options.quick else FULL,
            allow_unconfined=options.allow_unconfined,
            progress=Terminal("compare"),
        )
    names = names_of([options.before, options.after])
    deliver(
        options,
        page=lambda: page(comparison, names),
        data=lambda: as_json(comparison, names),
        text=lambda width, colour: text(comparison, names, width, colour),
    )
    return 0 if comparison.said else 2 if comparison.unusable else 1


def said(comparison: Comparison, names: list[str]) -> list[str]:
    """What was found, a sentence or two each: speed, training (first, where it is another), what else is to be known."""
    before, after = names
    lines = [comparison.message] if comparison.message else []
    if comparison.agreement and comparison.agreement.status != PASS:
        lines.append(agreement(comparison))
    if comparison.said and comparison.gain:
        g = comparison.gain
        verdict = VERDICTS[comparison.said].format(before=before, after=after)
        starts = f"both started {comparison.starts} times"
        if comparison.said == decision.direction(g):
            starts = f"90% interval {times(g.lower)} to {times(g.upper)}, {starts}"
        lines.append(f"{verdict}: {times(g.factor)} ({starts}).")
        if comparison.before_s and comparison.after_s:
            steps = [rounded(1e3 * seconds, 3) for seconds in (comparison.before_s, comparison.after_s)]
            lines.append(f"A step took {steps[0]} ms and takes {steps[1]} ms.")
    if comparison.said == decision.UNKNOWN:
        again = "Compare again when nothing else (no notebook's kernel either) runs on this machine"
        if comparison.plan.max_pairs < FULL.max_pairs:
            again += ", and without --quick, for more starts"
        elif comparison.gain and comparison.said == decision.direction(comparison.gain):
            width = comparison.gain.upper / comparison.gain.lower
            least = times(math.sqrt(width))
            lines.append(f"The interval is {width - 1:.0%} wide, so it can't show a gain below {least}.")
        lines.append(f"{again}.")
    if comparison.compile_s:
        lines.append(f"Compiling took {rounded(comparison.compile_s, 2)} s, which these times don't include.")
    if comparison.agreement and comparison.agreement.status == PASS:
        lines.append(agreement(comparison))
    return [*lines, *(f"Note: {warning}" for warning in comparison.warnings)]


def agreement(comparison: Comparison) -> str:
    """Whether both loops train the same model, with the numbers; or why nothing was compared."""
    check = comparison.agreement
    if check is None:
        return comparison.message
    loss, ratio, cosine = (
        check.evidence.get(name) for name in ("loss_difference", "update_norm_ratio", "update_cosine")
    )
    numbers = f"over the first {check.evidence['steps']} steps the losses differ by {loss:.2%} on average"
    if ratio is not None and cosine is not None:
        numbers += f", the weights moved {ratio:.4f} times as far, cosine {cosine:.4f}"
    if check.status == PASS:
        return f"Losses and weights agree: {numbers}."
    why = check.reason.removeprefix("This is not the same training. ").replace(
        "the starter's", "those of the loop before"
    )
    return (
        f"Losses and weights don't agree. {why} In numbers: {numbers}. A faster loop that trains a different model is no gain. With "
        "SGD and a large learning rate even two runs of one loop drift apart. Compare a loop with itself to see that."
    )


def text(comparison: Comparison, names: list[str], width: int = 100, colour: bool = False) -> str:
    width = max(width, 60)
    lines = [part for line in said(comparison, names) for part in wrap(line, width)]
    if lines and colour:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    if comparison.message and comparison.output:
        lines += ["The end of what it printed:", clean(comparison.output, 1500, tail=True)]
    analyses = comparison.analyses()
    if len(analyses) == 2:
        lines += ["", OF_THE_FIRST, "", diagnose.text(names, [analyses["before"], analyses["after"]], width, colour)]
    return "\n".join(lines)


def page(comparison: Comparison, names: list[str]) -> str:
    """One self-contained page; with the diagnosis where both loops left a trace."""
    parts = "".join(f"<p>{to_html(line)}</p>" for line in said(comparison, names))
    analyses = comparison.analyses()
    title = f"{names[0]} and {names[1]}"
    head = f'{web_page.heading(to_html(title))}<div style="margin-bottom: 20px">{parts}</div>'
    if len(analyses) == 2:
        above = f"{head}<p>{OF_THE_FIRST}</p>"
        return diagnosis_page.page(names, [analyses["before"], analyses["after"]], above)
    return web_page.page(title, head)


def as_json(comparison: Comparison, names: list[str]) -> dict[str, Any]:
    """said: "faster", "as fast", "slower", "cannot tell", or "" where nothing was measured (then `message` says why)."""
    gain = comparison.gain
    analyses = comparison.analyses()
    data: dict[str, Any] = {
        "before": names[0],
        "after": names[1],
        "said": comparison.said,
        "starts": comparison.starts,
        "message": comparison.message,
        "gain": gain and {"factor": gain.factor, "lower": gain.lower, "upper": gain.upper},
        "before_ms": comparison.before_s and 1e3 * comparison.before_s,
        "after_ms": comparison.after_s and 1e3 * comparison.after_s,
        "compile_s": comparison.compile_s,
        "agrees": comparison.agreement and comparison.agreement.status == PASS,
        "agreement": comparison.agreement and comparison.agreement.evidence,
        "warnings": comparison.warnings,
        "machine": machine.facts(),
        "versions": machine.versions(),
    }
    if len(analyses) == 2:
        data["diagnosis"] = diagnose.as_json(names, [analyses["before"], analyses["after"]])
    return data
