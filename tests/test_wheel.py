"""The wheel: built, installed, and used outside of any checkout: the small install, and the whole course."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader import labs
from grader.paths import DATA, REPOSITORY
from grader.sandbox.confine import landlock_abi
from grader.submission import code_cells, is_submission, load_notebook

pytestmark = pytest.mark.slow
LEFT_OUT = {"README.md"}
NEEDED = ("numpy", "msgspec", "safetensors", "nvidia-ml-py", "platformdirs", "psutil", "tqdm")  # pyproject.toml
JOB = """import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(40_000):
    optimizer.zero_grad(); model(torch.randn(64, 8)).sum().backward(); optimizer.step()"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: a build leaves its folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for name in ("grader", "data", "notebooks", "labs", "solutions"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "nights"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    return next(folder.glob("*.whl"))


@dataclass(frozen=True)
class Installed:
    """A Python that has the wheel, in a folder that knows of no checkout."""

    python: Path
    here: Path
    environment: dict[str, str]

    def __call__(
        self, *words: object, cwd: Path | None = None, module: str = "grader"
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", module, *map(str, words)]
        environment = os.environ | self.environment
        return subprocess.run(
            command, capture_output=True, text=True, cwd=cwd or self.here, env=environment, timeout=900
        )


@pytest.fixture(scope="module")
def grader(wheel, tmp_path_factory) -> Installed:
    """The whole course: all packages besides are this Python's, torch among them."""
    target, here = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    made = Installed(Path(sys.executable), here, {"PYTHONPATH": str(target)})
    code = "import grader, grader.data.cache as cache; print(grader.__file__, cache.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=here, env=os.environ | made.environment
    )
    assert [Path(path).is_relative_to(target) for path in found.stdout.split()] == [True, True], found
    return made


@pytest.fixture(scope="module")
def small(wheel, tmp_path_factory) -> Installed:
    """An environment with nothing but the wheel and what it depends on, copied from this one: no network is needed."""
    folder = tmp_path_factory.mktemp("small")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=600)
    python = folder / "venv" / "bin" / "python"
    before = time.monotonic()
    packages = next((folder / "venv" / "lib").glob("python3.*")) / "site-packages"
    for name in NEEDED:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(distribution.locate_file(file), packages / file)
    command = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6
    found = sorted(path.name for path in packages.glob("*.dist-info"))
    print(
        f"small install: {', '.join(found)}; {size:.0f} MB, {time.monotonic() - before:.0f} s (copied, not downloaded)"
    )
    checked = subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, text=True, timeout=600)
    assert not checked.returncode, checked.stdout  # nothing that the wheel asks for is missing
    return Installed(python, folder, {"PYTHONPATH": ""})


def test_a_wheel_from_the_source_distribution_is_the_same(wheel, tmp_path):
    code = "import sys, setuptools.build_meta as build; print(build.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    made = subprocess.run(command, cwd=wheel.parent / "copy", check=True, capture_output=True, text=True, timeout=600)
    archive = tmp_path / made.stdout.splitlines()[-1]
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(archive),
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    of_both = [
        {item.filename: item.CRC for item in zipfile.ZipFile(path).infolist()}
        for path in (wheel, *tmp_path.glob("*.whl"))
    ]
    one, other = (
        {name: crc for name, crc in each.items() if not name.endswith(".dist-info/RECORD")} for each in of_both
    )
    assert one == other and len(one) > 400


def test_the_wheel_has_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (REPOSITORY / "grader").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    own = {path.relative_to(REPOSITORY).as_posix() for path in files if path.name not in LEFT_OUT}
    assert own and not own - names
    data = {
        f"grader/data/{path.relative_to(DATA).as_posix()}" for path in (*DATA.glob("*.py"), *DATA.glob("traces/*.gz"))
    }
    assert len(data) > 20 and not data - names
    assert "grader/data/measured/calibration.json" in names
    assert sum(name.endswith("/ladder.json") for name in names) == len(list(DATA.glob("measured/*/*/ladder.json"))) > 5
    course = {path.relative_to(REPOSITORY).as_posix() for part in ("notebooks", "labs") for path in files_of(part)}
    assert len(course) > 80 and not {f"grader/shipped/{name}" for name in course} - names


def files_of(part: str) -> list[Path]:
    found = (path for path in (REPOSITORY / part).rglob("*") if path.is_file())
    return [path for path in found if not {".ipynb_checkpoints", "__pycache__"} & set(path.parts)]


