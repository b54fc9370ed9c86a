"""The course in other people's machines: containers, clusters, kernels that only imitate Linux (`tests/boxes.py`)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from boxes import BOXES
from helpers import IS_ROOT, first

from grader import labs
from grader.paths import REPOSITORY
from grader.submission import MAGIC

NO_SHM = "no_shm"
# what goes together in the places that people have
DOCKER = "small_shm,docker_capabilities,no_namespaces,docker_calls"
JUPYTERHUB = "nobody,no_namespaces,hidepid"
GVISOR = "gvisor_calls,docker_capabilities,small_shm"
WORKING = (
    DOCKER, JUPYTERHUB, GVISOR, NO_SHM, "no_capabilities", "read_only_proc,no_cgroups,long_temporary",
    "no_home,one_core,no_ps,locale_c", "full_home,locale_posix", "few_files,strict_umask,bare_path,latin_1",
    "nobody,few_processes", "only_root,no_locks,jumping_clock", "noexec_temporary,read_only_packages,old_cgroups",
)  # fmt: skip
LOOP = f"""{MAGIC}
import torch
import torch.nn.functional as F


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for x, y in job.batches:
        yield torch.zeros(())
"""

pytestmark = pytest.mark.skipif(not IS_ROOT or sys.platform != "linux", reason="the boxes need root on Linux")


def in_box(names: str, *command: str | Path, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess:
    """A command in a box; a traceback is never what anybody gets."""
    path = os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests/boxes.py"), names, sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
    )
    if re.search(r"Error: \[Errno \d+\] (mount\(|unshare|capset)", done.stderr):
        pytest.skip(f"this machine does not allow it: {done.stderr.strip().splitlines()[-1]}")
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def test_each_box_takes_away_what_it_says():
    looks = {
        "small_shm": ("import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20)", "64"),
        "no_shm": ("import os; print(os.path.exists('/dev/shm'))", "False"),
        "nobody": ("import os; print(os.getuid())", "65534"),
        "no_capabilities": ("print(open('/proc/self/status').read().partition('CapEff:')[2].split()[0])", "0" * 16),
        "subset_pid": ("import os; print(os.path.exists('/proc/meminfo'))", "False"),
        "without_landlock": ("from grader.sandbox import confine; print(confine.landlock_abi())", "0"),
        "one_core": ("import os; print(len(os.sched_getaffinity(0)))", "1"),
        "few_files": ("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))", "(256, 256)"),
        "jumping_clock": ("import time; print(time.time() + 3000 < time.time())", "True"),
        "nameless": ("import os, pwd; print(os.getuid() in [each.pw_uid for each in pwd.getpwall()])", "False"),
        "only_root": ("import os; print(open('/proc/self/uid_map').read().split())", "['0', '0', '1']"),
        "old_cgroups": ("from grader import machine; print(machine.quota(), machine.allowed_memory() >> 30)", "1.5 3"),
        "bare_path": ("import shutil; print(shutil.which('rm'))", "None"),
        "no_locks": (
            "import fcntl, tempfile\ntry: fcntl.flock(tempfile.TemporaryFile(), fcntl.LOCK_SH)\nexcept OSError as e: print(e.errno)",
            "37",
        ),
        "read_only_packages": ("import os, sys; print(os.access(sys.prefix, os.W_OK))", "False"),
    }
    assert looks.keys() <= BOXES.keys()
    for name, (program, said) in looks.items():
        assert in_box(name, "-c", program).stdout.strip() == said, name


def test_a_box_tells_how_its_program_ended_and_leaves_nothing_behind():
    in_box("nobody,no_shm,long_temporary,read_only_home", "-c", "import tempfile; tempfile.mkdtemp()")
    assert in_box("one_core", "-c", "raise SystemExit(7)").returncode == 7
    assert in_box("one_core", "-c", "import os; os.kill(os.getpid(), 15)").returncode == 128 + 15
    assert not list(Path("/var/tmp").glob(f"box-{os.getpid()}-*"))  # another test run has boxes there as well


@pytest.mark.parametrize("box", first(["subset_pid,read_only_home,locale_posix", "no_proc", *WORKING]))
def test_a_recording_is_diagnosed_in(box):
    trace = REPOSITORY / "data/traces/gpt_input.json.gz"
    done = in_box(box, "-m", "grader", "diagnose", trace)
    assert done.returncode == 0 and "input-bound" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("box", WORKING)
def test_doctor_says_what_works_in(box):
    done = in_box(box, "-m", "grader", "doctor")
    files_are_open = "gvisor" in box
    assert done.returncode == files_are_open and not done.stderr, done.stderr
    assert done.stdout.count("For your own learning nothing is missing.") == files_are_open
    assert ("no /dev/shm" in done.stdout) == (box == NO_SHM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("box", "said"),
    [
        ("subset_pid", "no /proc/meminfo"),
        ("no_proc", "no /proc/meminfo"),
        ("read_only_home", "Set GRADER_CACHE to a folder"),
        ("nameless", "Set GRADER_CACHE to a folder"),
        ("like_macos", "Loops are measured on Linux only."),
    ],
)
def test_doctor_says_in_one_line_what_lacks(box, said):
    done = in_box(box, "-m", "grader", "doctor")
    assert done.returncode and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("grade", "2a", REPOSITORY / "labs/2a_workers/2a_workers.ipynb", "--device", "cpu"), "no /proc/meminfo"),
        (("run", "--", sys.executable, "-c", "print(1)"), "no /proc"),
        (("try", "--", sys.executable, "-c", "print(1)"), "no /proc"),
    ],
    ids=["grade", "run", "try"],
)
def test_without_proc_commands_say_so_before_they_begin(command, said, tmp_path):
    done = in_box("no_proc", "-m", "grader", *command, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.returncode and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    REPOSITORY.is_relative_to("/tmp"), reason="the full disk lies over /tmp, and so over this repository"
)
@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("grade", "1a_stopwatch", REPOSITORY / "labs/1a_stopwatch/1a_stopwatch.ipynb", "--device", "cpu", "--quick"),
        ("try", "--", sys.executable, "-c", "print(1)"),
    ],
    ids=lambda command: command[0],
)
def test_no_room_for_temporary_files(command):
    """Nor in the working folder, which Python takes then."""
    done = in_box("full_disk", "-m", "grader", *command, cwd=Path("/tmp"), PYTHONPATH=str(REPOSITORY))
    said = "Free some space there, or set TMPDIR to a folder that has some."
    assert done.returncode and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


TRACE = REPOSITORY / "data/traces/gpt_input.json.gz"
QUESTIONS = REPOSITORY / "labs/1c_diagnose/1c_diagnose.ipynb"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("box", "why"),
    [("full_folder", "No space left on device"), ("nobody", "Permission denied")],
    ids=["full", "others'"],
)
@pytest.mark.parametrize(
    ("command", "target"),
    [
        (("diagnose", TRACE, "--html", "page.html"), "page.html"),
        (("grade", "1c", QUESTIONS, "--json", "result.json"), "result.json"),
        (("run", "--", sys.executable, "-c", "print('begun')"), "grader-run"),
        (("run", "--out", "mine", "--", sys.executable, "-c", "print('begun')"), "mine"),
        (("demo", "--out", "reports"), "reports"),
        (("course", "mine"), "mine"),
    ],
    ids=lambda words: words if isinstance(words, str) else words[0],
)
def test_where_nothing_can_be_written_it_is_said_first_and_in_one_line(box, why, command, target):
    done = in_box(box, "-m", "grader", *command, cwd=Path("/usr"), PYTHONPATH=str(REPOSITORY))
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    assert line.startswith("grader: ") and target in line and f" cannot be written: {why}. Name a f" in line


FILLS = """
import contextlib, pathlib, sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def steps(count):
    for _ in range(count):
        model(torch.randn(64, 8)).sum().backward(); optimizer.step()

