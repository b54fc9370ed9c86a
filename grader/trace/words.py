"""Colours, numbers in words, and names from a trace as harmless text: for pictures, explorer and reports."""

# Okabe and Ito's palette, told apart with every common form of colour blindness. https://jfly.uni-koeln.de/color/
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
INK, FAINT = "#333333", "#6E6E6E"  # both can be read on white

# Of the lanes of a timeline.
LANE_COLOURS = {"data_wait": VERMILION, "host": SKY, "launches": BLUE, "gpu": GREEN, "copies": ORANGE}
LANE_COLOURS["communication"] = PURPLE


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


MOST_DIGITS = 30  # 100 times two numbers may be one


def told_apart(value: float, limit: float, kind: str, digits: int) -> tuple[str, str]:
    """A number and the limit it misses, in as many digits (`digits` or more) as show it. kind: "%" or "g"."""
    while f"{value:,.{digits}{kind}}" == f"{limit:,.{digits}{kind}}" and value != limit and digits < MOST_DIGITS:
        digits += 1
    shown = f"{limit:,.{digits}{kind}}"
    whole, dot, part = shown.rstrip("%").partition(".")
    part = part.rstrip("0")
    return f"{value:,.{digits}{kind}}", f"{whole}{dot if part else ''}{part}{'%' if kind == '%' else ''}"


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
