"""The training script that people begin with: its knobs train the same, and each run keeps what explains its speed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grader import trace
from grader.frontends import cli

TINY = ["--layers=2", "--width=32", "--heads=2", "--length=16", "--vocabulary=250", "--batch_size=8", "--steps=16", "--log_every=4", "--warm_up=2", "--timed=3", "--device=cpu"]  # fmt: skip
PLAIN = ["--compiled=False", "--workers=0", "--precision=fp32"]


@pytest.fixture
def folder(tmp_path) -> Path:
    assert cli.main(["scaffold", str(tmp_path / "mine")]) == 0
    return tmp_path / "mine"


def train(folder: Path, *knobs: str, ranks: int = 1) -> subprocess.CompletedProcess:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launch, "train.py", *TINY, *PLAIN, *knobs]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def losses(folder: Path, *knobs: str, ranks: int = 1) -> list[float]:
    done = train(folder, *knobs, ranks=ranks)
    assert done.returncode == 0, done.stderr
    (run,) = folder.glob("runs/*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    run.rename(folder / f"done-{len(list(folder.iterdir()))}")
    return [row["loss"] for row in rows]


@pytest.mark.slow
def test_a_run_keeps_what_explains_it(folder, capsys):
    done = train(folder, "--name=first", "--profiled=3", "--weight-decay=1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    (run,) = folder.glob("runs/*-first")
    assert {p.name for p in run.iterdir()} == {"config.json", "metrics.jsonl", "trace.json.gz", "weights.pt"}
    config = json.loads((run / "config.json").read_text())
    assert config["knobs"]["layers"] == 2 and config["knobs"]["weight_decay"] == 1.0 and config["torch"]
    assert config["step_ms"] > 0 and f"--step-ms {config['step_ms']:.4g}" in done.stdout
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 16] and all(row["samples_per_s"] > 0 for row in rows)
    recorded = trace.read(run / "trace.json.gz", expect_gpu=False)
    assert trace.metrics(recorded).steps == 3 and {"data_wait", "fwd", "bwd", "opt"} <= set(recorded.names)
    weights = torch.load(run / "weights.pt", weights_only=True)
    assert weights["embedding.weight"].shape == (250, 32), "the padding is not part of the model"
    # a later run is a comparison, as the docstring says
    later = run.with_name("later")
    shutil.copytree(run, later)
    (recipe,) = [line for line in (folder / "train.py").read_text().splitlines() if "runs/OLD" in line]
    said = recipe.replace("runs/OLD", str(run)).replace("runs/NEW", str(later))
    for name in ("OLD_MS", "NEW_MS"):
        said = said.replace(name, f"{trace.metrics(recorded).step_ns_traced / 1e6:.4g}")
    assert cli.main(said.split()[1:]) == 3, "no GPU: incomplete"
    out = capsys.readouterr().out
    assert f"before: {run.name}/trace.json.gz" in out and "after: later/trace.json.gz" in out
    assert out.count("measured without the profiler") == 2


@pytest.mark.slow
def test_a_model_of_one_s_own_is_saved_as_it_is(folder):
    script = (folder / "train.py").read_text()
    own = """class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(300, 8), nn.Linear(8, 300)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


