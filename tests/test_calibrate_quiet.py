"""A calibration says how long it takes, and gives up at once where others use the machine."""

import os
import subprocess
import sys
import time

import pytest

from grader import calibrate, labs
from grader.frontends import cli


def test_it_gives_up_while_others_use_the_machine(capsys):
    burn = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(burn, stdout=subprocess.PIPE) for _ in os.sched_getaffinity(0)]
    try:
        for other in others:
            other.stdout.readline()
        began = time.monotonic()
        assert cli.main(["calibrate", "--device", "cpu"]) == 2
        said = capsys.readouterr().err
        assert time.monotonic() - began < 60, "not lab after lab"
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert said.count("Other programs use") == 1 and "Nothing was measured" in said and "of a core" in said
    count = sum(isinstance(lab, labs.lab.Lab) and calibrate.calibrated(lab, "cpu") for lab in map(labs.get, labs.NAMES))
    assert f"{count} labs, about {count} to {3 * count} minutes" in said


@pytest.mark.parametrize("arguments", [("2a_workers",)])
def test_it_says_how_long_it_takes_before_it_begins(arguments, capsys, monkeypatch):
    monkeypatch.setattr(calibrate, "quiet_here", lambda: (_ for _ in ()).throw(calibrate.Busy("busy")))
    assert cli.main(["calibrate", *arguments, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert said.index("1 lab, about 1 to 3 minutes") < said.index("busy")
