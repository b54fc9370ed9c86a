"""The GPT-2 lab on the CPU: its tokens, the training, and that what is wrong is rejected with its cause named. What needs a
GPU is measured by `tests/benchmarks/measured.py` and `tests/benchmarks/nanogpt_peer.py`."""

import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import variants
from benchmarks import measured, nanogpt_peer
from helpers import assert_each_cause_is_gone, assert_rejected, assert_told_apart, first, looked, said, traced_only

from grader import labs, machine
from grader.data import prepare, real, text, tokens
from grader.errors import UserError
from grader.grade import grade
from grader.measure.blocks import Plan
from grader.result import NOT_MEASURED, PASS, Result
from grader.submission import Submission
from grader.workloads import gpt

NAME = "4b_nanogpt"
LAB = labs.get(NAME)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
TEXT = b"def add(a, b):\n    return a + b  # 12 + 30 = 42 \xe2\x82\xac\n" * 2000
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def graded(source: str, device: str = "cpu") -> Result:
    return grade(Submission(source), LAB, device=device, plan=SHORT)


# ---------------------------------------------------------------- tokens


def test_tokens_are_the_text():
    vocabulary = tokens.vocabulary_of(TEXT, 300)
    encoded = tokens.encode(TEXT, vocabulary)
    assert encoded.dtype == np.uint16 and encoded.max() < 300
    assert len(encoded) < len(TEXT) / 2 and tokens.decode(encoded, vocabulary) == TEXT
    other = "naïve  \t\r\n§".encode()
    assert tokens.decode(tokens.encode(other, vocabulary), vocabulary) == other
    with pytest.raises(ValueError, match="fit into uint16"):
        tokens.vocabulary_of(TEXT, 1 << 17)


def test_frequent_pieces_come_first():
    vocabulary = tokens.vocabulary_of(b"aa bb aa cc aa bb", 259)
    assert vocabulary == {b" aa": 256, b" bb": 257, b" cc": 258}


def test_a_text_that_is_used_again_is_in_another_order():
    once = np.arange(5 * tokens.CHUNK, dtype=np.uint16)
    more = tokens.repeated(once, 13 * tokens.CHUNK)
    assert len(more) == 13 * tokens.CHUNK and (more[: len(once)] == once).all()
    again = more[len(once) : 2 * len(once)]
    assert (np.sort(again) == once).all() and (again != once).any()
    assert (tokens.repeated(once, 13 * tokens.CHUNK) == more).all() and tokens.repeated(once, 0) is once


def test_files_are_those_of_nanogpt(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "corpus", lambda: np.frombuffer(TEXT * 8, np.uint8))
    folder = tokens.make_tokens(400, count=1_000_000, folder=tmp_path / "tokens")
    assert sorted(path.name for path in folder.iterdir()) == ["train.bin", "val.bin"]
    train = np.fromfile(folder / "train.bin", np.uint16)
    assert len(train) == 1_000_000 and train.max() < 400
    assert real.token_files(folder) == folder
    written = (folder / "train.bin").stat().st_mtime_ns
    assert tokens.make_tokens(400, count=1_000_000, folder=folder) == folder
    assert (folder / "train.bin").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("train", "words"), [(None, "is not a file of uint16"), (b"abc", "is not"), (b"\xff\xff" * 9, "the token 65535")]
)
def test_other_files_are_refused(tmp_path, train, words):
    if train:
        (tmp_path / "train.bin").write_bytes(train)
    with pytest.raises(UserError, match=words):
        real.token_files(tmp_path)


def test_windows_of_a_file(tmp_path):
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "train.bin")
    data = gpt.windows(20, str(tmp_path), held_out=False)
    assert len(data) == 5
    inputs, targets = pickle.loads(pickle.dumps(data))[4]
    assert inputs.tolist() == list(range(80, 100)) and targets.tolist() == list(range(81, 101))
    assert inputs.dtype == targets.dtype == torch.int64
    assert len(pickle.dumps(data)) < 1000  # a worker maps the file, it is not sent the tokens


# ---------------------------------------------------------------- the lab


def test_the_model_is_gpt2():
    options = LAB.forms["cuda"].options | {"layers": 1}
    shape = {k: options[k] for k in ("layers", "width", "heads", "length", "vocabulary", "bias")}
    model = gpt.GPT(**shape)
    block = sum(p.numel() for p in model.blocks.parameters())
    rest = sum(p.numel() for p in model.parameters()) - block
    # GPT-2's 124,439,808 without its biases: 12 x (3 + 1 + 4 + 1) x 768 + 25 x 768 (of the normalisations)
    assert 12 * block + rest == 124_439_808 - (12 * 9 + 25) * 768
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())


def test_same_training():
    result = graded(variants.solution(NAME))
    assert not result.fatal and result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0


FIRST = ("the future is seen", "the loss is not logged")  # one by the training, one by the logs


