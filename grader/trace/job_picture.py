"""What each rank of a job does with a step, as bars one below the other: a Figure that belongs to no window."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grader.trace.job import Job
from grader.trace.job_words import SHARE_WORDS
from grader.trace.picture import FONT, WIDTH, only_text, tint
from grader.trace.rank import EXPOSED, SHARES, WAITING
from grader.trace.words import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILION, plain

MOST = 40  # ranks in one picture
BAR = 0.27  # inches
# Colour and hatch: light and hatched where the rank does nothing. A colour never stands alone.
LOOKS = {
    "computing": (GREEN, ""),
    "copies": (ORANGE, ""),
    "data": (VERMILION, "////"),
    "host": (BLUE, "...."),
    WAITING: (INK, "xxxx"),
    EXPOSED: (PURPLE, ""),
    "other": (FAINT, "||||"),
}


def draw_job(job: Job) -> Figure:
    """The stragglers first where there are more ranks than fit."""
    shown = list(range(len(job.ranks)))
    if len(shown) > MOST:
        order = [*job.stragglers, *np.argsort(-job.caused_ns, kind="stable").tolist()]
        shown = sorted(dict.fromkeys(order[: MOST + len(job.stragglers)]))[:MOST]
    parts = [[job.parts[r][name] / 1e6 for name in SHARES] for r in shown]
    if not parts or not max(map(sum, parts)):
        return only_text("what the ranks do with a step is not known")
    used = [i for i, name in enumerate(SHARES) if max(row[i] for row in parts) > 0.002 * max(map(sum, parts))]
    foot, head = 0.95, 0.32
    total = head + foot + BAR * len(shown)
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.add_axes((0.13, foot / total, 0.85, BAR * len(shown) / total))
    for y, row in enumerate(parts):
        left = 0.0
        for i in used:
            axes.barh(y, row[i], 0.78, left=left, linewidth=0.5, **_look(SHARES[i]))
            left += row[i]
        if shown[y] in job.stragglers:
            axes.text(left, y, " ◀ late", va="center", fontsize=FONT, color=INK, fontweight="bold")
    axes.set_yticks(range(len(shown)), [f"rank {job.ranks[r].rank}" for r in shown], fontsize=FONT, color=INK)
    for label, r in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_fontweight("bold" if r in job.stragglers else "normal")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, 1.09 * max(map(sum, parts)))
    axes.set_xlabel("milliseconds per step", fontsize=FONT, color=INK, labelpad=2)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=FONT, labelcolor=INK, color=FAINT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = f"A step of each rank{f' ({len(shown)} of {len(job.ranks)})' if len(shown) < len(job.ranks) else ''}"
    figure.text(0.13, 1 - 0.2 / total, plain(title), fontsize=FONT + 1.5, fontweight="bold", color=INK, va="center")
    handles = [Patch(label=SHARE_WORDS[SHARES[i]], linewidth=0.5, **_look(SHARES[i])) for i in used]
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.12, 0),
        ncols=4,
        fontsize=FONT,
        frameon=False,
        columnspacing=1.3,
        handlelength=1.4,
    )
    return figure


def _look(name: str) -> dict[str, Any]:
    colour, hatch = LOOKS[name]
    if not hatch:
        return {"facecolor": colour, "edgecolor": "white"}
    return {"facecolor": tint(colour), "edgecolor": tint(colour, 0.6), "hatch": hatch}
