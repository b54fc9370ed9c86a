"""A class through `grader class` as an instructor meets it: real workers, killed with SIGKILL, and nbgrader on what they made."""

import ast
import csv
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from helpers import eventually
from nbgrader.api import Gradebook
from test_nbgrader import by_id, nbgrader, notebook

from grader import labs, machine
from grader.classroom import coordinator, pool, summary
from grader.classroom.coordinator import grade_all
from grader.classroom.store import FAILED, Store
from grader.classroom.submissions import Call, HandedIn, Job, misplaced, no_plain_files, read_class
from grader.errors import UserError
from grader.measure import calibration
from grader.submission import MAGIC, MAX_SOURCE, Submission, read_notebook, solution
from grader.version import version
from tests import adversaries

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"
RAISES = "def train(job):\n    raise ValueError('on purpose')\n    yield\n"
EXITS = "import os\n\n\ndef train(job):\n    os._exit(3)\n    yield\n"
HANGS = "import time\ntime.sleep(1000)\n"
CORPUS = {a.name: a for a in adversaries.corpus()}


class Course:
    """A course folder whose class handed in, and was graded by runs that were killed."""

    def __init__(self, root: Path) -> None:
        self.root, self.measured = root, root / "measured"
        shutil.copy(REPOSITORY / "nbgrader_config.py", root)
        shutil.copytree(REPOSITORY / "solutions" / NAME, root / "solutions" / NAME)
        nbgrader(root, "generate_assignment", NAME)
        self.hand_in("ann", RAISES)
        self.hand_in("bob", "# my own work\n" + RAISES.replace("    yield", "    yield  # never\n"))
        self.hand_in("cid", EXITS)
        self.hand_in("dan", "def train(job)\n    yield\n")
        self.hand_in("eve", "import nothing_like_that\n" + RAISES)
        self.hand_in("fay", RAISES.replace("on purpose", "tampered"), "nb_duplicated_cells")
        self.hand_in("gil", EXITS.replace("3", "4"), "nb_deleted_cells")
        self.hand_in("hal", labs.get(NAME).starter)
        mistaken = root / "submitted" / "ivy" / NAME.upper() / f"{NAME}.ipynb"
        mistaken.parent.mkdir(parents=True)
        shutil.copy(root / "labs" / NAME / f"{NAME}.ipynb", mistaken)
        first = self.start()
        self.wait(first, 1)
        self.killed_worker = self.kill_a_worker(first)
        self.wait(first, 4)
        below = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        first.wait()
        self.outlived = psutil.wait_procs(below, timeout=600)[1]
        self.before = self.files()
        self.resumed = self.run()
        self.after = self.files()
        self.idle = self.run()
        self.autograded = nbgrader(
            root, "autograde", NAME, "--MeasuredGrade.only_measured=True", "--MeasuredGrade.quick=True"
        )

    def hand_in(self, student: str, source: str, tamper: str = "") -> None:
        nb = notebook(self.root / "labs")
        by_id(nb)["submission"].source = f"{MAGIC}\n{source}"
        if tamper:
            CORPUS[tamper].tamper(nb)
        folder = self.root / "submitted" / student / NAME
        folder.mkdir(parents=True)
        nbformat.write(nb, folder / f"{NAME}.ipynb")

    def start(self, *options: str) -> subprocess.Popen:
        command = [
            sys.executable,
            "-m",
            "grader.frontends.cli",
            "class",
            "labs",
            "submitted",
            "--device",
            "cpu",
            "--quick",
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, *options], cwd=self.root, stdout=pipe, stderr=pipe, text=True)

    def run(self, *options: str) -> tuple[int, str, str]:
        process = self.start(*options)
        out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def files(self) -> dict[str, tuple[int, int]]:
        """The results, each with what changes when a file is written again."""
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in self.measured.glob("*/*-*.json")}

    def wait(self, process: subprocess.Popen, count: int) -> None:
        while len(self.files()) < count:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)

    def kill_a_worker(self, coordinator: subprocess.Popen) -> bool:
        def worker() -> psutil.Process | None:
            for child in psutil.Process(coordinator.pid).children():
                if any("grader.classroom.process" in each.cmdline() for each in child.children()):
                    return child
            return None

        found = eventually(worker, 600)
        if found:
            found.send_signal(signal.SIGKILL)
        return found is not None

    def scores(self, student: str) -> dict[str, float | None]:
        with Gradebook(f"sqlite:///{self.root}/gradebook.db") as gradebook:
            return {g.name: g.auto_score for g in gradebook.find_submission_notebook(NAME, NAME, student).grades}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    root = tmp_path_factory.mktemp("class")
    for folder in (root, *root.parents):  # children may run as another user
        if folder.owner() == "root" and os.access(folder, os.W_OK) and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    yield Course(root)