if sys.argv[1] == "late":
    while not [*pathlib.Path(".").rglob("process-*.json")]:
        steps(10)
with contextlib.suppress(OSError), open("full", "wb", buffering=0) as file:
    while file.write(bytes(512)):
        pass
steps(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_job_that_fills_the_disk_is_not_taken_for_a_short_one(when):
    done = in_box(
        "small_folder", "-m", "grader", "run", "--", sys.executable, "-c", FILLS, when, PYTHONPATH=str(REPOSITORY)
    )
    assert done.returncode == 0 and "is lost" in done.stderr and "No space left on device. Name a f" in done.stderr
    assert "no step was seen" not in done.stderr and "make more steps" not in done.stderr


@pytest.mark.slow
def test_a_course_that_cannot_be_written_to_is_named(tmp_path):
    """And no file on the way there, such as a temporary one."""
    assert not in_box("one_core", "-m", "grader", "course", ".", cwd=tmp_path, PYTHONPATH=str(REPOSITORY)).returncode
    for words, target in ((("course", "."), str(tmp_path)), (("start", "1c"), "work/1c_diagnose/1c_diagnose.ipynb")):
        done = in_box("read_only_here", "-m", "grader", *words, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and target in line and ": Read-only file system. " in line and ".tmp" not in line


@pytest.mark.slow
def test_without_linux_labs_are_listed_and_recorded_traces_are_graded():
    assert "1c_diagnose" in in_box("like_macos", "-m", "grader", "labs").stdout
    notebook = REPOSITORY / "labs/1c_diagnose/1c_diagnose.ipynb"
    done = in_box("like_macos", "-m", "grader", "grade", "1c_diagnose", notebook)
    assert done.returncode == 0 and "1c_diagnose" in done.stdout, done.stderr


GRADE = """
import sys
from helpers import LAB, grade_cells, said
from grader import labs
from grader.submission import solution
from grader.grade import grade
from helpers import PLAN
lab = labs.get({lab!r}) if {lab!r} else LAB
result = grade(solution(lab), lab, device="cpu", plan=PLAN, allow_unconfined=True)
print(result.disturbed or result.fatal or "measured", *(f"{{c.name}} {{c.status}}" for c in result.checks), sep="\\n")
"""


def graded(box: str, lab: str) -> list[str]:
    """What a grade of a lab's solution came to, "" for the tests' small lab, and its checks."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
    done = in_box(box, "-c", GRADE.format(lab=lab), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("box", [box for box in WORKING if "full_home" not in box])
def test_a_loop_without_workers_is_graded_in(box):
    first_line, *checks = graded(box, "")
    assert first_line == "measured" and "parity PASS" in checks, (first_line, checks)


@pytest.mark.slow
def test_data_without_room_in_the_home():
    notebook = REPOSITORY / "labs/2a_workers/2a_workers.ipynb"
    command = ("-m", "grader", "grade", "2a_workers", notebook, "--device", "cpu", "--allow-unconfined")
    done = in_box("full_home", *command)
    assert done.returncode == 2 and "free some space or choose another folder (GRADER_CACHE)" in done.stderr, (
        done.stderr
    )


@pytest.mark.slow
def test_loader_workers_without_shared_memory():
    first_line, *_ = graded(NO_SHM, "2a_workers")
    assert "This machine has no /dev/shm" in first_line, first_line


@pytest.mark.slow
def test_the_learner_s_own_copy_needs_no_confinement(tmp_path):
    """`grader grade` of it, as lab.check() in it."""
    folder = tmp_path / "work" / "1a_stopwatch"
    shutil.copytree(REPOSITORY / "labs/1a_stopwatch", folder)
    assert labs.get("1a_stopwatch").runs_code
    (tmp_path / ".grader-course.json").write_text("{}")
    command = ("-m", "grader", "grade", "1a_stopwatch", folder / "1a_stopwatch.ipynb", "--device", "cpu", "--quick")
    done = in_box("without_landlock", *command, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Graded without confined files") == 1, done.stdout


@pytest.mark.slow
def test_a_path_with_spaces_and_letters_of_the_world(tmp_path):
    """The course lies there, and the language is C's."""
    place = tmp_path / "Kurs für Größe 日本"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, os.fsdecode(files).split("\0")):
        if (REPOSITORY / name).is_file() and not name.startswith(("data/measured/", "tests/")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, place / name)
    in_place = {"cwd": place, "PYTHONPATH": str(place)}
    done = in_box("locale_posix", "-m", "grader", "doctor", **in_place)
    assert done.returncode == 0, done.stderr
    done = in_box("locale_posix", "-m", "grader", "diagnose", "data/traces/gpt_input.json.gz", **in_place)
    assert done.returncode == 0 and "input-bound" in done.stdout, done.stderr
    notebook = nbformat.read(place / "labs/2a_workers/2a_workers.ipynb", as_version=4)
    notebook.cells = notebook.cells[: 1 + next(i for i, cell in enumerate(notebook.cells) if cell.id == "setup")]
    nbformat.write(notebook, place / "labs/2a_workers/short.ipynb")
    papermill.execute_notebook(
        place / "labs/2a_workers/short.ipynb",
        tmp_path / "out.ipynb",
        cwd=str(place / "labs/2a_workers"),
        progress_bar=False,
    )