@pytest.mark.parametrize(
    "what", first(sorted(variants.wrongs_on_a_cpu(NAME), key=lambda what: what not in FIRST), len(FIRST))
)
def test_what_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(NAME)[what]
    assert_rejected(graded(source), words)


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    assert_told_apart(variants.faults(NAME), variants.honest_on_a_cpu(NAME) | dict(measured.rungs(NAME)), graded)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["", *variants.GPT2_CANDIDATES][::4])
def test_candidates_train_the_same_when_compiled(what, tmp_path, monkeypatch):
    """In fp32 on the CPU, a model of one layer, three steps; every fourth. Inductor, which takes ten seconds, makes the plain one alone."""
    plain = variants.base(NAME, "plain")
    source = variants.edit(plain, variants.GPT2_CANDIDATES[what]) if what else plain
    options = LAB.forms["cpu"].options | {"layers": 1, "folder": str(prepare(LAB.forms["cpu"].data))}
    losses = []
    compiled = re.sub(r" if cuda else (loss|hidden)_of", "", source).replace("if cuda else ()", "if job else ()")
    compiled = traced_only(compiled) if what else compiled
    for text_of in (plain, compiled):
        job = gpt.make_job(1, torch.device("cpu"), **options)
        loop = nanogpt_peer.loaded(text_of, tmp_path).train(job)
        losses.append([next(loop).item() for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


HEAD = """
import json
import sys
from pathlib import Path
import torch
import torch.nn.functional as F
import variants
from benchmarks import nanogpt_peer

folder = Path(sys.argv[1])
torch.cuda.is_available = lambda: True  # so that the loop defines its kernel, which Triton then interprets
loop = nanogpt_peer.loaded(variants.solution("4b_nanogpt"), folder)
width, words = 64, 200


def off(tokens, level_off, sure):
    torch.manual_seed(0)
    weight = 0.1 * torch.randn(words, width)
    targets = torch.randint(0, words, (tokens,))
    hidden = torch.randn(tokens, width)
    if sure:
        hidden = 0.5 * hidden + sure * weight[targets] / weight[targets].square().sum(1, keepdim=True)
    weight, hidden = weight.requires_grad_(), hidden.bfloat16().requires_grad_()
    logits = F.linear(hidden.float(), weight)
    exact = F.cross_entropy(logits, targets)
    expected = torch.autograd.grad(3 * exact, (hidden, weight))

    head = F.pad(weight, (0, 0, 0, -words % loop.WIDE))
    level = logits.detach().logsumexp(1).mean() * loop.LOG2E - loop.BITS + level_off
    in_8_bits = loop.short(hidden.detach(), loop.INPUTS), loop.short(head.detach(), loop.WEIGHTS)
    others, by_token, by_word = loop.softmax_of_head(*in_8_bits, targets, level, words)
    assert by_token.shape == (tokens, 256) and (by_token.float() == by_word.float().T).all()
    assert not by_token[:, words:].float().any() and not by_token.float()[range(tokens), targets].any()
    loss, logs = loop.HeadAndLoss.apply(hidden, head, targets, others.sum(0), by_token, by_word, level)
    assert abs(logs.mean() - loop.BITS - level + level_off) < 0.01  # the next step's level
    made = torch.autograd.grad(3 * loss, (hidden, weight))
    gradients = [((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(made, expected)]
    return {"loss": exact.item(), "loss_off": abs(loss - exact).item(), "gradients_off": gradients}


print(json.dumps([off(*case) for case in json.loads(sys.argv[2])]))
"""


@pytest.mark.slow
def test_the_head_without_logits_has_the_same_loss_and_gradients(tmp_path):
    """The solution's kernel, interpreted, beside the loss in fp32."""
    pytest.importorskip("triton")
    cases = [  # tokens, off level, how sure
        (256, 0, 0),
        (256, 3, 0),  # the level of the step before does not fit any more, by three powers of two
        (384, -3, 0),  # three tiles are no multiple of those that take turns
        (256, 0, 10),  # the model is sure of nearly all tokens
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HEAD, str(tmp_path), json.dumps(cases)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not ran.returncode, ran.stderr[-2000:]
    for case, found in zip(cases, json.loads(ran.stdout), strict=True):
        assert found["loss_off"] < 0.003 and max(found["gradients_off"]) < 0.04, (case, found)
        assert not case[2] or found["loss"] < 0.1, (case, found)


def test_what_is_left_is_counted_on_a_cpu():
    starter, solution = (looked(LAB, which(NAME), "cpu") for which in (variants.starter, variants.solution))
    assert starter.score_matrices > 0 and solution.score_matrices == 0
    assert starter.aligned_share < 1 and solution.aligned_share == 1


@gpu
def test_the_causes_on_a_gpu():
    starter, solution = (looked(LAB, which(NAME), "cuda") for which in (variants.starter, variants.solution))
    assert_each_cause_is_gone(LAB, starter, solution)


# ---------------------------------------------------------------- beside nanoGPT


BENCH = """import sys
batch_size, real_data = 8, True
exec(open("configurator.py").read())
print("number of parameters: 123.59M")
print(f"0/10 loss: {batch_size}.0", file=sys.stderr)
print(f"time per iteration: {batch_size * 2:.4f}ms, MFU: 12.34%")
"""
CONFIGURATOR = """import sys
for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    globals()[key] = eval(val)
"""


def test_bench_is_run_at_each_batch_size(tmp_path):
    """The peer's own program, asked as it wants to be asked, stands in for itself: what it prints is read."""
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    assert nanogpt_peer.bench(tmp_path, 32) == pytest.approx(64e-3)


@pytest.mark.parametrize(
    ("program", "words"), [("print('ready')", "printed no time per iteration"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_bench_that_says_nothing(tmp_path, program, words):
    (tmp_path / "bench.py").write_text(program)
    with pytest.raises(UserError, match=words):
        nanogpt_peer.bench(tmp_path, 12)
    with pytest.raises(UserError, match=r"no bench\.py"):
        nanogpt_peer.bench(tmp_path / "elsewhere", 12)


def test_operations_of_a_token_as_nanogpt_counts_them():
    assert nanogpt_peer.flops_per_token() == pytest.approx(6 * 123.6e6 + 12 * 12 * 768 * 1024, rel=1e-3)
