"""Which cores a grade has: a fair share for each GPU of a host, what a container and a user allow, and that a loop keeps to them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from helpers import GPT, loop, running
from hypothesis import given
from hypothesis import strategies as st

from grader import machine
from grader.cores import cut, flat, parse, shares, written
from grader.errors import UserError
from grader.sandbox import confine
from grader.sandbox.child_error import ChildError
from grader.sandbox.fork_server import fork_server
from grader.sandbox.setting import Limits

REPOSITORY = Path(__file__).resolve().parents[1]
ALL = frozenset(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(len(ALL) < 2, reason="there is one core only")


# ---------------------------------------------------------------- the arithmetic


@st.composite
def hosts(draw):
    """(threads by core, cores near each GPU) of a host, or of what a container has of one."""
    cores, threads, gpus = draw(st.integers(1, 24)), draw(st.integers(1, 2)), draw(st.integers(1, 8))
    whole = [tuple(core + cores * n for n in range(threads)) for core in range(cores)]
    missing = draw(st.sets(st.sampled_from(flat(whole)), max_size=cores * threads - 1))
    units = [left for unit in whole if (left := tuple(core for core in unit if core not in missing))]
    nodes = draw(st.lists(st.sets(st.sampled_from(flat(units))), min_size=gpus, max_size=gpus))
    return units, [frozenset(node) for node in nodes]


@given(hosts())
def test_shares_are_fair(host):
    """Of one size, no core in two, the threads of a core in one, and of each kind of core fewer left over than there are GPUs."""
    units, near = host
    found = shares(units, near)
    cores = [flat(own) for own in found]
    assert len(found) == len(near) and len({len(own) for own in cores}) == 1 and cores[0]
    assert set(flat(cores)) <= set(flat(units))
    if len(flat(units)) < len(near):
        return  # some have the same one
    assert len(set(flat(cores))) == len(flat(cores))
    if len(units) >= 2 * len(near):
        assert all(unit in units for own in found for unit in own)
        for size in {len(unit) for unit in units}:
            left = [unit for unit in units if len(unit) == size and unit not in flat(found)]
            assert len(left) < len(near)


@given(hosts(), st.floats(0.01, 100), st.floats(0, 1, exclude_max=True))
def test_a_cut_takes_as_many_as_there_is_time_for(host, most, where):
    units, _ = host
    found = cut(units, most, where)
    assert len(set(found)) == len(found) == max(1, min(int(most), len(flat(units)))) and set(found) <= set(flat(units))


def test_gpus_have_near_cores():
    """Two packages of 16 cores with two threads, whose GPUs are not in the order of the packages."""
    units = [(core, core + 32) for core in range(32)]
    first, second = ({core for unit in half for core in unit} for half in (units[:16], units[16:]))
    found = shares(units, [second, first, first, second])
    assert [written(flat(own)) for own in found] == ["16-23,48-55", "0-7,32-39", "8-15,40-47", "24-31,56-63"]
    # a GPU whose place nobody knows leaves the near ones to the others
    found = shares(units, [first | second, first, first, second])
    assert all(set(flat(own)) <= near for own, near in zip(found[1:], (first, first, second), strict=True))


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lists_of_cores_are_read_as_they_are_written(cores):
    assert parse(written(cores)) == cores


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "1 2", "0x1", "²", "9" * 30])
def test_what_is_no_list_of_cores(text):
    with pytest.raises(ValueError, match=r"cores|before"):
        parse(text)


# ---------------------------------------------------------------- a host with four GPUs


@pytest.fixture
def host(monkeypatch, tmp_path):
    """NVML's answers and the kernel's on a host with 64 cores of one thread each and four GPUs, two beside each package."""
    near = {0: range(32), 1: range(32), 2: range(32, 64), 3: range(32, 64)}

    def affinity(gpu, words):
        return [sum(1 << core % 64 for core in near[gpu] if core // 64 == word) for word in range(words)]

    allowed = {0: set(range(64)), 1: set(range(64))}  # of this process, of the first one
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed[pid])
    monkeypatch.setattr(machine, "_gpu", lambda: 0)
    monkeypatch.setattr(machine, "CPUS", tmp_path / "cpus")
    monkeypatch.setattr(machine, "PROCESS", tmp_path)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetIndex", lambda gpu: gpu)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", affinity)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(machine.CORES, raising=False)
    return allowed


def test_four_grades_at_once_do_not_meet(host, monkeypatch):
    seen = []
    for gpu in range(4):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(gpu))
        cores, why = machine.share(1)
        seen.append(written(cores))
        assert why == "its GPU's share of 64"
    assert seen == ["0-15", "16-31", "32-47", "48-63"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert written(machine.share(2)[0]) == "16-31,48-63"
    assert machine.share(0) == (frozenset(range(64)), "all")  # its CPU form
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "a GPU")  # a gain holds for the cores of a grade
    assert "a GPU, 16 cores" in machine.key("cuda") and "a GPU, 32 cores" in machine.key("cuda", ranks=2)


def test_a_driver_that_tells_nothing_of_cores(host, monkeypatch):
    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCpuAffinity", refuse)
    assert [written(own) for own in machine.gpu_shares()] == ["0-15", "16-31", "32-47", "48-63"]


def test_cores_that_somebody_chose_are_not_divided(host, monkeypatch):
    host[0] = set(range(8, 24))  # taskset, SLURM
    assert machine.share(1) == (frozenset(range(8, 24)), "those that it was started on")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert [written(own) for own in machine.gpu_shares()] == ["8-15", "16-23"]  # but by a pool among its workers
    host[1] = host[0]  # a container has these, and all four GPUs
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(machine.share(1)[0]) == 4
    monkeypatch.setenv(machine.CORES, "8-23")  # a worker that has all
    assert machine.share(1)[0] == frozenset(range(8, 24))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("quota", "gpus", "count"), [(32, 1, 8), (2, 1, 1), (2.5, 0, 2), (0.5, 0, 1), (None, 1, 16)])
def test_what_a_container_has_time_for(host, monkeypatch, tmp_path, version, quota, gpus, count):
    """Docker's --cpus and Kubernetes' limits lie on a group above that of the process."""
    names = {1: "3:memory:/other\n2:cpu,cpuacct:/pod/step\n", 2: "0::/pod/step\n"}
    groups = tmp_path / "groups"
    monkeypatch.setattr(machine, "CGROUPS", groups)
    (tmp_path / "cgroup").write_text(names[version])
    folder = groups / ("cpu,cpuacct/pod" if version == 1 else "pod")
    (folder / "step").mkdir(parents=True)
    if version == 2:
        (folder / "cpu.max").write_text("max 100000\n" if quota is None else f"{int(quota * 1e5)} 100000\n")
        (folder / "step" / "cpu.max").write_text("max 100000\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text("-1\n" if quota is None else f"{int(quota * 1e5)}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    cores, why = machine.share(gpus)
    assert len(cores) == count and (quota is None or f"the time of {quota:g}" in why)
    assert gpus == 0 or cores <= set(range(16))


def test_threads_of_a_core_stay_together(host, tmp_path):
    for core in range(64):
        folder = tmp_path / "cpus" / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 32},{core % 32 + 32}\n")
        (folder / "physical_package_id").write_text("0\n")
    for own in machine.gpu_shares():
        assert len(own) == 16 and {core % 32 for core in own} == {core % 32 for core in own if core < 32}


# ---------------------------------------------------------------- --cores


@pytest.mark.parametrize(
    ("text", "found"),
    [("1", "0"), ("16", "0-15"), ("24", "0-23"), ("64", "0-63"), ("5-5", "5"), ("60-63, 2", "2,60-63"), ("0,9", "0,9")],
)
def test_cores_that_are_asked_for(host, text, found):
    assert written(machine.asked_cores(text)) == found


def test_so_many_cores_are_those_of_the_gpu_s_share(host, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert written(machine.asked_cores("8")) == "32-39"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "from 1 to 64"),
        ("65", "from 1 to 64"),
        ("9" * 5000, "from 1 to 64"),
        ("-1", "as in 0-3,8"),
        ("", "as in 0-3,8"),
        ("½", "as in 0-3,8"),
        ("all", "as in 0-3,8"),
        ("5-3", "as in 0-3,8"),
        ("0-64", "may not use 64"),
    ],
)
def test_cores_that_nobody_has(host, text, why):
    with pytest.raises(UserError, match=why):
        machine.asked_cores(text)


# ---------------------------------------------------------------- a real child

SEEN = """
import json, multiprocessing, os, subprocess, sys