@pytest.mark.slow
def test_killed_and_resumed(course):
    """Nothing is lost and nothing is graded twice, whatever was killed."""
    assert course.killed_worker
    assert not course.outlived
    assert len(course.before) >= 4
    assert course.resumed[0] == 0, course.resumed
    assert {name: course.after.get(name) for name in course.before} == course.before
    assert len(course.after) == 7  # all but the one that cannot be read
    assert not any(FAILED in name for name in course.after)


@pytest.mark.slow
def test_nothing_left_to_do(course):
    assert course.idle[0] == 0
    assert course.files() == course.after
    assert NAME not in course.idle[2]  # no line of progress
    assert "8 handed in, 7 different ones can be graded, 0 of these are measured now" in course.idle[2]


@pytest.mark.slow
def test_summary(course):
    out = course.idle[1]
    assert f"{NAME}: 8 handed in, 7 graded (quick)" in out
    assert "In the wrong place for a submission, so not graded: 1" in out and f"ivy/{NAME.upper()}/{NAME}.ipynb" in out
    assert "Not calibrated" not in out  # a quick look gives no marks
    assert "Identical, apart from white space and comments: 1" in out and f"{NAME}: ann, bob" in out
    assert "The starter, untouched: 1" in out
    found = json.loads((course.measured / "summary.json").read_text())
    by_student = {row["student"]: row for row in found["grades"]}
    assert by_student["dan"]["status"] == summary.UNREADABLE and "syntax error" in by_student["dan"]["why"]
    assert "on purpose" in by_student["ann"]["why"]
    assert by_student["hal"]["score"] <= 8 and by_student["hal"]["quick"]
    assert found["labs"][0]["seconds"] > 0
    with open(course.measured / "summary.csv", encoding="utf-8") as file:
        assert [row["student"] for row in csv.DictReader(file)] == sorted(by_student)
    page = (course.measured / "summary.html").read_text()
    assert "<script" not in page and "data:image/" in page and "on purpose" in page


@pytest.mark.slow
def test_autograde_reads_what_was_measured(course):
    """Tampered notebooks too: what `grader class` graded is what autograde asks for."""
    assert course.autograded.count("was measured on") == 7
    for student in ("ann", "bob", "cid", "dan", "eve", "fay", "gil", "hal"):
        scores = course.scores(student)
        assert scores.keys() == {c.name for c in labs.get(NAME).checks} | {"explanation"}
        assert sum(score or 0 for score in scores.values()) <= 8


@pytest.mark.slow
def test_who_has_other_points_in_the_gradebook_is_named(course):
    made = [summary.Row(**row) for row in json.loads((course.measured / "summary.json").read_text())["grades"]]
    gradebook = course.root / "gradebook.db"
    assert not summary.stale(gradebook, made)  # a quick look is no mark
    for row in made:
        row.quick = False
    assert not summary.stale(gradebook, made)
    hal = next(row for row in made if row.student == "hal")
    hal.score += 20
    (line,) = summary.stale(gradebook, made)
    assert f"{hal.score:g} measured" in line and f"nbgrader autograde {NAME} --student hal --force" in line
    hal.status = summary.UNREADABLE  # handed in anew, and cannot be read
    (line,) = summary.stale(gradebook, made)
    assert "hal" in line
    damaged = course.root / "damaged.db"
    damaged.write_bytes(b"not a database, but long enough to be looked at")
    (line,) = summary.stale(damaged, made)
    assert "cannot be read" in line and str(damaged) in line
    assert not summary.stale(course.root / "no gradebook.db", made)


@pytest.mark.slow
def test_one_lab_has_a_summary_of_its_own(course):
    before = (course.measured / "summary.json").read_bytes()
    assert course.run("--lab", NAME)[0] == 0
    assert (course.measured / "summary.json").read_bytes() == before
    assert json.loads((course.measured / f"summary-{NAME}.json").read_text())["labs"][0]["lab"] == NAME


