"""Lab 4a: what is random in its job, what may be done otherwise and what may not, and the benchmark of its ladder."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import variants
from benchmarks import resnet_rate
from helpers import running, said, traced_only
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from grader import labs, machine
from grader.data import images, prepare
from grader.grade import grade
from grader.grading import verdict
from grader.grading.evidence import Findings, Profiles, Race, Work, Yardstick
from grader.grading.race import decides
from grader.measure.blocks import Plan
from grader.measure.decision import Pair
from grader.result import FAIL, NOT_MEASURED, PASS, Result, unscored
from grader.sandbox.child_error import ChildError
from grader.submission import Submission
from grader.trace import Metrics
from grader.workloads import imagenet

NAME = "4a_resnet50"
LAB = labs.get(NAME)
PLAN = Plan(block_s=0.2, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
SMALL = {"size": 32, "batch_size": 8, "count": 32, "recurring": (12, 16)}
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def graded(source: str, device: str = "cpu", small: bool = False) -> Result:
    lab = LAB
    if small:
        form = lab.forms["cpu"]
        # of fewer and smaller pictures a decoder's grey levels weigh more: from 30 seeds the solution's losses were 0.08% to 0.41% off,
        # its cosine 0.982 to 0.995; without flips 0.760 to 0.894
        parity = replace(form.parity, loss=0.01, cosine=0.94)
        lab = replace(lab, forms={"cpu": replace(form, options=form.options | SMALL, parity=parity)})
    return grade(Submission(source), lab, device=device, plan=PLAN)


@pytest.fixture(scope="module")
def job() -> imagenet.PictureJob:
    options = LAB.forms["cpu"].options | SMALL
    return imagenet.make_job(7, torch.device("cpu"), folder=str(prepare("images")), **options)


@pytest.fixture(scope="module")
def solution() -> SimpleNamespace:
    """The names that the solution's cell defines."""
    names: dict = {}
    exec(variants.solution(NAME), names)
    return SimpleNamespace(**names)


# ---------------------------------------------------------------- the job


def test_crops_follow_from_seed_and_step():
    sizes = torch.tensor([[375, 500], [430, 600], [320, 400]])
    crops = imagenet.Crops(3)
    assert torch.equal(crops(5, sizes), imagenet.Crops(3)(5, sizes))
    for other in (crops(6, sizes), imagenet.Crops(4)(5, sizes)):
        assert not torch.equal(crops(5, sizes), other)
    assert torch.equal(crops(5, sizes)[:1], crops(5, sizes[:1]))  # a picture's numbers are its row's


def test_crops_are_those_of_torchvision():
    """By their distribution: shares of the area, aspect ratios, places."""
    sizes = torch.tensor([[375, 500]]).expand(4000, 2)
    top, left, height, width, flipped = imagenet.Crops(0)(0, sizes).double().unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (top + height <= 375).all() and (left + width <= 500).all()
    assert 0.47 < flipped.mean() < 0.53
    torch.manual_seed(0)
    blank = torch.empty(3, 375, 500)
    drawn = [RandomResizedCrop.get_params(blank, imagenet.AREA, imagenet.ASPECT) for _ in range(4000)]
    theirs = torch.tensor(drawn, dtype=torch.float64).unbind(1)
    for ours, other in zip((top, left, height, width), theirs, strict=True):
        for figure in (torch.mean, torch.std):
            assert figure(ours).item() == pytest.approx(figure(other).item(), rel=0.06)


def test_a_picture_that_no_crop_fits_is_taken_whole():
    (box,) = imagenet.Crops(0)(0, torch.tensor([[1, 4000]])).tolist()
    assert box[:4] == [0, 0, 1, 4000]


def test_the_first_batches_are_of_few_pictures_and_the_rest_of_all():
    batches = list(islice(imagenet.Recurring(90, 8, 5, steps=6, few=20), 6 + 11))
    first = [index for batch in batches[:6] for index in batch]
    assert set(first) <= set(range(20)) and len(first) > 2 * len(set(first))
    assert all(len(set(batch)) == 8 for batch in batches)
    assert batches[6:] == list(islice(imagenet.Batches(90, 8, 5), 11))


