"""How many images a second a ResNet-50 trains on this GPU: with data that are there already, and fed from JPEG files by each rung
of 4a's ladder; with the share of the GPU's peak that the model's arithmetic takes (MFU).

    python -m tests.benchmarks.resnet_rate [--device auto] [--batch-size 256] [--rungs "resident,the solution,..."] [--out DIR]

All in one run on one GPU; each row in a process of its own, alone on the machine. Without a GPU it is the lab's tiny form, which
only shows that it runs. Then what reading and decoding deliver alone. The table is printed, and written to
DIR/resnet_rate.json with the machine and its versions; the sources to DIR/feeds.json."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from grader import labs, machine
from grader.devices import PEAKS
from grader.grading.arms import open_arm, set_up
from grader.grading.forms import choose_form, prepared
from grader.labs.lab import Form
from grader.measure.blocks import whole_rounds
from grader.result import write_json
from grader.workloads import imagenet
from tests import variants
from tests.benchmarks import measured

LAB = "4a_resnet50"
RESIDENT = "resident"
OPERATIONS = 6 * 4.09e9  # of an image, forward and backward; 4.09 G multiply-adds (torchvision's model page)
GOALS = (7000, 0.9)  # images a second on resident data; the share of it that files must reach


def rows(only: str) -> list[tuple[str, str]]:
    """What is measured: name and source. only: names, or words of several, with commas between; "" for all."""
    solution = variants.solution(LAB)
    edited = {
        RESIDENT: variants.RESIDENT,
        f"{RESIDENT}, in a CUDA graph": variants.RESIDENT_GRAPHED,
        **{f"{RESIDENT}, {what}": edits for what, edits in variants.RESIDENT_TRIED.items()},
        "the solution in a CUDA graph": variants.RESNET_GRAPHED,
    }
    made = [(name, variants.edit(solution, edits)) for name, edits in edited.items()]
    made += [("starter", variants.starter(LAB)), *measured.rungs(LAB)]
    names, asked = {name for name, _ in made}, only.split(",")
    words = [word for word in asked if word not in names]
    return [row for row in made if row[0] in asked or any(word in row[0] for word in words)]


def rate(source: str, form: Form, form_name: str, seconds: float) -> tuple[float, list[float]]:
    """Images a second in the median of three blocks, and of each."""
    setup = set_up(form, form_name)
    with open_arm(source, setup) as one:
        one.child.load()
        one.child.start(1)
        one.warm_up(8)
        one.burn()
        steps = whole_rounds(seconds, one.step_s)
        found = [setup.options["batch_size"] / one.run(steps) for _ in range(3)]
    return median(found), found


def feeds(form: Form, on_gpu: bool) -> dict[str, float | None]:
    """What the pictures' sources deliver alone: bytes of a file, and pictures a second that one thread reads (from the page
    cache), all CPU threads decode, and the GPU decodes, 256 at a time; None where it cannot."""
    solution: dict[str, Any] = {}
    exec(variants.solution(LAB), solution)
    options, _ = prepared(form)
    dataset = imagenet.make_job(1, torch.device("cpu"), **options).dataset
    some = range(min(1024, len(dataset)))
    files = [dataset[index][0] for index in some]

    def per_second(work: Callable[[], Any]) -> float:
        work()  # what is set up once
        began = time.monotonic()
        work()
        return len(files) / (time.monotonic() - began)

    def decode(device: str) -> Any:
        for n in range(0, len(files), 256):
            pictures = solution["decoded"](files[n : n + 256], torch.device(device))
        if on_gpu:
            torch.cuda.synchronize()
        return pictures

    able = on_gpu and decode("cuda")[0].is_cuda
    return {
        "bytes_of_a_file": sum(map(len, files)) / len(files),
        "files_read_per_s": per_second(lambda: [dataset[index] for index in some]),
        "decoded_by_the_cpu_per_s": per_second(lambda: decode("cpu")),
        "decoded_by_the_gpu_per_s": per_second(lambda: decode("cuda")) if able else None,
    }


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| | images/s | of resident | MFU | ms a step |", "|---|---|---|---|---|"]
    for row in found:
        shown = [f"{row[key]:.0%}" if row[key] is not None else "unknown" for key in ("of_resident", "mfu")]
        lines.append(f"| {row['what']} | {row['images_s']:,.0f} | {shown[0]} | {shown[1]} | {row['step_ms']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rungs", default="", help="words of their names, with commas between (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of three blocks (default: 2)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lab = labs.get(LAB)
    form_name = choose_form(lab, options.device)
    form = lab.forms[form_name]
    if options.batch_size:
        form = replace(form, options=form.options | {"batch_size": options.batch_size})
    batch, peaks = form.options["batch_size"], PEAKS.get(machine.gpu_name() or "")
    peak = peaks.half if peaks else None
    found: list[dict[str, Any]] = []
    began, chosen = time.monotonic(), rows(options.rungs)
    for n, (what, source) in enumerate(chosen, 1):
        images_s, blocks = rate(source, form, form_name, options.seconds)
        resident = next((row["images_s"] for row in found if row["what"] == RESIDENT), None)
        found.append(
            {
                "what": what,
                "images_s": images_s,
                "of_resident": 1.0 if what == RESIDENT else images_s / resident if resident else None,
                "mfu": images_s * OPERATIONS / peak if peak and form_name == "cuda" else None,
                "step_ms": 1e3 * batch / images_s,
                "blocks_images_s": blocks,
            }
        )
        left = (time.monotonic() - began) / n * (len(chosen) - n)
        print(f"{n}/{len(chosen)} {what}: {images_s:,.0f} images/s; about {left:.0f} s left", flush=True)
        if options.out:
            facts = {"batch_size": batch, "goals": GOALS, "form": form_name, "machine": machine.facts()}
            facts |= {"versions": machine.versions(), "date": time.strftime("%Y-%m-%d")}
            write_json(options.out / "resnet_rate.json", {"rows": found} | facts)
    sources = feeds(form, form_name == "cuda")
    if options.out:
        write_json(options.out / "feeds.json", sources)
    for what, value in sources.items():
        print(f"{what}: {'not possible here' if value is None else f'{value:,.0f}'}")
    print(f"\nbatch {batch}, {machine.gpu_name() if form_name == 'cuda' else machine.cpu_name()}\n{table(found)}")


if __name__ == "__main__":
    main()