@pytest.mark.slow
def test_graded_again_when_asked(course):
    code, _, err = course.run("--again", "cid")
    assert code == 0, err
    changed = [name for name, stamp in course.files().items() if course.after[name] != stamp]
    assert len(changed) == 1 and "1/1 cid" in err
    assert course.run("--again", "nobody")[0] == 2
    # one that could not be made anew is tried again, though its old result counts
    result = course.measured / NAME / changed[0]
    digest = json.loads(result.read_text())["digest"]
    failed = result.with_name(f"{digest}-{FAILED}.json")
    failed.write_text(
        json.dumps({"digest": digest, "date": "2026", FAILED: "the worker died", "seconds": 0, "worker": ""})
    )
    code, _, err = course.run()
    assert code == 0 and "1/1 cid" in err and not failed.exists()


@pytest.mark.slow
def test_what_was_asked_for_again_is_not_forgotten(course):
    stopped = course.start("--again", "cid")
    assert eventually(lambda: list(course.measured.glob("*/*.again")), 600)  # its pool starts first
    stopped.kill()
    stopped.communicate()
    code, _, err = course.run()
    assert code == 0 and "1/1 cid" in err and not list(course.measured.glob("*/*.again"))


@pytest.mark.slow
def test_who_handed_nothing_in_is_named(course):
    made = [summary.Row(**row) for row in json.loads((course.measured / "summary.json").read_text())["grades"]]
    gradebook = course.root / "gradebook.db"
    assert not summary.absent(gradebook, made)
    with Gradebook(f"sqlite:///{gradebook}") as book:
        book.add_student("zoe")
        book.add_student("yan")
    try:
        assert summary.absent(gradebook, made) == [f"{NAME}: yan, zoe"]
        _, out, _ = course.run()
        assert "but nothing handed in" in out and "yan, zoe" in out
    finally:
        with Gradebook(f"sqlite:///{gradebook}") as book:
            book.remove_student("zoe")
            book.remove_student("yan")
    assert not summary.absent(course.root / "no gradebook.db", made)


# ---------------------------------------------------------------- the parts


@pytest.mark.slow
def test_a_grade_that_hangs_or_dies_costs_only_itself(tmp_path):
    """It is tried twice, recorded as failed, and made again by the next run."""
    store = Store(tmp_path)
    hangs, exits = (Job(NAME, Submission(source), "cpu", quick=True) for source in (HANGS, EXITS))
    with pool.embedded("cpu") as workers:
        ((_, made),) = grade_all([exits], workers, store)
        assert made["tries"] == 1 and made["result"]["fatal"] and store.final(exits)
        ((job, made),) = grade_all([hangs, exits], workers, store, limit_s=5)
        assert job == hangs and "within 5 s" in made[FAILED] and made["tries"] == 2
        assert [job for job, _ in grade_all([hangs, exits], workers, store, limit_s=1)] == [hangs]
        ((_, made),) = grade_all([replace(exits, repeat=1)], workers, store)  # the worker is none the worse for it
        assert made["tries"] == 1 and "result" in made


@pytest.mark.slow
def test_only_the_course_s_own_loops_share_a_process(tmp_path):
    """A learner's grade has one to itself; one that failed is not gone on with."""
    store = Store(tmp_path)

    def of(repeat: int, keep: bool, function: str = "os:getpid") -> int | None:
        call = Call("any", function, {}, device="cpu", repeat=repeat)
        ((_, record),) = grade_all([call], workers, store, keep=keep)
        return record.get("result")

    with pool.embedded("cpu") as workers:
        kept = of(0, True)
        assert of(1, True) == kept
        assert of(2, True, "os:abort") is None
        anew = of(3, True)
        assert anew not in (None, kept) and of(4, True) == anew
        alone = [of(5, False), of(6, False)]
        assert alone[0] != alone[1]


def test_a_worker_of_another_version_gives_no_marks():
    """Those that are there at the start are asked; others may join later."""
    for theirs, kept in ((version(), True), ("0.1+old", False)):
        made = {"result": {}, "machine": "m", "version": theirs, "seconds": 1.0, "worker": "w"}
        record = coordinator._record(SimpleNamespace(status="finished", result=lambda made=made: json.dumps(made)))
        assert ("result" in record) == kept and (FAILED in record) != kept


