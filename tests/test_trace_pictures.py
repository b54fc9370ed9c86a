"""Pictures and explorer: what they say, not their pixels."""

import io
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from test_diagnosis import analysed

from grader import trace
from grader.trace import intervals, picture, words
from grader.trace.analysis import Operation
from grader.trace.catalogue import IDLE, PARTS, STEP_PARTS
from grader.trace.timeline import BINS
from tests.loops import GEMM, NCCL, POINTWISE, US, Loop, Recording

DATA = Loop([200 * US] * 30, data=20_000 * US, copy=1500 * US)
LAUNCH = Loop([3 * US] * 300, name=POINTWISE)
SYNC = Loop([60 * US] * 40, sync_after=range(0, 40, 5), comm=900 * US)


def texts(figure) -> str:
    """Every word in a figure that has been drawn once."""
    figure.savefig(io.BytesIO(), format="svg")
    found = [t for axes in figure.axes for t in (*axes.texts, axes.title, axes._left_title, *axes.get_yticklabels())]
    found += [t for legend in figure.legends for t in legend.get_texts()]
    return " | ".join(t.get_text() for t in (*found, *figure.texts) if t.get_text())


def on_white(colour: str) -> float:
    """Contrast, by WCAG 2.2."""
    parts = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour))
    return 1.05 / (0.05 + sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)))


def operation(name: str, **more) -> Operation:
    known = {"shapes": "[64, 64]", "line": "train.py:4", "function": "train", "phase": "forward", "count": 20.0}
    known |= {"gpu_ns": 2e6, "share": 0.2, "kernels": ["k"], "tensor_cores": True, "flops": 1e12, "bytes_moved": 1e9}
    known |= {"intensity": 1000.0, "bound": "compute", "why": "it is large", "events": []}
    return Operation(name=name, **known | more)


# --- timeline ----------------------------------------------------------------------------------------------------


def test_gaps_carry_their_cause():
    line = trace.timeline(analysed(DATA).trace, steps=2)
    waits = [gap for gap in line["gaps"] if gap[2] == "idle_data"]
    assert len(waits) == 2 and all(14_000 * US < length < 14_300 * US and device == 0 for _, length, _, device in waits)
    json.dumps(line, allow_nan=False)
    said = texts(trace.draw({"before": line}))
    assert "GPU idle: data" in said and "waiting for data" in said and "GPU use" in said and "ms per step" in said


def test_gaps_that_are_too_short_to_see_show_as_a_share():
    line = trace.timeline(analysed(LAUNCH).trace)
    lane = next(lane for lane in line["lanes"] if lane["kind"] == "gpu")
    assert sum(length for _, length in lane["intervals"]) > 0.9 * line["span_ns"], "drawn as one bar"
    (use,) = line["use"]
    share = {part: sum(permille) / BINS / 1000 for part, permille in use["share"].items()}
    assert share["gpu"] == pytest.approx(3 / 8, abs=0.02) and share["idle_launch"] == pytest.approx(5 / 8, abs=0.02)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300), st.integers(0, 2), st.booleans()), max_size=12))
def test_the_shares_of_a_bin_add_up_and_are_those_of_the_trace(work):
    r = Recording().step(1, 0, 10).step(2, 10, 1000).step(3, 1000, 1010)
    for at, length, device, collective in work:
        r.work("kernel", NCCL if collective else GEMM, 20, 30 + at, length, device=device)
    t = r.read()
    line = trace.timeline(t, steps=1)
    for use in line["use"]:
        assert (np.sum([*use["share"].values()], axis=0) == 1000).all()
        device = t.is_gpu & (t.device == use["device"])
        low, high = line["origin_ns"], line["origin_ns"] + line["span_ns"]
        spans = intervals.clip(intervals.union(t.start[device], t.end[device]), low, high)
        busy = intervals.length(spans) / line["span_ns"]
        shown = sum(sum(v) for part, v in use["share"].items() if not part.startswith("idle")) / BINS / 1000
        assert shown == pytest.approx(busy, abs=0.001)


