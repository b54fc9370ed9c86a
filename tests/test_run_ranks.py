"""`grader run`: jobs of several processes that train, which are ranks of one job or not."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grader import trace
from grader.frontends.run import Looks, summary
from grader.own.record import record
from grader.own.running import run_watched
from tests.own_jobs import LOOK, MODEL, ROOT, STEPS, script, watched


@pytest.mark.slow
def test_ranks_that_the_script_starts_are_ranks(tmp_path):
    body = """
        def rank(number):
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[1])
            torch.distributed.init_process_group("gloo", rank=number, world_size=2)
            for _ in range(150):
                step(); torch.distributed.barrier()
            torch.distributed.destroy_process_group()
        if __name__ == "__main__":
            torch.multiprocessing.spawn(rank, nprocs=2)
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    _, seen = watched(tmp_path, MODEL, body, arguments=[port])
    assert seen.status == 0
    assert [(each["rank"], each["steps"]) for each in seen.processes] == [(0, 150), (1, 150)]


def test_processes_that_train_side_by_side_each_have_a_number(tmp_path, capsys):
    body = """
        def alone(together):
            for n in range(100):
                step()
                if n == 12:
                    together.wait()
        if __name__ == "__main__":
            together = torch.multiprocessing.Barrier(2)
            them = [torch.multiprocessing.Process(target=alone, args=(together,)) for _ in range(2)]
            [each.start() for each in them], [each.join() for each in them]
    """
    _, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 10}, looked=Looks(tmp_path, stop=False))
    assert seen.status == 0
    assert [(each["rank"], each["steps"]) for each in seen.processes] == [(0, 100), (1, 100)]
    assert "2 processes train side by side, each by itself. This is the slowest one." in capsys.readouterr().err
    assert [line for line in summary(seen, record(seen, [])) if line[1] != " "][1:3] == [" process 0", " process 1"]


@pytest.mark.slow
def test_two_ranks_record_the_same_steps(tmp_path):
    body = """
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        for _ in range(int(sys.argv[1])):
            step(); time.sleep(0.005)
        torch.distributed.destroy_process_group()
    """
    path = script(tmp_path, MODEL, body)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path, "500"]
    seen = run_watched(line, tmp_path / "watch", LOOK)
    assert seen.status == 0
    assert [process["rank"] for process in seen.processes] == [0, 1]
    assert [process["steps"] for process in seen.processes] == [500, 500]
    first, second = (process["looks"][0] for process in seen.processes)
    assert first["at_step"] == second["at_step"]
    traces = [trace.read(Path(look["trace"])) for look in (first, second)]
    assert len(traces[0].steps) == len(traces[1].steps) >= 8


@pytest.mark.slow
def test_tasks_that_slurm_starts_are_ranks(tmp_path):
    """`grader run -- srun python train.py`, with what srun sets and nothing of torch.distributed; and a `grader run` in each task."""
    (tmp_path / "srun").write_text(
        "#!/bin/sh\nexport SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2\n"
        '(SLURM_PROCID=1 "$@") &\nSLURM_PROCID=0 "$@"; status=$?; wait; exit $status\n'
    )
    (tmp_path / "srun").chmod(0o755)
    steps = STEPS.replace("step()", "step(); time.sleep(0.01)")
    line = [sys.executable, script(tmp_path, MODEL, steps), "400"]
    seen = run_watched([str(tmp_path / "srun"), *line], tmp_path / "watch", LOOK)
    assert seen.status == 0
    assert [(each["rank"], each["world"], each["steps"]) for each in seen.processes] == [(0, 2, 400), (1, 2, 400)]
    assert len({each["looks"][0]["at_step"] for each in seen.processes}) == 1
    each = [
        sys.executable,
        "-m",
        "grader.frontends.cli",
        "run",
        "--at-step",
        "6",
        "--out",
        "out",
        "--",
        *line[:2],
        "60",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["./srun", *each], cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(path.parent.name for path in tmp_path.glob("out/*/run.json")) == ["rank-0", "rank-1"]