@pytest.mark.parametrize("form", LAB.forms.values(), ids=LAB.forms)
def test_each_picture_comes_again_in_the_steps_that_are_compared(form):
    steps, few = form.options["recurring"]
    assert steps == form.parity.steps and 2 * few <= steps * form.options["batch_size"]


def ahead_by(batches: int) -> str:
    """A loop that draws so many batches before it trains on the first."""
    loop = "    for step, batch in enumerate({}):\n"
    ready = f"    batches = iter(job.batches)\n    ready = [next(batches) for _ in range({batches})]\n"
    oldest = "        ready.append(batch)\n        batch = ready.pop(0)\n"
    return variants.edit(
        variants.solution(NAME), [(loop.format("job.batches"), ready + loop.format("batches") + oldest)]
    )


def test_batches_are_not_prepared_before_the_clock_starts():
    """A pipeline may be ahead by what its workers hold ready; augmented batches for the whole measurement are no speed that lasts."""
    form = replace(LAB.forms["cpu"], options=LAB.forms["cpu"].options | SMALL)
    most = imagenet.most_ahead()
    assert most >= 32
    for batches, fits in ((most - 1, True), (most + 1, False)):
        with running(ahead_by(batches), form) as child:
            child.load()
            child.start(1)
            if fits:
                child.run(3)
            else:
                with pytest.raises(ChildError, match="When step 1 was made"):
                    child.run(1)


def test_the_data_set_is_what_lies_on_the_disk(job):
    data, label = job.dataset[5]
    assert data.numpy().tobytes() == job.dataset.files[5].read_bytes() and label == job.dataset.labels[5]
    height, width = job.dataset.sizes[5].tolist()
    assert Image.open(io.BytesIO(data.numpy().tobytes())).size == (width, height)


def test_large_sets_are_made_by_several_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "PART", 10)
    monkeypatch.setattr(images.os, "cpu_count", lambda: 8)
    started = []
    monkeypatch.setattr(
        images.subprocess,
        "Popen",
        lambda *a, make=images.subprocess.Popen, **k: started.append(make(*a, **k)) or started[-1],
    )
    dest = images.make_images(tmp_path / "set", count=40, progress=False)
    assert len(started) == 3 and all(program.poll() is not None for program in started)
    made = images.stored(dest)
    assert len(made.train) == 36 and len(made.held_out) == 4
    picture, quality = images.draw(0, 21)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    assert made.train.files[21].read_bytes() == buffer.getvalue()
    assert not list(dest.glob("**/.*"))  # nothing unfinished


def test_a_program_that_helps_may_be_ended_at_any_time(tmp_path):
    """One was ended while it marked the set as complete: what it had begun to write stayed behind."""
    dest = images.make_images(tmp_path / "set", count=6, progress=False, part=images.Part(1, 2))
    assert len(list(dest.glob("*/*/*.jpg"))) == 6 and not (dest / "manifest.json").exists()
    assert images.make_images(tmp_path / "set", count=6, progress=False) == dest and (dest / "manifest.json").exists()


# ---------------------------------------------------------------- what may be done otherwise


def test_crops_by_matrix_products_are_those_of_pil(job, solution):
    """But for the rounding to 256 levels, which PIL does twice."""
    batch = list(range(8))
    names: dict = {}
    exec(variants.starter(NAME), names)
    wanted, labels = names["Cropped"](job)[3, batch]
    pictures = solution.load(job.dataset, torch.device("cpu"))
    boxes = job.crops(3, job.dataset.sizes[batch])
    assert 0 < boxes[:, 4].sum() < 8  # some are flipped
    found = solution.cropped(pictures[batch], boxes, job.size)
    off = (found - (wanted + 2) * 64).abs()
    assert off.max() < 1.6 and off.mean() < 0.5
    assert torch.equal(labels, job.dataset.labels[batch])


@pytest.mark.skipif(machine.has_gpu(), reason="there is one that decodes")
def test_without_a_decoder_on_the_gpu_the_cpu_decodes(job, solution):
    data, _ = job.dataset[0]
    (picture,) = solution.decoded([data], torch.device("cuda"))
    assert np.array_equal(picture.permute(1, 2, 0).numpy(), np.asarray(Image.open(job.dataset.files[0])))