@pytest.mark.slow
def test_an_error_of_the_grading_process_is_told(tmp_path):
    """Not the last words of what ends with it."""
    with pool.embedded("cpu") as workers:
        call = Call("any", "os:listdir", {"path": "/not/there"}, device="cpu")
        ((_, record),) = grade_all([call], workers, Store(tmp_path))
    assert (
        record[FAILED].startswith("the grade could not be made. FileNotFoundError") and "/not/there" in record[FAILED]
    )


@pytest.mark.slow
def test_a_result_that_cannot_be_kept_costs_only_itself(tmp_path):
    """JSON has no NaN: such a record cannot be written."""
    with pool.embedded("cpu") as workers:
        calls = [Call("any", "json:loads", {"s": text}, device="cpu") for text in ("NaN", "3")]
        made = {job.arguments["s"]: record for job, record in grade_all(calls, workers, Store(tmp_path))}
    assert FAILED in made["NaN"] and made["3"]["result"] == 3


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_workers_have_their_own_cores():
    """Each worker, and so each grade, runs on its fair share and no other's."""
    shares = machine.cpu_shares(2)
    assert not set(shares[0]) & set(shares[1])
    assert len(shares[0]) == len(shares[1])
    job = Job("3a_precision", Submission("x = 1\n"), "cpu")
    with pool.embedded("cpu", cpu_workers=2) as workers:
        found = list(workers.workers().values())
        assert [each["cores"] for each in found] == [len(shares[0])] * 2
        record = workers.client.submit(pool.worker.run, job.to_json(), 240, pure=False).result()
    assert json.loads(record)["result"]["machine"]["cores"] == len(shares[0])


def _slow_down(dask_worker) -> None:
    """What a submission may do to processes of the same user: the worker's thread, and the process that it has started ahead."""
    ahead = pool.worker._next
    for process in (0, ahead._process.pid):
        os.sched_setaffinity(process, {min(os.sched_getaffinity(0))})
    os.setpriority(os.PRIO_PROCESS, ahead._process.pid, 19)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_worker_that_somebody_slows_grades_as_it_began():
    job = Job("3a_precision", Submission("x = 1\n"), "cpu")
    with pool.embedded("cpu") as workers:
        cores = {each["cores"] for each in workers.workers().values()}
        workers.client.run(_slow_down)
        record = json.loads(workers.client.submit(pool.worker.run, job.to_json(), 240, pure=False).result())
    assert {record["result"]["machine"]["cores"]} == cores


@pytest.mark.slow
def test_a_process_that_died_before_its_grade_is_replaced():
    job = Job("3a_precision", Submission("x = 1\n"), "cpu")

    def kill(dask_worker) -> None:
        ahead = pool.worker._next._process
        ahead.kill()
        os.waitid(os.P_PID, ahead.pid, os.WEXITED | os.WNOWAIT)  # until it has ended, and nobody has asked

    with pool.embedded("cpu") as workers:
        workers.workers()
        workers.client.run(kill)
        record = json.loads(workers.client.submit(pool.worker.run, job.to_json(), 240, pure=False).result())
    assert "result" in record, record


@pytest.mark.slow
def test_a_worker_is_ready_when_it_says_so():
    """At first it waits for the process that it has started ahead; one that has graded before is ready."""
    process = pool.worker.Process()
    try:
        process.wait_ready(240)
        assert process._process.stdout and select.select([process._process.stdout], [], [], 0)[0]
        call = Call("any", "json:loads", {"s": "3"}, device="cpu")
        assert process.grade(call.to_json(), 240, lambda share, what: None)["result"] == 3
        began = time.monotonic()
        process.wait_ready(240)
        assert time.monotonic() - began < 120  # it did not wait for its limit
    finally:
        process.close()


def test_what_makes_a_grade_another():
    job = Job(NAME, Submission(RAISES))
    for other in (
        replace(job, submission=Submission(RAISES + "\n")),
        replace(job, submission=Submission(RAISES, prediction=(("gain", 2.0),))),
        replace(job, quick=True),
        replace(job, repeat=1),
    ):
        assert other.digest != job.digest
    assert replace(job, submission=Submission(RAISES, elsewhere=("x",), student="ann")).digest == job.digest
    assert Job.from_json(job.to_json()) == job
    assert version().startswith("0.")