def test_several_gpus_and_collectives_have_lanes_of_their_own():
    r = Recording()
    for n in range(4):
        at = n * 1_000_000
        r.step(n, at, at + 990_000)
        for device in (0, 1):
            r.work("kernel", GEMM, at + 10, at + 1000, 400_000, device=device)
            r.work("kernel", NCCL, at + 20, at + 500_000, 100_000, device=device, stream=20)
            r.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 30, at + 700_000, 50_000, device=device)
    line = trace.timeline(r.read())
    lanes = [(lane["name"], lane["kind"]) for lane in line["lanes"] if lane["device"] is not None]
    each = [("stream 7", "gpu"), ("stream 20", "communication"), ("copies", "copies")]
    assert lanes == [(f"GPU {device} {name}", kind) for device in (0, 1) for name, kind in each]
    assert [use["device"] for use in line["use"]] == [0, 1] and {gap[3] for gap in line["gaps"]} == {0, 1}
    said = texts(trace.draw({"two": line}))
    assert "GPU 1 use" in said and "communication" in said


def test_kernels_and_collectives_of_one_stream_share_a_row():
    figure = trace.draw({"x": trace.timeline(analysed(SYNC).trace)})
    assert texts(figure).count("GPU stream 7") == 1


def test_timelines_of_earlier_results_are_drawn():
    line = trace.timeline(analysed(DATA).trace)
    old = {key: value for key, value in line.items() if key not in ("gaps", "use")}
    assert "GPU idle" in texts(trace.draw({"before": old}))


# --- where the time goes -----------------------------------------------------------------------------------------


def test_each_part_of_the_step_is_labelled_once():
    slow, fast = analysed(DATA), analysed(Loop([200 * US] * 30), step_ns=6.1e6)
    said = texts(trace.draw_breakdown({"before": slow, "after": fast}))
    for part in (
        "tensor cores 6 ms",
        "copies 1.5 ms",
        "idle: data 14.2 ms",
        "before: 21.8 ms per step",
        "under the profiler",
    ):
        assert part in said
    assert "after: 6.1 ms per step" in said and "measured without the profiler, 6 ms under it" in said
    assert said.count("idle: data") == 1


@pytest.mark.slow
def test_labels_never_cover_each_other_nor_leave_the_picture():
    base = analysed(Loop([20 * US] * 3))
    random = np.random.default_rng(1)
    for case in range(40):
        values = random.uniform(0, 1e7, len(PARTS)) ** random.integers(1, 4) * (random.random(len(PARTS)) < 0.7)
        if not values.any():
            continue
        figure = trace.draw_breakdown({"x": replace(base, breakdown=dict(zip(PARTS, values, strict=True)))})
        figure.draw_without_rendering()
        boxes = [t.get_window_extent() for t in figure.axes[0].texts]
        for i, a in enumerate(boxes):
            assert a.x0 >= 0 and a.x1 <= figure.bbox.width and a.y0 >= 0, case
            assert not any(a.padded(-1).overlaps(b.padded(-1)) for b in boxes[:i]), case
        for line in figure.axes[0].lines:
            path = line.get_transform().transform_path(line.get_path())
            assert not any(path.intersects_bbox(box.padded(-1)) for box in boxes), f"{case}: a line through a label"


def test_what_has_no_breakdown_says_why():
    empty = trace.analyse(Recording().read())
    assert "it holds no events" in texts(trace.draw_breakdown({"x": empty}))
    assert "no roofline" in texts(trace.draw_roofline(empty))


def test_every_word_can_be_read_on_white():
    shown = analysed(DATA)
    broken = replace(shown, breakdown=dict.fromkeys(PARTS, 0.0), operations=[])
    lines = {"x": trace.timeline(shown.trace) | {"complete": False, "reasons": ["half of it is lost"]}}
    figures = [trace.draw(lines), trace.draw_breakdown({"x": shown}), trace.draw_breakdown({"x": broken})]
    several = [operation("aten::mm"), operation("aten::sum", flops=None, intensity=None, bound="memory")]
    figures += [trace.draw_roofline(replace(shown, operations=several)), trace.draw_roofline(broken)]
    for figure in figures:
        texts(figure)
        faint = {
            t.get_text(): t.get_color() for t in figure.findobj(Text) if t.get_text() and on_white(t.get_color()) < 4.5
        }
        assert not faint


