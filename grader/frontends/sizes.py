"""The sizes of a lab's forms, as its page and its card show them: what is needed to predict a gain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grader.devices import PEAKS, Peaks
from grader.kinds.kernel import Bench
from grader.labs.lab import AnyForm, AnyLab

Rows = dict[str, str]
Options = Mapping[str, Any]

ON = {"cuda": "on a GPU", "cpu": "on a CPU"}
NETS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
# Floating-point operations of a forward pass: https://arxiv.org/abs/1512.03385, and counted at 16 x 16
SERVED = {"resnet50": 8.2e9, "tiny": 0.363e6}
# Samples to train on, by data set; of pictures one in ten is held out
IN_DATA = {"images": 3600, "images 10000": 9000, "pictures 64": 3600, "pictures 32": 3600, "tiles": 4000}
# Weights of a UNet, and its floating-point operations per picture, forward and backward, by widths and size of a picture
UNETS = {((128, 256, 256, 256), 64): (18_285_571, 4.369e12 / 64), ((16, 32), 32): (130_115, 2.638e9 / 8)}


def sizes(lab: AnyLab) -> list[tuple[str, ...]]:
    """A table: its head, then a row for each size, a column for each form that a grade may take. Empty where a lab has none."""
    declared = {"cuda": lab.forms.get("cuda"), **{form.size: form for form in lab.smaller if form.measured}}
    declared["cpu"] = lab.forms.get("cpu")
    forms = {name: rows for name, form in declared.items() if form and (rows := _form_rows(form))}
    if not forms:
        return []
    for name, rows in forms.items():
        if name != "cpu" and (form := declared[name]):
            rows["free GPU memory needed"] = f"{form.gpu_memory / 1e9:.3g} GB"
    labels = dict.fromkeys(label for rows in forms.values() for label in rows)
    head = ("", *(ON.get(name, f"on a GPU, {name} form") for name in forms))
    return [head, *((label, *(rows.get(label, "-") for rows in forms.values())) for label in labels)]


def markdown(lab: AnyLab) -> str:
    """The same as the text of a cell; "" where a lab has none."""
    rows = sizes(lab)
    return f"## Sizes\n\n{_table(rows)}" if rows else ""


def peaks() -> str:
    """What the GPUs that we measured can do at most, as the text of a cell."""
    rows = [("", *PEAKS)]
    return _table([*rows, *zip(RATES, *map(_rates, PEAKS.values()), strict=True)])


def _table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first row is its head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


RATES = ("matmul, bf16", "matmul, TF32", "matmul, fp32", "memory, read and written", "copy from pinned memory")


def _rates(gpu: Peaks) -> list[str]:
    values = (gpu.half, gpu.tf32, gpu.fp32, gpu.memory, gpu.pinned_copy)
    units = ((1e12, "TFLOP/s", 0),) * 3 + ((1e12, "TB/s", 2), (1e9, "GB/s", 0))
    return [
        f"{value / unit:.{digits}f} {name}" if value else "–"
        for value, (unit, name, digits) in zip(values, units, strict=True)
    ]


def peaks_of(gpu: str | None) -> str:
    """The same of one GPU in a line; "" where it was not measured."""
    found = PEAKS.get(gpu or "")
    if not (found and found.half and found.tf32 and found.memory and found.pinned_copy):
        return ""
    half, tf32, fp32, memory, copy = _rates(found)
    return f"Its peaks, as we measured them: {half} in bf16, {tf32} in TF32, {fp32} in fp32, {memory} in its memory, {copy} from pinned memory."


def _form_rows(form: AnyForm) -> Rows:
    options: Options = getattr(form, "options", {})
    describe = OF_WORKLOAD.get(form.workload.rpartition(".")[2])
    if isinstance(form, Bench):
        timed = form.timed
        return {"timed on": f"{timed['rows']:,} rows of {timed['width']:,}, {timed['type']}"} if timed else {}
    if not describe or not options:
        return {}
    rows = describe(options, getattr(form, "data", ""))
    if seconds := options.get("read_s"):
        rows["each file opened"] = f"waits {1000 * seconds:g} ms"
    if form.ranks > 1:
        rows["processes"] = f"{form.ranks}, which share each batch"
    if form.budget:
        rows["memory budget"] = _memory(form.budget)
    if form.prepare_s:
        rows["time for `prepare`"] = (
            f"at most {form.prepare_s:g} s. Its time is spread over {form.prepared_for:,} steps"
        )
    rows["PyTorch's threads"] = f"{form.threads}" if form.threads else "the default number"
    return rows


def _gpt(options: Options, data: str) -> Rows:
    layers, width, length = options["layers"], options["width"], options["length"]
    vocabulary, batch = options.get("vocabulary", 256), options["batch_size"]
    lengths = options.get("lengths") or [length]
    weights = 12 * layers * width**2 + (vocabulary + length) * width
    tokens = batch * sum(lengths) / len(lengths)
    # 2 operations forward and 4 backward for each weight of a matmul and each token
    blocks, head = 72 * layers * width**2 * tokens, 6 * vocabulary * width * tokens
    apart = f"{_arithmetic(blocks)} in the layers, {_arithmetic(head)} in the head"
    arithmetic = _arithmetic(blocks + head) if vocabulary == 256 else apart
    # and for the two matmuls of a token with all keys of its window
    scores = 12 * layers * width * batch * sum(each**2 for each in lengths) / len(lengths)
    mean = ", on average" if len(lengths) > 1 else ""
    return {
        "model": f"GPT, {_counted(layers, 'layer')}, {_about(weights)} weights",
        "width": f"{width:,}, in {options['heads']} heads",
        "vocabulary": "256: a token is a byte" if vocabulary == 256 else f"{vocabulary:,}",
        "window": _in_turn(lengths),
        "batch": f"{_counted(batch, 'window')}: {_in_turn([batch * each for each in lengths])}",
        "arithmetic per step": arithmetic + mean,
        "attention's scores": _arithmetic(scores) + " more" + mean,
        "a layer's input, fp32": _memory(round(4 * width * tokens)) + mean,
    }


def _saved(options: Options, data: str) -> Rows:
    weights = 12 * options["layers"] * options["width"] ** 2 + (256 + options["length"]) * options["width"]
    return {
        **_gpt(options, data),
        "checkpoint": f"{_memory(12 * weights)}, every {options['every']} steps",
        "the drive takes": f"{_memory(round(options['write_bps']))} per second",
    }


def _lengths(options: Options, data: str) -> Rows:
    layers, width, lengths = options["layers"], options["width"], options["documents"]
    weights = 12 * layers * width**2
    return {
        "model": f"GPT, {_counted(layers, 'layer')}, {_about(weights + (256 + options['length']) * width)} weights",
        "width": f"{width:,}, in {options['heads']} heads",
        "vocabulary": "256: a token is a byte",
        "longest document of all": f"{options['length']:,} tokens",
        "batch": f"{_counted(len(lengths), 'document')}, about {float(f'{sum(lengths):.3g}'):,.0f} tokens",
        "longest document of a batch": f"about {max(lengths):,} tokens",
        "half of the documents": f"are shorter than {lengths[len(lengths) // 2 - 1]:,} tokens",
        # as for `_gpt`
        "arithmetic per token": _arithmetic(6 * (weights + 256 * width)),
        "attention's scores per token": f"{_arithmetic(12 * layers * width)} more for each token that it looks at",
    }


def _nplm(options: Options, data: str) -> Rows:
    layers, width, length, batch = (options[name] for name in ("layers", "width", "length", "batch_size"))
    inputs = options["context"] * options["features"]
    weights = inputs * width + (layers - 1) * width**2 + 256 * (width + options["features"])
    return {
        "model": f"perceptron, {_counted(layers, 'layer')}, {_about(weights)} weights",
        "width": f"{width:,}",
        "input": f"the last {options['context']} bytes, each an embedding of {options['features']} values",
        "window": f"{length:,} bytes",
        "batch": f"{_counted(batch, 'window')}: {batch * length:,} bytes",
        "arithmetic per step": _arithmetic(6 * (weights - 256 * options["features"]) * batch * length),
    }


def _records(options: Options, data: str) -> Rows:
    layers, width, batch, count = (options[name] for name in ("layers", "width", "batch_size", "records"))
    weights = 256 * width + (layers - 1) * width**2 + 10 * width  # 16 numbers of an event, 16 features each
    return {
        "model": f"perceptron, {_counted(layers, 'layer')}, {_about(weights + 256 * 16)} weights",
        "width": f"{width:,}",
        "data set": f"{count:,} records in memory: a dictionary with nine lists each",
        "batch": _counted(batch, "record"),
        "arithmetic per step": _arithmetic(6 * weights * batch),
    }


def _pictures(options: Options, data: str) -> Rows:
    size, batch, count = options["size"], options["batch_size"], options.get("count") or IN_DATA[data]
    return {
        "model": NETS.get(options["model"], "a tiny convnet"),
        "image for the model": f"3 x {size} x {size}",
        "batch": f"{batch} images",
        "data": f"{count:,} JPEG files, about 500 x 375 pixels",
        "steps per epoch": f"{count // batch}",
    }


def _tiles(options: Options, data: str) -> Rows:
    bands, size, width, batch = (options[name] for name in ("bands", "size", "width", "batch_size"))
    count = options.get("count") or IN_DATA["tiles"]
    where = {"": "in the CPU's memory", "tile files": "a file each"}.get(data, "rows of an SQLite database")
    stored = batch * bands * size**2 * (1 if data else 4)
    weights, flops = _convnet(bands, size, width)
    return {
        "model": f"convnet, 4 convolutions, {_about(weights)} weights",
        "width": f"{width}, then {2 * width}",
        "arithmetic per step": _arithmetic(batch * flops),
        "tile": f"{bands} bands, {size} x {size}",
        "batch": f"{batch} tiles: {_memory(stored)} of {'uint8' if data else 'float32'}",
        "data": f"{count:,} tiles, {where}",
        "steps per epoch": f"{count // batch}",
    }


def _convnet(bands: int, size: int, width: int) -> tuple[int, float]:
    """Weights, and floating-point operations per tile, forward and backward, of `grader.workloads.tiles.ConvNet`."""
    # weights of a convolution, and the pixels that it makes
    first, *rest = (
        (49 * bands * width, (size // 4) ** 2),
        (9 * width**2, (size // 4) ** 2),
        (18 * width**2, (size // 8) ** 2),
        (36 * width**2, (size // 8) ** 2),
    )
    weights = first[0] + sum(count for count, _ in rest) + 6 * width + 10 * (32 * width + 1)
    # backward each has two matmuls of the forward one's size; the first has one, since nobody asks for the tiles' gradient
    return weights, 4 * first[0] * first[1] + 6 * sum(count * pixels for count, pixels in rest)


def _unet(options: Options, data: str) -> Rows:
    batch, size, widths = options["batch_size"], data.split()[1], tuple(options["widths"])
    weights, flops = UNETS[widths, int(size)]
    return {
        "model": f"UNet, {_about(weights)} weights",
        "widths": _listed(widths),
        "arithmetic per step": _arithmetic(batch * flops),
        "picture": f"3 x {size} x {size}",
        "batch": f"{batch} pictures",
        "data": f"{IN_DATA[data]:,} pictures in main memory",
        "steps per epoch": f"{IN_DATA[data] // batch}",
    }


def _serving(options: Options, data: str) -> Rows:
    lengths, size = options["lengths"], options["size"]
    texts = options["texts"] * len(lengths)
    weights = 12 * options["layers"] * options["width"] ** 2
    return {
        "text model": f"GPT, {options['layers']} layers, width {options['width']}, {options['heads']} heads",
        "arithmetic per byte": f"{_arithmetic(2 * weights)}, for padding as well",
        "texts per request": f"{texts}, {options['texts']} of each class of length",
        "classes of length": f"up to {_listed(lengths)} bytes",
        "picture model": NETS.get(options["model"], "a tiny convnet"),
        "pictures per request": f"{options['images']} of 3 x {size} x {size}",
        "arithmetic per picture": _arithmetic(SERVED[options["model"]]),
    }


def _top_ops(options: Options, data: str) -> Rows:
    batch, length, samples = options["batch"], options["length"], options["samples"]
    return {
        "model": f"{options['layers']} blocks, width {options['width']}, fed with each frame's spectrum",
        "frame": f"{samples:,} samples of sound",
        "batch": f"{batch} x {length} frames",
    }


OF_WORKLOAD: dict[str, Callable[[Options, str], Rows]] = {
    "gpt": _gpt,
    "trainer": _gpt,
    "checkpoints": _saved,
    "lengths": _lengths,
    "nplm": _nplm,
    "records": _records,
    "resnet": _pictures,
    "imagenet": _pictures,
    "tiles": _tiles,
    "unet": _unet,
    "serving": _serving,
    "top_ops": _top_ops,
}


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _in_turn(numbers: Sequence[int]) -> str:
    return f"{_listed(numbers)} tokens" + (" in turn" if len(numbers) > 1 else "")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{each:,}" for each in numbers)


def _about(weights: int) -> str:
    millions = weights / 1e6
    return f"{1000 * millions:.0f} thousand" if millions < 1 else f"{millions:.{millions < 10:d}f} million"


def _arithmetic(flops: float) -> str:
    if flops >= 1e11:
        return f"{flops / 1e12:.2f} TFLOP"
    return f"{flops / 1e9:.2g} GFLOP" if flops >= 1e8 else f"{flops / 1e6:.2g} MFLOP"


def _memory(count: int) -> str:
    if count % (1 << 30) == 0:
        return f"{count >> 30} GiB"
    return f"{count / 1e6:.{count < 10e6:d}f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