def test_disturbed_grades_do_not_stand(tmp_path):
    store, job = Store(tmp_path), Job("3a_precision", Submission(RAISES))
    result = {"lab": job.lab, "title": "", "form": "cpu", "checks": [], "machine": {}, "versions": {}}
    store.put(job, {"machine": "a", "result": result | {"disturbed": "somebody else."}})
    assert store.final(job) is None
    store.put(job, {"machine": "a", "result": result})
    assert store.final(job) and store.final(job, ["a"]) and not store.final(job, ["b"])
    store.put(job, {"machine": "b", "result": result | {"form": "cuda"}})
    assert store.final(job)["machine"] == "b" and store.final(job, form="cpu")["machine"] == "a"
    store.put(job, {"machine": "a", "result": result | {"disturbed": "somebody else."}})  # graded again, in vain
    assert store.final(job, ["a"]) and store.failed(job)[FAILED] == "somebody else."
    store.put(job, {"machine": "a", "result": result})
    assert store.final(job, ["a"]) and not store.failed(job)
    (next(tmp_path.glob("*/*-*.json"))).write_text("{")  # damaged by hand: as if it were not there
    assert len(store.all_of(job)) == 1


@pytest.mark.parametrize("result", [None, [], "x", 3, {}, {"checks": None}])
def test_a_record_without_a_result_is_as_if_it_were_not_there(tmp_path, result):
    store, job = Store(tmp_path), Job(NAME, Submission(RAISES))
    made = {"lab": job.lab, "title": "", "form": "cpu", "checks": [], "machine": {}, "versions": {}}
    store.put(job, {"machine": "a", "result": made})
    (path,) = tmp_path.glob("*/*-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"result": result}))
    assert store.all_of(job) == [] and store.final(job) is None
    store.put(job, {"machine": "a", "result": made})
    assert store.final(job)


def test_one_run_at_a_time(tmp_path):
    with Store(tmp_path).locked(), pytest.raises(UserError, match="Another `grader class`"), Store(tmp_path).locked():
        pass


def test_a_folder_without_locks(tmp_path, monkeypatch):
    """Lustre can be such: nobody else is to blame."""

    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(UserError, match=r"without locks .* Name another folder"), Store(tmp_path).locked():
        pass


def graded(target: float, reference: float | None, quick: bool = False) -> dict:
    check = {
        "title": "Throughput",
        "status": "PASS",
        "evidence": {"gain": 5.0, "target": target, "reference_gain": reference},
    }
    result = {"disturbed": "", "fatal": "", "quick": quick, "score": 50, "measured_max": 80, "checks": [check]}
    return {"seconds": 40.0, "machine": "m", "date": "", "digest": f"{target}", "result": result}


def test_marks_that_a_calibration_would_change_are_named():
    everyone = [HandedIn(student, NAME, Submission(f"x = {student!r}")) for student in ("ann", "bob")]
    everyone.append(HandedIn("cid", NAME, None, "no notebook"))

    def attention(*records):
        rows = summary.rows(everyone, {(s, NAME): r for s, r in zip(("ann", "bob"), records, strict=True)})
        assert "median 50 of 80" in summary.text(rows)  # one that cannot be read does not make it 100
        return summary.attention(rows)

    (line,) = attention(graded(3.0, None), graded(3.0, None))[
        "Not calibrated, so the lab's minimum gain earns full points"
    ]
    assert f"grader calibrate {NAME}" in line and f"--again {NAME}" in line
    (line,) = attention(graded(3.0, None), graded(6.11, 8.0))[
        "Graded against different targets, before and after a calibration"
    ]
    assert "3.00x for 1, 6.11x for 1" in line
    for found in (attention(graded(6.11, 8.0), graded(6.11, 8.0)), attention(*[graded(3.0, None, quick=True)] * 2)):
        assert not any("calibrat" in heading for heading in found)


def test_who_predicted_for_another_device_is_named():
    """Where the class is graded on a CPU, that may be everybody: their points are lost, and nobody else's report says so."""
    students = ("ann", "bob", "cyd")
    everyone = [HandedIn(student, NAME, Submission(f"x = {student!r}")) for student in students]
    records = {(student, NAME): graded(3.0, None) for student in students}
    for student in ("ann", "cyd"):
        prediction = {"title": "Prediction", "status": "PASS", "evidence": {}, "unmeasured": 5.0}
        records[student, NAME]["result"]["checks"].append(prediction)
    found = summary.attention(summary.rows(everyone, records))
    assert found[summary.OTHER_DEVICE] == [f"{NAME}: ann, cyd"]


def test_labs_that_nobody_calibrated_are_known_before_the_first_grade(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path))
    with pool.embedded("cpu") as workers:
        assert workers.uncalibrated([NAME, "1a_stopwatch", "1c_diagnose", "2g_healthy"]) == [NAME]
        calibration.store_gain(labs.get(NAME), "cpu", {"gain": 5.0, "date": "2026-11-27"})
        assert workers.uncalibrated([NAME]) == []