# --- roofline ----------------------------------------------------------------------------------------------------


def test_the_roofline_places_what_it_can_and_lists_the_rest():
    a = replace(
        analysed(DATA),
        operations=[
            operation("aten::mm"),
            operation("aten::add_", bound="launch", intensity=0.1, flops=1e6),
            operation("triton_poi_$x$_fused", flops=None, intensity=None, bound=None),
            operation("aten::gelu", flops=None, intensity=None, bound="memory", bytes_moved=2e9),
        ],
    )
    figure = trace.draw_roofline(a)
    said = texts(figure)
    for part in ("NVIDIA H200", "tensor cores, 16 bit: 799", "TF32: 418", "fp32: 51", "memory: 4.25 TB/s"):
        assert part in said
    assert "aten::mm" in said and "triton_poi_$x$_fused" in said and "not in the picture" in said
    assert sum(len(c.get_offsets()) for c in figure.axes[0].collections) == 2
    assert "memory 24%" in said


@pytest.mark.parametrize("tiny", [1.0, 1e-5], ids=["few decades", "many decades"])
def test_no_label_of_the_roofline_covers_another(tiny):
    """Names of the roofs, numbers of the operations: each can be read, and none of the roofs runs through a name."""
    kinds = [operation("aten::mm", intensity=300.0 + 20 * n, flops=(0.9 + 0.02 * n) * 1.5e12) for n in range(9)]
    figure = trace.draw_roofline(
        replace(analysed(DATA), operations=[*kinds, operation("aten::add", intensity=0.5, flops=1e12 * tiny)])
    )
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = {t.get_text(): Text.get_window_extent(t).padded(-0.5) for t in axes.texts}  # without the lines to the dots
    assert len(boxes) == 4 + 10
    for one, other in itertools.combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), f"{one} covers {other}"
    roofs = [line.get_path().transformed(line.get_transform()) for line in axes.get_lines()]
    for name, box in boxes.items():
        assert name.isdigit() or not any(roof.intersects_bbox(box, filled=False) for roof in roofs), name


def test_a_device_that_was_never_measured_gets_no_roof():
    a = analysed(DATA)
    a = replace(a, trace=replace(a.trace, devices=["Some GPU"]), operations=[operation("aten::mm")])
    said = texts(trace.draw_roofline(a))
    assert "how much it can do is not known" in said and "TFLOP/s" not in said
    a = replace(a, operations=[operation("aten::mm", flops=None)])
    assert "record_shapes" in texts(trace.draw_roofline(a))


def test_names_from_a_trace_are_harmless():
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<X<4>, at::native::FusedAdamFunctor<float>>"
    )
    assert words.short_kernel(name) == "multi_tensor_apply_kernel (FusedAdamFunctor)"
    assert words.plain("a\x1b[31mb\nc\u202e") == "a [31mb c"
    hostile = operation("$\\frac{\x1b[2J", shapes="$$")
    assert "\x1b" not in texts(trace.draw_roofline(replace(analysed(DATA), operations=[hostile])))


# --- explorer ----------------------------------------------------------------------------------------------------


def test_a_selected_gap_shows_its_evidence():
    e = trace.explore(analysed(DATA), analysed(LAUNCH))
    assert e.which.index == 0 and e.steps.value == (1, 2) and e.steps.max == 4
    assert "idle: data" in e.choice.options[0][0] and "14.2 ms" in e.choice.options[0][0]
    assert "while the host waited for data" in e.evidence.value and "DataLoader" in e.evidence.value
    assert "cudaMemcpyAsync within aten::copy_" in e.evidence.value
    assert "trace-marked" in e.picture.value and "<title>" in e.picture.value
    e.choice.index = 2
    assert "14.2 ms" not in e.evidence.value
    e.what.value = "kernels"
    assert GEMM in e.evidence.value and "60 calls" in e.evidence.value
    e.steps.value = (2, 2)
    assert "30 calls" in e.evidence.value and "step 2" in e.picture.value and ">step 1<" not in e.picture.value
    e.what.value = "operations"
    assert "aten::mm" in e.evidence.value
    e.which.value = 1
    assert "aten::mul" in e.evidence.value and e.steps.value == (1, 2)


