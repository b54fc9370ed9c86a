"""Words for what a trace shows, shared by pictures, explorer and reports; and names from a trace as harmless text."""

from __future__ import annotations

# Okabe and Ito's palette, told apart with every common form of colour blindness. https://jfly.uni-koeln.de/color/
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
INK, FAINT = "#333333", "#8A8A8A"

# Each part of the step time: a short name and its colour. An idle part has the colour of the lane that shows
# what the host did meanwhile, and is always hatched.
PART_NAMES = {
    "tensor_core": "tensor cores",
    "matmul": "other matmul",
    "memory": "other kernels",
    "communication": "communication",
    "copies": "copies",
    "idle_data": "idle: data",
    "idle_transfer": "idle: copy",
    "idle_sync": "idle: sync",
    "idle_launch": "idle: launch",
    "idle_other": "idle: other",
    "idle_between": "idle: between",
    "idle": "idle",
}
PART_COLOURS = {
    "tensor_core": GREEN,
    "matmul": "#7FC8B0",
    "memory": YELLOW,
    "communication": PURPLE,
    "copies": ORANGE,
    "idle_data": VERMILION,
    "idle_transfer": ORANGE,
    "idle_sync": INK,
    "idle_launch": BLUE,
    "idle_other": FAINT,
    "idle_between": "#B0B0B0",
    "idle": FAINT,
}


def plain(text: object, limit: int = 200) -> str:
    """One printable line: what a file says is no terminal command and no markup, and it ends somewhere."""
    text = str(text)[: 4 * limit]
    text = "".join(c if c.isprintable() else " " for c in text).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short_kernel(name: str, limit: int = 60) -> str:
    """A kernel's name without what all of them have in common: return type, namespaces, template arguments."""
    name = plain(name, 600)
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    head, _, arguments = name.partition("<")
    if arguments and "::" in head:
        head = head.rpartition("::")[2]
    # The functor says more than the kernel that applies it: vectorized_elementwise_kernel<4, ...FillFunctor<float>>.
    functor = next((word for word in arguments.replace("<", " ").replace(",", " ").split() if "unctor" in word), "")
    name = f"{head} ({functor.rpartition('::')[2]})" if functor else head
    return plain(name, limit)


def plain_number(value: float) -> str:
    """Three digits that count, thousands apart, and no exponent for what is large: 2,086  12.3  0.0123."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


ONE = {
    "s": "",
    "es": "",
    "are": "is",
    "were": "was",
    "have": "has",
    "do": "does",
    "count": "counts",
    "start": "starts",
    "belong": "belongs",
    "their": "its",
}
MANY = {word: word for word in ONE}


def counted(count: int, said: str) -> str:
    """ "2 events are left out", "1 event is left out": of "event{s} {are} left out"."""
    return f"{count} {said.format_map(ONE if count == 1 else MANY)}"


def milliseconds(ns: float) -> str:
    """ "12.3 ms", or "450 µs" below a tenth of one."""
    if 0 < abs(ns) < 1e5:
        return f"{plain_number(ns / 1e3)} µs"
    return f"{plain_number(ns / 1e6)} ms"