def test_the_same_training_is_accepted_and_another_one_is_not():
    result = graded(variants.solution(NAME), small=True)
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0
    for what in ("never flipped", "running statistics stay"):
        source, words = variants.wrongs(NAME)[what]
        assert words in said(graded(source, small=True))


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.honest_on_a_cpu(NAME))
def test_honest_forms_are_accepted(what):
    result = graded(variants.honest_on_a_cpu(NAME)[what])
    assert not result.fatal and result.check("parity").status == PASS, said(result)


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.halves(NAME))
def test_rungs_train_the_same(what):
    result = graded(traced_only(variants.halves(NAME)[what]))
    assert not result.fatal and result.check("parity").status == PASS, said(result)


# other crops round otherwise, and hide it: from two seeds 0.003 and 0.0055 of its 0.01 were certain, and 0.006 tells (parity.DECAY)
HIDDEN = {"no weight decay"}


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in variants.faults(NAME) if what not in HIDDEN])
def test_faults_are_rejected(what):
    result = graded(variants.faults(NAME)[what])
    assert not result.fatal and result.check("parity").status == FAIL, said(result)


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.wrongs_on_a_cpu(NAME))
def test_what_is_another_training_is_named(what):
    source, words = variants.wrongs(NAME)[what]
    result = graded(source)
    assert words in said(result) and result.score == 0


# ---------------------------------------------------------------- the benchmark


@pytest.mark.slow
def test_the_benchmark_runs_without_a_gpu(tmp_path, monkeypatch, capsys):
    arguments = [
        "resnet_rate",
        "--device",
        "cpu",
        "--rungs",
        "resident,starter,nothing kept,host's memory",
        "--seconds",
        "0.2",
    ]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path)])
    resnet_rate.main()
    shown = capsys.readouterr().out
    assert "| resident |" in shown and "| starter |" in shown and "unknown" in shown
    found = json.loads((tmp_path / "resnet_rate.json").read_text())
    nothing_kept = "decoded on the GPU in every step, a batch ahead, and nothing kept"
    by_the_host = "kept in the host's memory, sent a batch ahead"
    assert [row["what"] for row in found["rows"]] == ["resident", "starter", nothing_kept, by_the_host]
    assert found["form"] == "cpu"
    assert all(row["images_s"] > 0 and row["mfu"] is None for row in found["rows"])
    assert 20e3 < json.loads((tmp_path / "feeds.json").read_text())["bytes_of_a_file"] < 120e3


# ---------------------------------------------------------------- on a GPU


@gpu
def test_a_gpu_decodes_the_same_picture(job, solution):
    """Colours are interpolated otherwise: some levels in some pixels."""
    data = [job.dataset[index][0] for index in range(8)]
    ours, theirs = (solution.decoded(data, torch.device(device)) for device in ("cuda", "cpu"))
    off = torch.cat([(a.cpu().float() - b.cpu().float()).abs().flatten() for a, b in zip(ours, theirs, strict=True)])
    assert off.mean() < 2 and (off > 16).float().mean() < 0.01


@gpu
def test_the_solution_on_a_gpu():
    result = grade(Submission(variants.solution(NAME)), LAB, device="cuda")
    assert result.check("parity").status == PASS, said(result)
    for check in LAB.trace:
        assert result.check(check.name).status == PASS, said(result)


@pytest.mark.parametrize(
    ("size", "idle", "points"), [("", 0.3, 12.86), ("", 0.2, 15), ("mid", 0.6, 15), ("small", 0.75, 15)]
)
def test_smaller_forms_allow_a_gpu_that_waits_for_launches(size, idle, points):
    form = next(form for form in (LAB.forms["cuda"], *LAB.smaller) if form.size == size)
    pairs = (Pair(0.3, 0.02),) * 3
    decided = decides(False, form.minimum_gain, form, Plan(min_pairs=2))(pairs)
    seen = Profiles({"submission": Metrics(gpu_idle_unprofiled=idle)})
    parity = unscored(SimpleNamespace(name="parity", title="", points=0, max_points=0), PASS, "")
    found = Findings(
        replace(LAB, forms={"cuda": form}),
        "cuda",
        yardstick=Yardstick(target=form.minimum_gain),
        work=Work(parity=parity),
        race=Race(pairs, decided),
        profiles=seen,
    )
    check = next(check for check in verdict.judge(found, Submission("")) if check.name == "idle")
    assert check.points == pytest.approx(points, abs=0.01), check.reason