def test_the_explorer_survives_what_shows_nothing():
    for t in (Recording().read(), Recording().work("kernel", "<b>k", 1, 2, 3).read(), Recording().step(1, 0, 9).read()):
        e = trace.explore(trace.analyse(t))
        for what in e.what.options:
            e.what.value = what
        assert "<b>k" not in e.evidence.value + e.picture.value + e.views[0].static()


def test_a_lone_step_is_shown():
    r = Recording().step(7, 0, 5000).work("kernel", GEMM, 10, 1000, 3000)
    e = trace.explore(trace.analyse(r.read()))
    assert "idle: " in e.choice.options[0][0] and "<svg" in e.picture.value
    assert len(trace.timeline(r.read())["steps"]) == 1


def recorded(*lengths: int):
    """A trace of steps of these lengths, ms, each followed by the next."""
    r, at = Recording(), 0
    for n, length in enumerate(lengths):
        r.step(n, at, at + length * 1000 * US)
        at += length * 1000 * US
    return r.read()


def lengths_of(line) -> list[int]:
    return [round((end - start) / (1000 * US)) for start, end in line["steps"]]


@pytest.mark.parametrize(
    ("all_steps", "shown"),
    [
        ((16, 16, 15, 17, 16, 16, 16, 16), [16, 15, 17]),  # alike: the first ones
        ((16, 16, 15, 216, 16, 16, 16, 16), [15, 216, 16]),  # a checkpoint is among them
        ((16, 16, 15, 16, 16, 16, 17, 216), [16, 17, 216]),  # as the last one, too
        ((216, 16, 15, 17, 16, 16, 16, 16), [16, 15, 17]),  # the first one is left out
        ((16, 216, 15, 17, 16, 16, 16, 16), [216, 15, 17]),
        ((16, 216), [216]),
    ],
)
def test_a_step_that_takes_far_longer_is_shown(all_steps, shown):
    line = trace.timeline(recorded(*all_steps))
    assert lengths_of(line) == shown
    mean = sum(all_steps[1:]) / len(all_steps[1:])
    assert line["step_ns_traced"] == pytest.approx(mean * 1000 * US)


def test_the_steps_that_were_asked_for_are_shown():
    line = trace.timeline(recorded(16, 16, 15, 17, 16, 216), exactly=True)
    assert lengths_of(line) == [16, 15, 17]


def test_without_a_kernel_the_notebook_shows_pictures_and_evidence(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    trace.explore(analysed(DATA), analysed(LAUNCH))._ipython_display_()
    page, widget = shown[0]["text/html"], shown[1]
    assert page.count("data:image/png;base64,") == 4
    assert "input-bound" in page and "while the host waited for data" in page
    assert "<script" not in page and "<svg" not in page, "viewers take both out"
    assert widget["application/vnd.jupyter.widget-view+json"]["model_id"]


def test_names_are_escaped_in_the_explorer():
    e = trace.explore(analysed(Loop([200 * US] * 5, data=2000 * US, name="<script>alert(1)</script>")))
    for what in e.what.options:
        e.what.value = what
        assert "<script" not in e.picture.value + e.evidence.value
    assert "<script" not in e.views[0].static()


def test_the_explorer_stays_small():
    e = trace.explore(analysed(Loop([3 * US] * 3000)))
    assert len(e.picture.value) < 1_500_000 and len(e.choice.options) <= 60
    assert re.search("too fine to tell apart", e.picture.value)


def test_picture_module_needs_no_window():
    figure = trace.draw({"x": trace.timeline(analysed(DATA).trace)})
    assert figure.canvas.manager is None and picture.draw is trace.draw
    assert {name for name, part in STEP_PARTS.items() if part.hatch} == {*IDLE}