if __name__ == "__main__":"""
    script = script.replace('if __name__ == "__main__":', own)
    begins = script.index("def make_model():")
    script = script[:begins] + "def make_model():\n    return Own()\n\n\n" + script[script.index("class Tokens(") :]
    (folder / "train.py").write_text(script)
    done = train(folder)
    assert done.returncode == 0, done.stderr
    (run,) = folder.glob("runs/*")
    weights = torch.load(run / "weights.pt", weights_only=True)
    assert weights["embedding.weight"].shape == (300, 8), "rows beyond the script's own vocabulary are its model's"


@pytest.mark.slow
def test_each_row_and_the_timed_steps_have_a_clock_of_their_own(folder):
    # steps of 100 ms or more, and the first timed one of 1,200 or more, on a busy machine as well; and those after the export,
    # which are slow by themselves
    script, end = (folder / "train.py").read_text(), "keeper.after(step, total)"
    assert script.count(end) == 1
    (folder / "train.py").write_text(script.replace(end, f"time.sleep(1.2 if step in (2, 10, 11) else 0.1); {end}"))
    done = train(folder, "--log_every=1", "--profiled=3")
    assert done.returncode == 0 and not done.stderr, done.stderr
    (run,) = folder.glob("runs/*")
    step_ms = json.loads((run / "config.json").read_text())["step_ms"]
    rows = {row["step"]: row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    assert list(rows) == [1, 2, 3, 4, 5, 13, 14, 15, 16], "none while the profiler records or just has, and all others"
    assert all(row["step_ms"] >= 100 for row in rows.values()) and rows[13]["step_ms"] < 1200, rows
    assert step_ms >= 466 and step_ms == pytest.approx(np.mean([rows[step]["step_ms"] for step in (3, 4, 5)]), rel=0.1)


@pytest.mark.slow
def test_without_a_gpu_it_says_what_takes_seconds(folder):
    without = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = {"cwd": folder, "capture_output": True, "text": True, "timeout": 600, "env": without}
    done = subprocess.run([sys.executable, "train.py"], **run)
    assert done.returncode == 1 and not (folder / "runs").exists(), done.stdout
    said, command = done.stderr.strip().split(": python train.py ")
    assert said.startswith("train.py: there is no GPU") and "\n" not in said
    assert f"python train.py {command}\n" in (folder / "train.py").read_text(), "the docstring has it as well"
    done = subprocess.run([sys.executable, "train.py", *command.split(), "--steps=34"], **run)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert len(list(folder.glob("runs/*/trace.json.gz"))) == 1


def test_a_file_that_is_there_stays(folder, capsys):
    (folder / "train.py").write_text("mine")
    assert cli.main(["scaffold", str(folder)]) == 2
    assert "is there already" in capsys.readouterr().err and (folder / "train.py").read_text() == "mine"


CANNOT_BE = [
    ("--worker=2", "The names are name, out, model"),
    ("--workers", "Write --name=value"),
    ("--workers=two", "type int, and 'two' is none"),
    ("--pin=1", "type bool, and 1 is none"),
    ("--precision=fp8", "must be one of fp32, tf32, bf16, fp16"),
    ("--batch_size=512", "has 256 samples"),
    ("--accumulation=3", "cannot be split"),
    ("--heads=3", "a width of 32 cannot be split among 3 heads"),
    (f"--seed={2**64}", "torch takes 64 bits"),
    ("--model=resnet --accumulation=2", "batch normalisation"),
    ("--model=resnet --checkpointing=True", "--checkpointing=True works with the GPT only"),
    ("--accumulation=0", "train.py: --accumulation must be at least 1, not 0."),
    ("--log-every=0", "train.py: --log_every must be at least 1, not 0."),
    ("--timed=0", "train.py: --timed must be at least 1, not 0."),
    ("--steps=-1", "train.py: --steps must be at least 1, not -1."),
    ("--batch_size=-8", "train.py: --batch_size must be at least 1, not -8."),
    ("--warm_up=-1", "train.py: --warm_up must be at least 0, not -1."),
    ("--weight_decay=-1", "train.py: --weight_decay must be at least 0, not -1.0."),
    (
        "--vocabulary=128256",
        "train.py: --vocabulary=128256 is too large. Tokens are uint16, which has 65536 values.",
    ),
    ("--data=missing.bin", "train.py: --data=missing.bin is not a file of uint16 tokens ("),
    ("--data=train.py", "train.py: --data=train.py is not a file of uint16 tokens ("),
]
EACH = """
import json, os, runpy, sys
import numpy, torch