def test_what_is_inconclusive_says_what_to_do():
    row = summary.Row("ann", NAME, summary.GRADED, 30.0, 80.0, inconclusive=["Throughput"])
    (heading,) = summary.attention([row])
    assert heading.startswith("Inconclusive") and "--again STUDENT/LAB" in heading


def test_outliers():
    made = []
    records = {}
    for n in range(9):
        one = HandedIn(f"s{n}", NAME, Submission(f"x = {n}"))
        evidence = {"gain": 12.0, "gain_certain": 11.5, "reference_gain": 12.5}
        if n == 0:
            evidence = {"gain": 30.0, "gain_certain": 29.0, "reference_gain": 12.5}
        check = {"title": "Throughput", "status": "PASS", "evidence": evidence}
        result = {
            "disturbed": "",
            "fatal": "",
            "quick": False,
            "score": 10.0 * n,
            "measured_max": 100,
            "checks": [check],
        }
        record = {
            "seconds": 200.0 if n == 1 else 40.0 + n,
            "machine": "m",
            "date": "",
            "digest": str(n),
            "result": result,
        }
        made.append(one)
        records[one.student, NAME] = record
    found = {row.student: row.outlier for row in summary.rows(made, records) if row.outlier}
    assert found.keys() == {"s0", "s1"}
    assert "30.0 times as fast" in found["s0"] and "200 s" in found["s1"]
    for n, record in enumerate(records.values()):  # as a lab's of recorded traces, which are read in a moment
        record["seconds"], record["result"]["checks"] = 1.0 if n == 1 else 0.3, []
    assert not any(row.outlier for row in summary.rows(made, records))