import torch

def seen():
    other = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count())"
    of_another, count = map(int, subprocess.run([sys.executable, "-c", other], stdout=-1, check=True).stdout.split())
    found = [len(os.sched_getaffinity(0)), of_another, torch.get_num_threads()]
    return found + [os.cpu_count(), count] * (sys.version_info >= (3, 13))
"""


@two_cores
def test_a_loop_sees_its_grade_s_cores_only():
    """Also where the fork server had begun on others; afterwards this process has all of its own."""
    before = fork_server()
    with machine.kept_on({min(ALL)}, "a test"):
        form = replace(GPT, threads=None)  # as many as torch finds
        with running(loop("yield torch.tensor(float(max(seen())))", SEEN), form, Limits()) as child:
            child.load()
            child.start(1)
            assert child.run(1)[1] == [1.0]
        assert machine.facts()["core_list"] == str(min(ALL)) and machine.facts()["cores"] == 1
    assert not before.alive() and frozenset(os.sched_getaffinity(0)) == ALL and "core_list" not in machine.facts()


@two_cores
def test_a_loop_that_takes_others_cores_is_stopped():
    wider = f"os.sched_setaffinity(0, {set(ALL)})\nwhile True:\n    yield torch.ones(())"
    with machine.kept_on({min(ALL)}, "a test"), running(loop(wider, "import os")) as child:
        child.load()
        child.start(1)
        child.run(1)
        with pytest.raises(ChildError, match=rf"cores .* but this grade has only {min(ALL)}\."):
            child.freeze()


@pytest.mark.slow
@two_cores
def test_a_loop_may_choose_among_its_cores():
    with running(loop(f"os.sched_setaffinity(0, {{{max(ALL)}}})\nyield torch.ones(())", "import os")) as child:
        child.load()
        child.start(1)
        child.run(1)
        child.freeze()
    assert fork_server().cores == ALL


@pytest.mark.skipif(
    not confine.landlock_abi(), reason="no kernel of which it is known that it keeps threads on their cores"
)
def test_a_loop_that_took_others_cores_for_a_while_is_stopped():
    """It can be back on its own when it is looked at. No more processor time is possible than its cores have, but more than they
    have in a tenth of its turn."""
    busy = "while True:\n    until = time.process_time() + 0.05\n    while time.process_time() < until:\n        pass\n    yield torch.ones(())"
    with running(loop(busy, "import time")) as child:
        child.load()
        child.start(1)
        child.run(1)
        for _ in range(2):
            child.freeze()
            child.thaw()
            child.run(1)
        child.freeze()
        child.freeze()  # no turn
        with pytest.raises(ChildError, match=r"of processor time within 0\.1 s, more than this grade's cores"):
            child.freezer.check_cores(len(ALL), 0.1, 1)


# ---------------------------------------------------------------- on the command line


@two_cores
def test_a_grade_on_one_core(tmp_path):
    """Its result says so; what cannot be is said before anything begins."""
    notebook = REPOSITORY / "labs" / "3a_precision" / "3a_precision.ipynb"
    command = [sys.executable, "-m", "grader", "grade", "3a_precision", str(notebook), "--device", "cpu", "--json", "-"]
    command += ["--allow-unconfined", "--cores"]
    core = max(ALL)
    done = subprocess.run([*command, f"{core}-{core}"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    facts = json.loads(done.stdout)["machine"]
    assert (facts["cores"], facts["core_list"], facts["cores_are"]) == (1, str(core), machine.ASKED)
    done = subprocess.run([*command, f"{core}-{core + 1}"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "this process may not use" in done.stderr


@two_cores
def test_a_process_that_was_started_on_some_cores_stays_there():
    program = "from grader import machine\nprint(machine.share(0))\nwith machine.own_cores(0): print(machine.facts())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        preexec_fn=lambda: os.sched_setaffinity(0, {max(ALL)}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "those that it was started on" in done.stdout and f"'core_list': '{max(ALL)}'" in done.stdout