for n, knobs in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        os.dup2(os.open(f"said-{n}", os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = ["train.py", *knobs]
        runpy.run_path("train.py", run_name="__main__")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow
def test_knobs_that_cannot_be(folder):
    """All in forked processes of one: to import torch takes longer than to refuse."""
    knobs = json.dumps([[*TINY, *PLAIN, *knob.split()] for knob, _ in CANNOT_BE])
    done = subprocess.run([sys.executable, "-c", EACH, knobs], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["1"] * len(CANNOT_BE), done
    for n, (knob, says) in enumerate(CANNOT_BE):
        said = (folder / f"said-{n}").read_text()
        assert says in said and "Traceback" not in said, (knob, said)


@pytest.mark.slow
def test_a_run_too_short_for_its_trace_says_so(folder):
    def kept(*knobs, needs=11):
        done = train(folder, *knobs)
        assert done.returncode == 0 and not done.stderr, done.stderr
        (run,) = folder.glob("runs/*")
        step_ms = json.loads((run / "config.json").read_text())["step_ms"]
        traced = (run / "trace.json.gz").exists()
        run.rename(folder / f"done-{len(list(folder.iterdir()))}")
        return f"No trace: it needs {needs} steps or more." in done.stdout, traced, step_ms

    assert kept("--steps=4") == (True, False, None), "the profiler has not begun"
    assert kept("--steps=10")[:2] == (True, False), "it has not ended"
    assert kept("--steps=11")[:2] == (False, True)
    assert kept("--steps=11", "--workers=1", "--prefetch=3", needs=14)[:2] == (True, False), (
        "the worker may have three batches ready"
    )
    says, traced, step_ms = kept("--steps=4", "--warm_up=0", "--profiled=0")
    assert not says and not traced, "none was asked for"
    assert step_ms > 0, "without a warm-up, steps are timed from the first one on"


@pytest.mark.slow
def test_knobs_for_speed_train_the_same(folder):
    plain = losses(folder, "--pad_vocabulary=1")
    assert plain[0] > plain[-1]
    for knobs in (["--pad_vocabulary=64"], ["--workers=2", "--profiled=0"], ["--accumulation=4"], ["--checkpointing=True"], ["--fused=False"], ["--profiled=0"]):  # fmt: skip
        found = losses(folder, *knobs)
        if "--profiled=0" in knobs:  # nothing is left out of the log then
            found = [found[0], found[-1]]
        assert found == pytest.approx(plain, rel=1e-4), knobs
    for precision in ("bf16", "fp16"):
        assert losses(folder, f"--precision={precision}") == pytest.approx(plain, rel=0.01), precision
    np.random.default_rng(1).integers(250, size=256 * 16 + 1, dtype=np.uint16).tofile(folder / "tokens.bin")
    assert losses(folder, "--data=tokens.bin") == pytest.approx(plain, rel=1e-6)
    assert losses(folder, "--seed=1") != pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
def test_several_ranks_train_what_one_does(folder):
    done = train(folder, "--batch_size=8", ranks=2)
    assert done.returncode == 0, done.stderr
    (run,) = folder.glob("runs/*")
    together = torch.load(run / "weights.pt", weights_only=True)
    run.rename(folder / "together")
    assert train(folder).returncode == 0
    (run,) = folder.glob("runs/*")
    alone = torch.load(run / "weights.pt", weights_only=True)
    for name, tensor in alone.items():
        assert torch.allclose(together[name], tensor, rtol=1e-3, atol=2e-4), name


@pytest.mark.slow
def test_images_of_one_s_own_that_are_floats_stay_as_they_are(folder):
    script = folder / "train.py"
    source = script.read_text()
    made = "torch.randint(256, (3, size, size), generator=draw, dtype=torch.uint8)"
    total = "        total = torch.zeros((), device=place)\n"
    assert made in source and total in source
    source = source.replace(made, "torch.rand(3, size, size, generator=draw)")
    script.write_text(source.replace(total, total + "        assert 0 <= inputs.min() and inputs.max() > 0.9\n"))
    images = "--model=resnet --size=32 --classes=10 --steps=3 --log_every=1 --warm_up=0 --timed=9"
    assert len(losses(folder, *images.split())) == 3


@pytest.mark.slow
def test_compiled_and_images(folder):
    plain = losses(folder)
    assert losses(folder, "--compiled=True") == pytest.approx(plain, rel=1e-4)
    # batch normalisation over few samples is chaotic: a rate at which rounding does not grow
    images = "--model=resnet --size=32 --classes=10 --steps=3 --log_every=1 --warm_up=0 --timed=9 --learning_rate=1e-5"
    contiguous = losses(folder, *images.split(), "--channels_last=False")
    assert len(contiguous) == 3 and losses(folder, *images.split()) == pytest.approx(contiguous, rel=1e-2)
