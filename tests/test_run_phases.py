"""Several trainings, one after the other: what is told of one holds nothing of those before."""

import sys

import pytest

from grader.frontends.run import summary
from grader.own.record import record
from tests.own_jobs import CLOCK, MODEL, STEPS, command, script, watched


def test_what_came_before_the_main_training_is_no_part_of_it(tmp_path):
    """A head is trained first, and evaluated for most of its time; then all of the model."""
    body = """
        head = nn.Linear(2, 2)
        of_head = torch.optim.SGD(head.parameters(), 0.1)
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, n):
                clock[0] += 5
                return torch.ones(2)
        for n, x in enumerate(torch.utils.data.DataLoader(Slow())):
            head(x).sum().backward(); of_head.step()
            if n % 10 == 9:
                head.eval(); clock[0] += 100; head.train()
                torch.save(head.state_dict(), "head.pt")
        for n in range(40):
            clock[0] += 1
            step()
    """
    process, seen = watched(tmp_path, CLOCK, MODEL, body, options={"at_step": 1000}, cwd=tmp_path)
    (rank,) = record(seen, [])["ranks"]
    assert (rank["steps"], rank["step_s_mean"]) == (40, 1)
    assert rank["share"] == {"data_wait": 0, "evaluation": 0, "checkpoints": 0}
    assert process["counts"]["evaluation"] == process["counts"]["checkpoints"] == 0
    assert "40 steps of smaller models, which are not in this table" in "\n".join(summary(seen, record(seen, [])))


def test_long_steps_that_come_seldom_are_told(tmp_path):
    """As where a game is played before some of the steps."""
    body = "for n in range(300): clock[0] += {} if n % 100 == 99 else 1; step()"
    for longest, said in ((200, True), (10, False)):
        options = {"at_step": 6, "window_s": 0.0, "record": False}
        _, seen = watched(tmp_path, CLOCK, MODEL, body.format(longest), options=options)
        lines = "\n".join(summary(seen, record(seen, [])))
        assert ("1 s in the mean. Longer steps come seldom, and the report doesn't see them" in lines) == said


@pytest.mark.slow
def test_each_training_of_a_command_has_its_report(tmp_path):
    """The first one is killed, and can't say that it is over."""
    path = script(tmp_path, MODEL, STEPS, "if len(sys.argv) > 2: os.kill(os.getpid(), 9)\n")
    line = f"{sys.executable} {path} 5000 die; {sys.executable} {path} 5000; {sys.executable} {path} 5000"
    done = command(tmp_path, "--at-step", "6", "--out", "out", "--", "bash", "-c", line)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    names = {f"{name}{end}" for name in ("trace", "report") for end in ("", "-2", "-3")}
    assert {path.name.partition(".")[0] for path in (tmp_path / "out").iterdir()} == {*names, "run"}
    assert said.count("another training of this command") == 2 and "times as fast" not in said
