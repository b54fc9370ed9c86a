"""The lab 4c: its diffusion model, what is random in it, and the average of the weights that parity has to see."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import variants
from benchmarks import measured
from helpers import running, said
from torch.utils.flop_counter import FlopCounterMode

from grader import labs, machine
from grader.data.pictures import make_pictures
from grader.errors import UserError
from grader.grade import grade
from grader.grading.forms import prepared
from grader.labs.lab import Form
from grader.look import peek
from grader.measure.blocks import QUICK, Plan
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.submission import Submission
from grader.workloads import unet

NAME = "4c_unet"
LAB = labs.get(NAME)
CPU, CUDA = LAB.forms["cpu"], LAB.forms["cuda"]
SHORT = Plan(block_s=0.2, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")

# the training alone, a sixteenth of the pixels
SMALL = replace(
    CPU,
    options=CPU.options | {"batch_size": 4},
    data="pictures 8",
    minimum_gain=None,
    parity=replace(CPU.parity, steps=6),
)


def trained_alike(source: str, form: Form = SMALL, device: str = "cpu") -> Result:
    return grade(Submission(source), replace(LAB, forms={device: form}), device=device, plan=SHORT)


def graded(source: str, **options) -> Result:
    return grade(Submission(source), LAB, **{"device": "cpu", "plan": SHORT} | options)


@lru_cache(maxsize=1)
def job(seed: int = 3) -> unet.Diffusion:
    return unet.make_job(seed, torch.device("cpu"), **prepared(SMALL)[0])


# ---------------------------------------------------------------- the data


def test_pictures_are_thumbnails_of_the_images(tmp_path):
    from grader.data.images import generated

    images = generated(tmp_path / "images", count=20, progress=False)
    folder = make_pictures(16, tmp_path / "pictures", images=tmp_path / "images", count=20)
    train, held_out = np.load(folder / "train.npy"), np.load(folder / "held_out.npy")
    assert train.shape == (len(images.train), 16, 16, 3) and held_out.shape == (len(images.held_out), 16, 16, 3)
    assert train.dtype == np.uint8 and train.std() > 20
    before = (folder / "train.npy").stat().st_mtime_ns
    assert make_pictures(16, folder, count=20) == folder and (folder / "train.npy").stat().st_mtime_ns == before


def test_pictures_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="free some space, delete a damaged folder or set GRADER_CACHE"):
        make_pictures(16, tmp_path / "file" / "pictures")


# ---------------------------------------------------------------- the workload


def test_what_is_random_follows_from_seed_and_step():
    def drawn(job, step):
        generator = job.generator(step)
        times = torch.randint(len(job.schedule), (4,), generator=generator)
        return times, torch.randn(4, 3, 8, 8, generator=generator)

    one, other = replace(job(), seed=5), replace(job(), seed=6)
    for a, b in zip(drawn(one, 2), drawn(one, 2), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(drawn(one, 2)[1], drawn(one, 3)[1])
    assert not torch.equal(drawn(one, 2)[1], drawn(other, 2)[1])


def test_nearly_nothing_is_left_of_a_picture_at_the_last_level():
    schedule = job().schedule
    assert len(schedule) == unet.STEPS and 0.999 < schedule[0] < 1 and 0 < schedule[-1] < 1e-4
    assert (schedule.diff() < 0).all()


def test_the_model_says_what_it_lacks():
    net = unet.make_job(3, torch.device("cpu"), **prepared(SMALL)[0]).model.net
    with pytest.raises(NotImplementedError, match=r"net\.use\(attention, normalise, embed\)"):
        net(torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.long))


def test_the_starter_s_operations_are_the_model_s():
    """In double precision, so that a wrong formula cannot hide."""
    theirs: dict = {}
    exec(LAB.starter, theirs)
    q, k, v = torch.randn(3, 2, 4, 9, 16, dtype=torch.float64)
    torch.testing.assert_close(theirs["attention"](q, k, v), F.scaled_dot_product_attention(q, k, v))
    norm = torch.nn.GroupNorm(8, 32, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(2, 32, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(theirs["normalise"](x, norm), norm(x))
    ours: dict = {}
    exec(variants.solution(NAME), ours)
    last = ours["normalise_last"](x.to(memory_format=torch.channels_last), norm)
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, norm(x), atol=1e-5, rtol=1e-5)  # it works in single precision
    times = torch.tensor([0, 1, 500, 999])
    torch.testing.assert_close(theirs["embed"](times, 64), unet.sinusoidal(times, 64), atol=2e-4, rtol=0)


@pytest.mark.parametrize("form", [CPU, CUDA])
def test_work_of_a_picture(form):
    size = int(form.data.split()[1])
    with torch.device("meta"):
        net = unet.UNet(form.options["widths"])
        with FlopCounterMode(display=False) as counter:
            net(torch.zeros(1, 3, size, size), torch.zeros(1, dtype=torch.long)).sum().backward()
    if form.flops:
        assert form.flops == pytest.approx(form.options["batch_size"] * counter.get_total_flops(), rel=0.01)


# ---------------------------------------------------------------- the lab


def test_the_ladder_has_a_name_for_each_rung():
    names = [name for name, _ in measured.rungs(NAME)]
    assert len(set(names)) == len(names) and names[-1] == "the solution" and len(names) >= 8


def test_the_solution_trains_the_same_model():
    result = trained_alike(variants.solution(NAME))
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED


def test_an_average_that_is_not_kept_is_named():
    source, words = variants.wrongs(NAME)["the average is left as it is"]
    result = trained_alike(source)
    assert result.check("parity").status == FAIL and words in said(result)


def test_a_step_of_the_starter_is_the_documented_one():
    """The first loss, worked out from what the notebook says of it."""
    with running(LAB.starter, form=SMALL) as child:
        child.load()
        child.start(11)
        first = child.run(1)[1][0]
    job = unet.make_job(11, torch.device("cpu"), **prepared(SMALL)[0])
    batch = next(iter(job.batches))
    x = torch.from_numpy(job.dataset.pixels[batch]).permute(0, 3, 1, 2) / 127.5 - 1
    generator = job.generator(0)
    times = torch.randint(len(job.schedule), (len(batch),), generator=generator)
    noise = torch.randn(x.shape, generator=generator)
    s = job.schedule[times].view(-1, 1, 1, 1)
    job.model.net.use(unet.scaled_dot_product, unet.group_norm, unet.sinusoidal)
    predicted = job.model.net(s.sqrt() * x + (1 - s).sqrt() * noise, times)
    assert first == pytest.approx(F.mse_loss(predicted, noise).item(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.wrongs_on_a_cpu(NAME))
def test_what_is_another_training_is_named(what):
    source, words = variants.wrongs(NAME)[what]
    result = graded(source)
    assert words in said(result) and result.score == 0


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    for what, source in variants.faults(NAME).items():
        assert trained_alike(source, replace(CPU, minimum_gain=None)).check("parity").status == FAIL, what
    for what, source in variants.honest_on_a_cpu(NAME).items():
        result = trained_alike(source, replace(CPU, minimum_gain=None))
        assert not result.fatal and result.check("parity").status == PASS, f"{what}: {said(result)}"


@pytest.mark.slow
def test_scores_show_in_the_trace():
    counted = {
        which: peek(Submission(which(NAME)), LAB, device="cpu").metrics.score_matrices
        for which in (variants.starter, variants.solution)
    }
    assert counted == {variants.starter: 6, variants.solution: 0}


@gpu
def test_causes_on_a_gpu():
    """Each cause shows in the starter's trace, and none of them in the solution's."""
    starter, solution = (peek(Submission(which(NAME)), LAB) for which in (variants.starter, variants.solution))
    assert not starter.message and not solution.message, (starter.message, solution.message)
    before, after = starter.metrics, solution.metrics
    assert before.syncs > 100 and after.syncs <= 1
    assert before.half_share == 0 and after.half_share >= 0.9
    assert before.score_matrices == 8 and after.flash_share >= 0.9
    assert before.layout_share > 0.1 and after.layout_share <= 0.1
    assert before.launches > 3 * after.launches


@gpu
def test_gains_on_a_gpu():
    result = grade(Submission(variants.solution(NAME)), LAB, device="cuda", plan=QUICK)
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").evidence["gain"] > 3, said(result)
