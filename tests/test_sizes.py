"""What a lab's page says of its sizes is what its job has."""

import importlib
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grader import labs
from grader.frontends import sizes
from grader.grading.forms import prepared
from grader.workloads import gpt, tiles, unet

# every workload, by the form of it that is small
ON_CPU = (
    "2a_workers",
    "2b_transfers",
    "2c_transforms",
    "2d_formats",
    "2j_checkpoint",
    "2i_host",
    "3e_compile",
    "3k_healthy",
    "3n_lengths",
    "4a_resnet50",
    "4b_nanogpt",
    "4c_unet",
)


def told(name: str) -> dict[str, str]:
    """The rows of a lab's CPU form."""
    head, *rows = sizes.sizes(labs.get(name))
    return {row[0]: row[head.index("on a CPU")] for row in rows}


def number(text: str) -> int:
    """The first number of a row."""
    return int(re.search(r"[\d,]+", text)[0].replace(",", ""))


@pytest.mark.parametrize("name", ON_CPU)
def test_the_sizes_are_the_job_s(name):
    form, rows = labs.get(name).forms["cpu"], told(name)
    options, _ = prepared(form)
    job = importlib.import_module(form.workload).make_job(0, torch.device("cpu"), **options)
    batch = next(iter(job.batches))
    assert number(rows["batch"]) == len(batch) == job.batches.batch_size
    if "steps per epoch" in rows:
        assert number(rows["data"]) == len(job.dataset)
        assert number(rows["steps per epoch"]) == len(job.dataset) // len(batch)
    if weights := re.search(r"(\S+) (thousand|million) weights", rows["model"]):
        scale = {"thousand": 1e3, "million": 1e6}[weights[2]]
        built = sum(each.numel() for each in getattr(job.model, "net", job.model).parameters())
        assert float(weights[1]) * scale == pytest.approx(built, rel=0.06)
    if stored := re.search(r"([\d.]+) (kB|MB) of (uint8|float32)", rows["batch"]):
        values = (
            len(batch) * number(rows["tile"]) * job.dataset.size**2
            if hasattr(job.dataset, "size")
            else sum(job.dataset[i][0].numel() for i in batch)
        )
        assert float(stored[1]) * {"kB": 1e3, "MB": 1e6}[stored[2]] == pytest.approx(
            values * {"uint8": 1, "float32": 4}[stored[3]], rel=0.02
        )


@pytest.mark.parametrize("name", ["2b_transfers", "4c_unet"])
@pytest.mark.parametrize("column", ["on a GPU", "on a CPU"])
def test_the_arithmetic_of_a_step_is_the_model_s(name, column):
    lab = labs.get(name)
    head, *rows = sizes.sizes(lab)
    rows = {row[0]: row[head.index(column)] for row in rows}
    options, data = (form := lab.forms["cuda" if "GPU" in column else "cpu"]).options, form.data
    batch = options["batch_size"]
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        if name == "4c_unet":
            size = int(data.split()[1])
            net = unet.UNet(options["widths"])
            net.use(unet.scaled_dot_product, unet.group_norm, unet.sinusoidal)
            net(torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)).sum().backward()
        else:
            net = tiles.ConvNet(options["bands"], options["width"])
            net(torch.randn(batch, options["bands"], options["size"], options["size"])).sum().backward()
    told, unit = rows["arithmetic per step"].split()
    assert float(told) * {"TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6}[unit] == pytest.approx(
        counted.get_total_flops(), rel=0.04
    )
    weights = sum(each.numel() for each in net.parameters())
    told, scale = re.search(r"(\S+) (thousand|million) weights", rows["model"]).groups()
    assert float(told) * {"thousand": 1e3, "million": 1e6}[scale] == pytest.approx(weights, rel=0.04)


@pytest.mark.parametrize("name", ["3a_precision", "3c_shapes", "3e_compile", "4b_nanogpt"])
@pytest.mark.parametrize("column", ["on a GPU", "on a CPU"])
def test_the_arithmetic_of_a_gpt_is_the_model_s(name, column):
    lab = labs.get(name)
    head, *rows = sizes.sizes(lab)
    if column not in head:
        return
    rows = {row[0]: row[head.index(column)] for row in rows}
    options = lab.forms["cuda" if "GPU" in column else "cpu"].options
    layers, width, heads, length = (options[each] for each in ("layers", "width", "heads", "length"))
    lengths, vocabulary = options.get("lengths") or [length], options.get("vocabulary", 256)
    flops = {}
    for attends in (True, False):
        with torch.device("meta"), FlopCounterMode(display=False) as counted:
            net = gpt.GPT(layers, width, heads, length, vocabulary)
            # written out: the counter leaves out what a causal mask hides in a fused one
            net.use((lambda q, k, v: (q @ k.transpose(-2, -1)) @ v) if attends else (lambda q, k, v: q + k + v))
            for each in lengths:
                net(torch.zeros(options["batch_size"], each, dtype=torch.int64)).sum().backward()
        flops[attends] = counted.get_total_flops() / len(lengths)
    units = {"TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6}
    parts = [float(a) * units[b] for a, b in re.findall(r"([\d.]+) ([TGM]FLOP)", rows["arithmetic per step"])]
    (scores,) = (float(a) * units[b] for a, b in re.findall(r"([\d.]+) ([TGM]FLOP)", rows["attention's scores"]))
    assert sum(parts) == pytest.approx(flops[False], rel=0.04)
    assert scores == pytest.approx(flops[True] - flops[False], rel=0.06)


def test_the_peaks_of_a_gpu_are_told_where_it_was_measured():
    assert "799 TFLOP/s in bf16" in sizes.peaks_of("NVIDIA H200") and "| 4.25 TB/s |" in sizes.peaks()
    assert sizes.peaks_of("another") == sizes.peaks_of(None) == ""


def test_a_batch_of_windows_is_told_in_tokens():
    options = labs.get("3a_precision").forms["cuda"].options
    assert f"{options['batch_size'] * options['length']:,} tokens" in sizes.markdown(labs.get("3a_precision"))
    assert "512, 640, 768, 1,024 tokens in turn" in sizes.markdown(labs.get("3e_compile"))


def test_every_loop_has_sizes_and_a_lab_of_questions_none():
    assert all(sizes.sizes(labs.get(name)) for name in labs.loops())
    assert sizes.markdown(labs.get("1e_retest")) == ""