def test_of_a_solution_it_has_what_a_grade_trains_and_no_answers(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name in labs.NAMES:
            source = archive.read(f"grader/shipped/solutions/{name}/{name}.ipynb")
            kept = ["".join(cell["source"]) for cell in json.loads(source)["cells"]]
            written = code_cells(load_notebook(REPOSITORY / "solutions" / name / f"{name}.ipynb"), name)
            assert kept and kept == [source for source in written if is_submission(source)], name


# ---------------------------------------------------------------- the small install


def test_a_trace_is_diagnosed(small):
    done = small("diagnose", DATA / "traces" / "gpt_sync_stacks.json.gz")
    assert not done.returncode and "sync-bound" in done.stdout, done


def test_a_command_is_run(small):
    """Its Python is another one, that has torch."""
    done = small("run", "--", sys.executable, "-c", JOB)
    said = done.stdout + done.stderr
    assert not done.returncode and "optimizer" in said and "% of a step" in said and "Traceback" not in said, done


def test_a_lever_is_tried(small):
    done = small("try", "--budget", "5m", "--only", "fused", "--", sys.executable, "-c", JOB)
    said = done.stdout + done.stderr
    assert not done.returncode and "fused optimizer" in said and "as it is:" in said, done


@pytest.mark.parametrize("words", [("doctor",), ("demo",), ("grade", "2a", "labs/2a_workers/2a_workers.ipynb")])
def test_what_needs_torch_says_so_in_one_line(small, words):
    small("course", ".")
    done = small(*words)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done
    assert 'pip install "pytorch-speed-course[torch]"' in done.stderr, done


# ---------------------------------------------------------------- the whole course


@pytest.fixture(scope="module")
def folder(grader) -> Path:
    """The course, laid down."""
    done = grader("course", "my course")
    assert not done.returncode and "new." in done.stdout and "not installed" not in done.stdout, done
    return grader.here / "my course"


@pytest.mark.parametrize("words", [("labs",), ("scaffold", "mine"), ("try", "--help"), ("compare", "--help")])
def test_other_commands_find_what_they_need(grader, words):
    done = grader(*words)
    assert done.stdout and not done.returncode, done


def test_a_submission_reads_neither_solutions_nor_calibration(grader):
    """They lie inside what it must read. `grader doctor` starts a confined process that tries."""
    done = grader("doctor")
    if not landlock_abi():
        pytest.skip("this kernel has no Landlock")
    assert not done.returncode and re.search(r"files +holds ", done.stdout), done


def test_the_demo_is_graded(grader):
    done = grader("demo", "--device", "cpu")
    assert not done.returncode and "===== 2a_workers: the solution =====" in done.stdout, done
    assert done.stdout.count("Cause 'input-bound' is right. Gain 8x ") == 1  # whatever it comes to on a busy machine
    assert "grader course FOLDER" in done.stdout and (grader.here / "reports" / "2a_workers-solution.html").exists()


def test_a_lab_goes_from_its_start_to_full_marks(grader, folder):
    name = "1c_diagnose"
    copy = folder / "work" / name / f"{name}.ipynb"
    assert f"{copy} is yours to change" in grader("start", "1c", cwd=folder).stdout
    points = r"(\d+) of 100 points"
    begun = grader("grade", name, copy, cwd=folder)
    assert int(re.findall(points, begun.stdout)[0]) < 50, begun
    solved = code_cells(load_notebook(REPOSITORY / "solutions" / name / copy.name), name)
    notebook = json.loads(copy.read_text())
    for cell in notebook["cells"]:
        if is_submission("".join(cell["source"])):
            cell["source"] = next(source for source in solved if is_submission(source))
    copy.write_text(json.dumps(notebook))
    done = grader("grade", name, copy, cwd=folder)
    assert re.findall(points, done.stdout)[0] == "100", done
    assert (copy.parent / f"report-{name}.json").exists()


def test_a_night_says_what_a_wheel_has_not_and_makes_the_rest(grader):
    refused = grader("nightly", "--quick", "--device", "cpu", "--labs", "1c")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
    assert (
        "no parts of the kinds solution, adversary. Give --kinds lesson,grade, or run `make nightly`" in refused.stderr
    )
    what = ("--kinds", "lesson,grade", "--labs", "1c", "--lessons", "1_instrumentation/5_baseline")
    done = grader("nightly", "--quick", "--device", "cpu", *what)
    assert not done.returncode and "Traceback" not in done.stderr, done
    assert next((grader.here / "work" / "nightly").glob("*/index.html")).stat().st_size > 1000


@pytest.mark.parametrize("lesson", ["1_instrumentation/4_trace"])
def test_a_lesson_is_executed(grader, folder, lesson):
    path = folder / "notebooks" / f"{lesson}.ipynb"
    words = (path, folder / "executed.ipynb", "-p", "quick", "True", "--cwd", path.parent, "--kernel", "python3")
    done = grader(*words, module="papermill")
    assert not done.returncode, done.stderr[-3000:]


def test_the_map_is_of_this_folder(grader, folder):
    code = "from grader.frontends import start; print(start.text()); print(start.as_html())"
    command = [str(grader.python), "-c", code]
    environment = os.environ | grader.environment
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder / "notebooks", env=environment, timeout=600
    )
    links = re.findall(r'href="\.\./([^"]+)"', done.stdout)
    assert len(links) > 50 and not [link for link in links if not (folder / link).exists()], done.stderr