def test_whoever_has_the_solution_is_named():
    """Though nobody else handed it in."""
    theirs = replace(solution(labs.get(NAME)), source="# mine\n\n" + solution(labs.get(NAME)).source)
    everyone = [HandedIn("ann", NAME, theirs), HandedIn("bob", NAME, Submission(RAISES))]
    everyone.append(HandedIn("cid", "2g_healthy", Submission(labs.get("2g_healthy").starter)))  # right as it is
    found = {row.student: row.outlier for row in summary.rows(everyone, {})}
    assert "own solution" in found["ann"] and not found["bob"] and not found["cid"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere", "submitted"), "is not a folder"),
        (("submitted", "submitted"), "does not hold LAB/LAB.ipynb of any lab"),
        (("labs", "labs"), "holds no submission"),
        (("labs", "."), "Give the folder `submitted`"),
        (("labs", "submitted", "--on", "x"), "names no GPUs"),
        (("labs", "submitted", "--cluster", "tls://127.0.0.1:1"), "needs --keys"),
        (("labs", "submitted", "--on", "0", "--slurm", "1"), "Give only one of them"),
        (("labs", "submitted", "--slurm", "0"), "1 or more"),
        (("labs", "submitted", "--slurm", "1"), "needs sbatch"),
    ],
)
def test_unusable_input_is_one_clear_line(tmp_path, arguments, says):
    shutil.copytree(REPOSITORY / "labs" / NAME, tmp_path / "labs" / NAME)
    shutil.copytree(REPOSITORY / "labs" / NAME, tmp_path / "submitted" / "ann" / NAME)
    command = [sys.executable, "-m", "grader.frontends.cli", "class", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def hand_in(submitted: Path, student: str) -> Path:
    folder = submitted / student / NAME
    shutil.copytree(REPOSITORY / "labs" / NAME, folder)
    return folder / f"{NAME}.ipynb"


def test_a_link_is_no_submission(tmp_path):
    """It could lead to the solution, or to somebody else's work."""
    ann, bob, cid = (hand_in(tmp_path / "real", student) for student in ("ann", "bob", "cid"))
    ann.unlink()
    ann.symlink_to(REPOSITORY / "solutions" / NAME / ann.name)
    shutil.rmtree(cid.parent)
    cid.parent.symlink_to(bob.parent)
    hand_in(tmp_path / "real", "dan").unlink()
    (tmp_path / "real" / "dan" / NAME / ann.name).symlink_to(ann.name)  # to itself
    (tmp_path / "submitted").symlink_to("real")  # the instructor's own link
    found = {one.student: one for one in read_class(REPOSITORY / "labs", tmp_path / "submitted")}
    assert found["bob"].submission and len(found) == 4
    assert all("is a link" in found[student].problem for student in ("ann", "cid"))
    assert "cannot be read" in found["dan"].problem
    os.mkfifo(bob.with_name("timestamp.txt"))
    links = [f"{student}/{NAME}/{NAME}.ipynb" for student in ("ann", "dan")]
    pipe = f"bob/{NAME}/timestamp.txt"
    assert no_plain_files(tmp_path / "submitted") == [links[0], pipe, f"cid/{NAME}", links[1]]


def test_no_notebook_ends_a_class(tmp_path, monkeypatch):
    """Whatever ends its lines, and whatever else may be wrong with it."""
    for student, end in (("ann", "\r"), ("bob", "\r\n"), ("cid", "\n")):
        path = hand_in(tmp_path, student)
        nb = nbformat.read(path, as_version=4)
        cell = next(cell for cell in nb.cells if cell.source.startswith(MAGIC))
        lines = [MAGIC, "# mine", "from __future__ import annotations", *cell.source.splitlines()[1:]]
        cell.source = end.join(lines)
        nbformat.write(nb, path)
    programs = [one.submission.source for one in read_class(REPOSITORY / "labs", tmp_path)]
    assert len(set(programs)) == 1 and "import torch" in programs[0]

    def broken(notebook):
        raise ValueError("of a kind that nobody thought of")

    monkeypatch.setattr("grader.classroom.submissions.submission_in", broken)
    problems = [one.problem for one in read_class(REPOSITORY / "labs", tmp_path)]
    assert problems == ["The notebook cannot be read (ValueError: of a kind that nobody thought of)."] * 3


def test_a_folder_that_cannot_be_read_is_its_student_s_own_matter(tmp_path):
    ann = hand_in(tmp_path / "submitted", "ann")
    hand_in(tmp_path / "submitted", "bob")
    ann.parent.chmod(0)
    program = f"""
import os, sys
from pathlib import Path
from grader.classroom import summary
from grader.classroom.submissions import misplaced, read_class
os.geteuid() or os.seteuid(12345)  # root can read it
found = read_class(Path({str(REPOSITORY / "labs")!r}), Path("submitted"))
print([(one.student, bool(one.submission), one.problem) for one in found], misplaced(Path("submitted")))
print([(row.student, row.lab, row.status, row.score) for row in summary.rows(found, {{}})])
"""
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    ann.parent.chmod(0o755)
    assert "('ann', False," in done.stdout and "Permission denied" in done.stdout, done.stderr
    assert "('bob', True, '')] []" in done.stdout
    # no mark of 0, nor one of each lab of the course
    assert f"[('ann', '{NAME}', 'not graded', None), ('bob', '{NAME}', 'not graded', None)]" in done.stdout


@pytest.mark.parametrize("text", ["a\n" * (1 << 20), "%%submission\n" + "a\n" * (1 << 20)])
def test_more_code_than_a_submission_can_be_is_not_parsed(text, tmp_path, monkeypatch):
    """A megabyte of it takes a gigabyte to parse, so the sixty that a notebook may have would end the class, or a grade."""
    path, parse, parsed = hand_in(tmp_path / "submitted", "ann"), ast.parse, []
    nb = notebook(REPOSITORY / "labs")
    nb.cells.append(nbformat.v4.new_code_cell(text))
    nbformat.write(nb, path)
    monkeypatch.setattr(
        ast, "parse", lambda source, *rest, **more: parsed.append(source) or parse(source, *rest, **more)
    )
    (one,) = read_class(REPOSITORY / "labs", tmp_path / "submitted")
    assert one.submission is None and "more than 1 MB of code" in one.problem
    with pytest.raises(UserError, match="more than 1 MB of code"):
        read_notebook(path)
    assert sum(map(len, parsed)) < MAX_SOURCE


def test_names_of_files_reach_no_terminal_as_they_are(tmp_path):
    """They need be no text, and can hold what a terminal obeys."""
    path = hand_in(tmp_path / "submitted", "ann")
    for name in (b"\xff.ipynb", b"\x1b]52;c;eA==\x07\x1b[2J.ipynb"):
        open(os.path.join(os.fsencode(path.parent), name), "w").close()
    made = summary.rows([HandedIn("ann", NAME, None, "\x1b[2J = 1")], {})
    found = {"Misplaced": misplaced(tmp_path / "submitted")}
    said = summary.text(made, found).encode()
    written = [path.read_bytes() for path in summary.write(made, tmp_path / "measured", found)]
    assert b"\x1b" not in said + b"".join(written) and b"Misplaced: 2" in said
    assert b",'= 1," in written[1]


@pytest.mark.slow
@pytest.mark.usefixtures("gradebook")
def test_a_folder_s_name_that_is_no_text(tmp_path):
    """As archives of other systems leave them."""
    hand_in(tmp_path / "submitted", os.fsdecode("Jörg".encode("latin-1")))
    (one,) = read_class(REPOSITORY / "labs", tmp_path / "submitted")
    rows = summary.rows([one], {})
    assert one.submission is None and "Rename the folder" in summary.text(rows).encode().decode()
    assert not summary.stale(tmp_path / "gradebook.db", rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # nbgrader's own
def test_a_student_s_name_of_two_words_can_be_pasted_into_a_shell(tmp_path, alembic):
    path = tmp_path / "gradebook.db"
    check = labs.get(NAME).checks[0]
    with Gradebook(f"sqlite:///{path}") as book:
        book.add_assignment(NAME)
        book.add_notebook(NAME, NAME)
        book.add_grade_cell(check.name, NAME, NAME, max_score=check.points, cell_type="code")
        book.add_student("Ann Lee")
        book.add_submission(NAME, "Ann Lee")
    (line,) = summary.stale(path, [summary.Row("Ann Lee", NAME, summary.GRADED, 30.0, 80.0)])
    command = shlex.split(line.split("`")[1])
    assert command == ["nbgrader", "autograde", NAME, "--student", "Ann Lee", "--force"]


def test_it_does_not_matter_how_deep_a_folder_is(tmp_path):
    deep = hand_in(tmp_path / "submitted", "ann").parent / "d"
    here = os.getcwd()
    try:
        os.chdir(deep.parent)
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        Path("x.ipynb").touch()
        assert len(misplaced(tmp_path / "submitted")) == 1
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-r", deep], check=True)  # too deep for pytest


def test_a_notebook_that_is_none(tmp_path):
    folder = tmp_path / "submitted" / "ann" / NAME
    folder.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"cells": 3}', '{"cells": [3, {"metadata": []}]}', "\x00"):
        (folder / f"{NAME}.ipynb").write_text(text)
        (one,) = read_class(REPOSITORY / "labs", tmp_path / "submitted")
        assert one.submission is None and one.problem


TYPELESS = '{"cells": [{"metadata": {"nbgrader": {"grade_id": "submission"}}}]}'  # a cell of no type


@pytest.mark.parametrize("text", ["{}", "[]", '{"cells": 3}', '{"cells": [3]}', TYPELESS])
def test_a_released_notebook_that_is_none(tmp_path, text):
    hand_in(tmp_path / "submitted", "ann")
    released = hand_in(tmp_path, "labs")
    released.write_text(text)
    with pytest.raises(UserError) as told:
        read_class(tmp_path / "labs", tmp_path / "submitted")
    assert f"{released} is" in str(told.value) and f"`nbgrader generate_assignment {NAME} --force`" in str(told.value)
