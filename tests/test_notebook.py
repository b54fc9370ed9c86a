"""A lab in a real kernel: what the magic records, what is shown, what is left behind."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import papermill
import psutil
import pytest
from helpers import eventually, first, workspaces
from jupyter_client.manager import KernelManager, start_new_kernel

from grader import labs, trace
from grader.frontends import notebook, silence
from grader.frontends.notebook import base, note
from grader.frontends.notebook.loop import HIDDEN
from grader.frontends.notebook.own_code import _with_phases
from grader.frontends.notebook.prediction import LockedPrediction, lock, locked, problem
from grader.kinds import shared
from grader.look import Observation, peek
from grader.result import INCONCLUSIVE, PASS, CheckResult, Result
from grader.sandbox.setting import QUICK_LIMITS
from grader.submission import solution

LAB = labs.get("2a_workers")
STARTER = f"%%submission\n{LAB.starter}"
FAST = STARTER.replace("batch_sampler=job.batches", "batch_sampler=job.batches, num_workers=8, prefetch_factor=2")
RELEASED = Path(__file__).parents[1] / "labs" / "2a_workers" / "2a_workers.ipynb"
NAMES = "print([c.split()[1] for c in lab._recorder.cells if 'submission' in c[:12]])"


@dataclass
class Ran:
    """What one execution showed in the end: outputs that were written over count with their last text."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    stderr: str = ""
    error: dict[str, Any] | None = None
    updates: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(o["text/plain"] for o in self.outputs)

    @property
    def html(self) -> str:
        return "\n".join(o.get("text/html", "") for o in self.outputs)


class Kernel:
    """A kernel and its client, driven like a front end that sends cell ids."""

    def __init__(self) -> None:
        self.manager: KernelManager
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.process = psutil.Process(self.manager.provisioner.pid)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()

    def run(
        self,
        source: str,
        cell: str | None = None,
        deleted: tuple[str, ...] = (),
        on_update: Callable[[str], None] = lambda text: None,
    ) -> Ran:
        metadata = {"deletedCells": list(deleted), **({"cellId": cell} if cell else {})}
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        ran, places = Ran(), {}
        while True:
            reply = self.client.get_iopub_msg(timeout=600)
            if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            kind, said = reply["msg_type"], reply["content"]
            if kind == "status" and said["execution_state"] == "idle":
                self.client.get_shell_msg(timeout=600)
                return ran
            if kind == "stream" and said["name"] == "stderr":
                ran.stderr += said["text"]
            elif kind == "stream":
                ran.outputs.append({"text/plain": said["text"]})
            elif kind in ("display_data", "execute_result"):
                places[said.get("transient", {}).get("display_id")] = said["data"]
                ran.outputs.append(said["data"])
                on_update(said["data"]["text/plain"])
            elif kind == "update_display_data":
                data = places[said["transient"]["display_id"]]
                data.update(said["data"])
                ran.updates.append(data["text/plain"])
                on_update(data["text/plain"])
            elif kind == "error":
                ran.error = said


@pytest.fixture(scope="module")
def one_kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(one_kernel: Kernel, tmp_path: Path) -> Kernel:
    """The kernel in a folder of its own, with a new lab and none of another test's cells."""
    start = f'import os; os.chdir("{tmp_path}"); import grader; lab = grader.lab("2a_workers", "cpu", quick=True)'
    ran = one_kernel.run(start)
    assert not ran.error
    assert not one_kernel.run("lab._recorder._cells.clear()").error
    return one_kernel


def test_the_card_says_what_is_asked_and_what_is_measured(kernel: Kernel) -> None:
    ran = kernel.run("lab")
    for words in (
        LAB.title,
        LAB.goal,
        "50 points",
        "needs an NVIDIA GPU",
        "CPU form",
        "Quick mode",
        "64 images",
        "lab.predict(",
    ):
        assert words in ran.text
    assert "speed-report" in ran.html


def test_the_card_names_no_check_of_the_trace_before_the_prediction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = notebook.open_lab("2e_syncs", device="cpu")
    (check,) = lab.lab.trace
    assert check.title not in repr(lab) and HIDDEN in repr(lab)
    lock(tmp_path, "2e_syncs", LockedPrediction.now("memory-bound", 2.0, "cuda"))
    assert check.title in repr(lab) and HIDDEN not in repr(lab)


def test_the_card_says_where_one_works(kernel: Kernel) -> None:
    assert "start notebook" not in kernel.run("lab").text
    ran = kernel.run(f"os.chdir({str(RELEASED.parent)!r}); grader.lab('2a_workers', 'cpu')")
    assert "start notebook" in ran.text and "grader start 2a_workers" in ran.text


@pytest.mark.slow
def test_a_count_that_the_data_set_cannot_have_is_not_shown(kernel: Kernel) -> None:
    """Samples are counted by a mark in `__getitem__`, and not every data set has it."""
    source = labs.get("3d_tiny_ops").starter
    kernel.run(f"%%submission\n{source}", cell="one")
    counted = kernel.run('grader.lab("3d_tiny_ops", "cpu", quick=True).peek()').text
    assert "operators" in counted and "loaded itself" not in counted


def test_edited_cell_replaces_its_text_and_keeps_its_place(kernel: Kernel) -> None:
    kernel.run("%%submission\na = 1\na", cell="one")
    kernel.run("%%submission\nb = 1", cell="two")
    assert kernel.run("%%submission\nc = a + b\nc", cell="one").text == "2", "it runs as usual"
    names = eval(kernel.run(NAMES).text)
    assert names == ["c", "b"]
    names = eval(kernel.run(NAMES, deleted=("one",)).text)
    assert names == ["b"], "JupyterLab says which cells were deleted"
    kernel.run("b = 1", cell="two")
    assert kernel.run(NAMES).text.strip() == "[]", "without the magic it is no longer part of the submission"


def test_submission_cells_are_in_the_notebook_s_order(kernel: Kernel, tmp_path: Path) -> None:
    """As far as its file tells: one that was inserted above comes first."""

    def saved(*ids: str) -> str:
        (tmp_path / "lab.ipynb").write_text(json.dumps({"cells": [{"id": each} for each in ids]}))
        return kernel.run(NAMES).text

    kernel.run("%%submission\nuser = 1", cell="below")
    kernel.run("%%submission\nhelper = 1", cell="above")
    kernel.run(f"import os; os.environ['JPY_SESSION_NAME'] = {str(tmp_path / 'lab.ipynb')!r}")
    try:
        assert eval(kernel.run(NAMES).text) == ["user", "helper"], "there is no file"
        assert eval(saved("title", "below")) == ["user", "helper"], "it lacks one of them"
        assert eval(saved("title", "above", "below")) == ["helper", "user"]
    finally:
        kernel.run("del os.environ['JPY_SESSION_NAME']")


def test_cell_without_an_id_that_failed_is_forgotten(kernel: Kernel) -> None:
    ran = kernel.run("%%submission\na = 1\na = = 2")
    assert ran.error["ename"] == "SyntaxError" and "line 3" in "".join(ran.error["traceback"])
    kernel.run("%%submission\na = 2")
    kernel.run("%%submission\na = 2")
    assert len(eval(kernel.run(NAMES).text)) == 1


def test_magic_below_another_one_is_said(kernel: Kernel) -> None:
    """It was run and did not count, and the learner was told to run it."""
    kernel.run("%%time\n%%submission\ndef train(job): ...", cell="one")
    assert "%%submission must be the first line of its cell" in kernel.run("lab.peek()").text


def test_cell_without_an_id_that_is_run_again_is_the_last(kernel: Kernel) -> None:
    """An earlier version, gone back to."""
    for source in ("a = 1", "a = 2", "a = 1"):
        kernel.run(f"%%submission\n{source}")
    shown = "print([c.split()[-1] for c in lab._recorder.cells if 'submission' in c[:12]])"
    assert eval(kernel.run(shown).text) == ["2", "1"]


def test_what_is_wrong_with_a_submission_is_one_sentence(kernel: Kernel) -> None:
    ran = kernel.run("lab.peek()")
    says = "No %%submission cell has been run since this kernel started: run it, then this one."
    assert says in ran.text and not ran.error
    kernel.run("%%submission\ndef train(job):\n    yield job.nothing(", cell="one")
    ran = kernel.run("lab.peek()")
    assert "syntax error" in ran.text and "line 3" in ran.text and not ran.error
    ran = kernel.run('grader.lab("nope")')
    assert ran.error["traceback"] == ["There is no lab 'nope'. The labs are: " + ", ".join(labs.NAMES) + "."]


def test_first_complete_prediction_counts(kernel: Kernel, tmp_path: Path) -> None:
    for incomplete in (
        "",
        "cause=..., gain=...",
        'cause="input-bound"',
        'cause="slow", gain=2',
        'cause="input-bound", gain=0',
        'cause="input-bound", gain=0.5',
        'couse="input-bound", gain=8',
        'cause="input-bound", gain=8',  # on a CPU, and the lab is graded on a GPU as well
        'cause="input-bound", gain=8, device="gpu"',
    ):
        ran = kernel.run(f"lab.predict({incomplete})")
        assert "No prediction yet" in ran.text and "sync-bound" in ran.text and not ran.error
        assert 'gain=1.5, device="cpu")' in ran.text, "the answer that it shows would be taken"
        for look in ("profile", "check"):
            assert "Predict first" in kernel.run(f"lab.{look}()").text
    # the cell is read, not run
    for unreadable in ('"input-bound", 8, "cpu"', 'cause="input-bound", gain=4 * 2, device="cpu"'):
        ran = kernel.run(f"lab.predict({unreadable})")
        assert "No prediction yet" in ran.text and 'lab.predict(cause="input-bound", gain=8, device="cpu")' in ran.text
    assert not (tmp_path / "prediction.json").exists()
    assert "input-bound, 8 times" in kernel.run('lab.predict(cause="input-bound", gain=8, device="cpu")').text
    ran = kernel.run('lab.predict(cause="sync-bound", gain=2, device="cpu")')
    assert "input-bound, 8 times" in ran.text and "first prediction counts" in ran.text
    again = kernel.run('grader.lab("2a_workers", "cpu").predict(cause="sync-bound", gain=2, device="cuda")')
    assert "input-bound, 8 times" in again.text, "it outlives the kernel"
    locked = json.loads((tmp_path / "prediction.json").read_text())["2a_workers"]
    assert (locked["cause"], locked["gain"]) == ("input-bound", 8) and locked["time"]


def test_a_gain_below_one_is_explained_and_not_locked():
    says = "0.5 would be half as fast. A loop that gets 50% faster gains 1.5; where nothing is to be gained it is 1."
    assert problem("input-bound", 0.5) == says
    assert "0.2 times as fast. A loop that gets 20% faster gains 1.2;" in problem("input-bound", 0.2)
    assert not problem("input-bound", 1)


def test_when_a_prediction_was_made(tmp_path):
    made = LockedPrediction("sync-bound", 2, time="2026-11-25T04:04:43+00:00")
    assert made.in_words().endswith("as fast on a GPU, made 2026-11-25 04:04 UTC")
    for odd in ("yesterday", None, 3):
        entry = {"cause": "sync-bound", "gain": 2, "device": None, "time": odd}  # as by hand
        (tmp_path / "prediction.json").write_text(json.dumps({LAB.name: entry}))
        assert locked(tmp_path, LAB.name).in_words() == "sync-bound, 2 times as fast on a GPU"


def test_what_another_kind_of_lab_has_is_one_sentence(kernel: Kernel) -> None:
    kernel.run('other = grader.lab("1a_stopwatch", "cpu")')
    for call in ("peek()", 'predict(cause="sync-bound", gain=2)', "code()"):
        ran = kernel.run(f"other.{call}")
        assert ran.error["traceback"] == ["1a_stopwatch has lab.compare(...) and lab.check()."]
    assert kernel.run("lab.cases()").error["traceback"] == [
        "2a_workers has lab.predict(...), lab.run(), lab.peek(), lab.profile(), lab.check() and lab.log(...)."
    ]
    assert kernel.run("print(hasattr(other, 'run'), hasattr(other, '_repr_png_'))").text.split() == ["False", "False"]
    assert kernel.run("other.speed").error["ename"] == "AttributeError"


def test_a_cell_that_lost_its_magic_is_named(kernel: Kernel) -> None:
    kernel.run(STARTER, cell="one")
    kernel.run(LAB.starter, cell="one")
    ran = kernel.run("lab.run()")
    says = "The cell that defines train(job) no longer begins with %%submission: put the line back, run the cell, then this one."
    assert says in ran.text and not ran.error


@pytest.mark.parametrize("name", labs.NAMES)
def test_what_a_lab_asks_for(name):
    entry, shown = base.asked_for(labs.get(name).starter)
    assert entry in ("train", "benchmark", "serve", "fused", "answers") and shown.startswith(entry)
    assert ("(" in shown) == (entry != "answers")


class Kept:
    """What a bar showed."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, page: str, text: str) -> None:
        self.shown.append(text)


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ("the first step (it may compile, for at most 240 s)", "compiling, or does the loop never yield? Interrupting the kernel (the square) stops it. It ends by itself after 240 s."),
        ("first steps of the submission (the first may compile, for at most 180 s)", "ends by itself after 180 s."),
        ("loading", "ends by itself after 60 s."),
        ("timing pair 1", ""),
        ("first steps of the starter", ""),
    ],
)  # fmt: skip
def test_a_long_silence_is_explained_once_and_never_while_blocks_are_timed(phase, says, monkeypatch):
    monkeypatch.setattr(silence, "SILENCE_S", 0.05)
    kept = Kept()
    bar = note.ProgressBar(kept)
    bar(0.2, phase)
    time.sleep(1)
    assert len(kept.shown) == 1 + bool(says) and says in kept.shown[-1] and phase in kept.shown[-1].lower()
    for after in (lambda: bar(0.4, "timing 10 steps"), bar.close):
        bar(0.2, phase)
        after()
        before = len(kept.shown)
        time.sleep(0.2)
        assert len(kept.shown) == before
    assert sum("Interrupting" in text for text in kept.shown) == bool(says)


def test_a_loop_that_never_yields_is_said_below_its_cell(kernel: Kernel) -> None:
    kernel.run("%%submission\ndef train(job):\n    while True:\n        pass\n    yield 0", cell="one")
    kernel.run("from grader.frontends import silence; silence.SILENCE_S = 0.5")

    def stop(text: str) -> None:
        if "never yield" in text:
            kernel.manager.interrupt_kernel()

    try:
        ran = kernel.run("lab.run()", on_update=stop)
    finally:
        kernel.run("silence.SILENCE_S = 15")
    assert ran.error["traceback"] == ["Stopped. Nothing was scored."] and any("square" in text for text in ran.updates)
    # as the lab's page says
    assert any(f"itself after {QUICK_LIMITS.first_step:.0f} s" in text for text in ran.updates)


@pytest.mark.parametrize(("name", "what"), [("3d_tiny_ops", "Losses"), ("4e_inference", "One number for each answer")])
def test_many_losses_are_shortened(name, what):
    lab = notebook.open_lab(name, device="cpu")
    (line,) = [x for x in lab._ran(Observation(losses=[1.5] * 40, step_s=0.01), 38).text().splitlines() if what in x]
    assert line.count("1.5000") == 13 and line.endswith("1.5000 … 1.5000")
    assert "…" not in lab._ran(Observation(losses=[1.5] * 12, step_s=0.01), 10).text()
    assert "over 1 step after" in lab._ran(Observation(losses=[1.5] * 3, step_s=0.01), 1).text()


@pytest.mark.parametrize(("steps", "advised"), [(10, True), (100, False)])
def test_more_steps_are_advised_below_as_many_only(steps, advised):
    lab = notebook.open_lab("3g_leak", device="cpu")
    ends = [SimpleNamespace(gpu=0, main=main, steps=step) for step, main in ((0, 0), (steps, 1e6))]
    seen = Observation(losses=[], step_s=0.01, meter=SimpleNamespace(levels=ends, on_gpu=False))
    assert ("lab.run(100)" in " ".join(lab._memory(seen, steps))) == advised


def test_what_stands_below_a_row_of_a_table():
    name = "sm80_gemm" + "_tn" * 40
    rows = [
        note.Head(("operation", "ms")),
        ("aten::mm", "3"),
        note.Below(f"longest kernel: {name}", f"void {name}<'>\""),
    ]
    page = note.table_html(rows)
    assert f"longest kernel: {name}</td></tr>" in page and 'title="void sm80' in page and "&#x27;&gt;&quot;" in page
    assert (
        '<th scope="col" class="sp-short">operation</th>' in page
        and '<th scope="row" class="sp-short">aten::mm</th>' in page
    )
    assert note.table_text(rows) == ["  operation  ms", "  aten::mm   3", f"      longest kernel: {name}"]


def test_the_card_says_where_only_the_training_can_be_compared():
    said = notebook.open_lab("2b_transfers", device="cpu")._where()
    assert said == "This lab needs an NVIDIA GPU. On this CPU, only the training is compared."
    assert "in the lab's CPU form" in notebook.open_lab(LAB.name, device="cpu")._where()


@pytest.mark.parametrize(
    ("name", "steps", "warned"), [("2a_workers", 10, True), ("2a_workers", 300, False), ("2d_formats", 10, True), ("3d_tiny_ops", 10, False)]
)  # fmt: skip
def test_few_steps_of_an_input_bound_loop_tell_little(name, steps, warned):
    seen = Observation(losses=[0.5] * (steps + 3), step_s=0.01)
    said = notebook.open_lab(name, device="cpu")._ran(seen, steps).text()
    assert ("A few steps look fast when the loader had their batches ready. lab.check() times many." in said) == warned


@pytest.mark.parametrize("gain", [0, -1, 1e6, 1e9, float("nan"), True, "2"])
def test_a_gain_that_cannot_be(gain):
    assert f"gain={gain!r} is not a number between 1 and a million" in problem("input-bound", gain)


def test_a_check_that_measured_nothing_costs_no_report(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lab = notebook.open_lab(LAB.name, device="cpu")
    monkeypatch.setattr(lab, "_submission", lambda: None)
    checks = [
        CheckResult(c.name, c.title, PASS, c.points, c.points, "yes", evidence={"off": math.inf}) for c in LAB.checks
    ]
    result = Result(LAB.name, LAB.title, "cpu", checks, {}, {})
    monkeypatch.setattr(base, "grade", lambda *_, **__: result)
    assert "Saved as" in lab._checked(lambda *_: None, None, None).text()
    kept = (tmp_path / f"report-{LAB.name}.json").read_text()
    assert json.loads(kept)["score"] == 100
    result = replace(
        result, checks=[replace(c, status=INCONCLUSIVE, points=0) for c in checks], disturbed="Others are busy."
    )
    said = lab._checked(lambda *_: None, None, None).text()
    assert "Not saved, because nothing was measured" in said
    assert (tmp_path / f"report-{LAB.name}.json").read_text() == kept


def test_folder_that_cannot_be_written_costs_the_file_only(kernel: Kernel) -> None:
    kernel.run('os.chdir("/proc"); lab = grader.lab("2a_workers", "cpu", quick=True)')  # not even root can write there
    ran = kernel.run('lab.predict(cause="input-bound", gain=8, device="cpu")')
    assert "input-bound, 8 times" in ran.text and "in this session only" in ran.text and not ran.error
    assert "first prediction counts" in kernel.run('lab.predict(cause="sync-bound", gain=8, device="cpu")').text


@pytest.mark.parametrize(("lost", "told"), [(0.05, False), (0.7, True)])
def test_a_disturbed_look_says_so(lost: float, told: bool) -> None:
    lab = notebook.open_lab("2c_transforms", device="cpu")
    said = lab._ran(Observation([0.5] * 8, step_s=0.01, lost=lost), 4).text()
    assert ("Other programs took 70% of the time of these steps" in said) == told


@pytest.mark.slow
def test_run_and_peek_before_any_prediction(kernel: Kernel) -> None:
    kernel.run(STARTER, cell="one")
    ran = kernel.run("lab.run(steps=3)")
    assert "ms per step" in ran.text and ran.text.count("2.") >= 5, "losses of two steps to warm up and of three"
    ran = kernel.run("lab.peek()")
    rows = [line.split()[:2] for line in ran.text.splitlines()]
    assert rows[1] == ["loads_in_main", "16"], "the lab's own counts come first"
    assert ["would_wait", "0"] in rows and ".cpu(), synchronize" in ran.text
    assert "NOT MEASURED" not in ran.text and "Needs a GPU: h2d_pinned, syncs, copies, " in ran.text
    assert "printed" not in ran.text and not ran.stderr


@pytest.mark.slow
def test_a_loop_without_a_loader_is_told_why_it_has_no_data_wait():
    """And not that it needs a GPU."""
    shown = notebook.open_lab("2d_formats", device="cpu")._peeked(
        peek(solution(labs.get("2d_formats")), labs.get("2d_formats"))
    )
    assert "data_wait is unknown, because this loop has no DataLoader" in shown.text()
    assert "data_wait" not in shown.text().partition("Needs a GPU")[2].partition(".")[0]


KEEPER = f"""%%submission
import os, pathlib
kept = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "kept")
print("caches:", "kept" if kept.exists() else "new", [p.name for p in pathlib.Path(os.environ["TMPDIR"]).iterdir()])
kept.parent.mkdir(exist_ok=True)
kept.touch()
pathlib.Path(os.environ["TMPDIR"], "left").touch()
{LAB.starter}"""


@pytest.mark.slow
def test_looks_at_one_loop_share_its_compiler_caches_and_nothing_else(kernel: Kernel) -> None:
    """A loop that compiles does so once for run, peek and profile; an edited one, and a grade, begin anew."""
    kernel.run('lab.predict(cause="input-bound", gain=8, device="cpu")')
    kernel.run(KEEPER, cell="one")
    assert "caches: new []" in kernel.run("lab.run(steps=3)").text
    assert "caches: kept []" in kernel.run("lab.peek()").text
    ran = kernel.run("lab.check(); print(lab.result.output)")
    assert "caches: new []" in ran.text and "kept" not in ran.text
    kernel.run(KEEPER + "# edited\n", cell="one")
    kernel.run("place = lab._workspace.folder")
    assert "caches: new []" in kernel.run("lab.run(steps=3)").text
    assert "False True" in kernel.run("print(place.exists(), lab._workspace.folder.exists())").text


def test_name_of_another_cell_is_explained(kernel: Kernel) -> None:
    kernel.run("helper = 3", cell="one")
    kernel.run("%%submission\ndef train(job):\n    yield helper", cell="two")
    ran = kernel.run("lab.peek()")
    assert (
        "`helper` is defined in a cell that is not part" in ran.text
        and "Only cells that begin with %%submission" in ran.text
    )
    assert not ran.error


@pytest.mark.slow
def test_check_shows_saves_and_gives_points(kernel: Kernel, tmp_path: Path) -> None:
    assert kernel.run('lab.grade("throughput")').text.endswith("\n0"), "nothing was checked yet"
    kernel.run('lab.predict(cause="input-bound", gain=8, device="cpu")')
    kernel.run(FAST, cell="one")
    ran = kernel.run("lab.check()")
    assert not ran.error and not ran.stderr
    assert len(ran.outputs) == 1, "the report stands where the bar was, and nothing else is shown"
    assert any("timing pair" in text.lower() and "left" in text for text in ran.updates)
    saved = Result.from_dict(json.loads((tmp_path / "report-2a_workers.json").read_text()))
    assert saved.quick
    assert f"{saved.score:g} of 100 points" in ran.text and f"{saved.score:g} of 100 points" in ran.html
    assert (tmp_path / "report-2a_workers.html").read_text().startswith("<!doctype html>")
    ran = kernel.run('lab.grade("throughput")')
    checked = saved.check("throughput")
    assert [o["text/plain"] for o in ran.outputs][1:] == [str(checked.points)]
    assert checked.status in ran.outputs[0]["text/html"]
    assert not ran.stderr
    assert "There is no check 'speed'" in kernel.run('lab.grade("speed")').text


def _in_work(kernel: Kernel) -> list[psutil.Process]:
    """Processes of submissions: the fork server's descendants."""
    servers = [p for p in kernel.process.children() if "grader.sandbox.server" in p.cmdline()]
    return [child for server in servers for child in server.children(recursive=True)]


@pytest.mark.parametrize("moment", first(["loading", "timing pair"]))
def test_stop_leaves_no_process_behind(kernel: Kernel, moment: str) -> None:
    kernel.run('lab.predict(cause="input-bound", gain=8, device="cpu")')
    kernel.run(FAST, cell="one")
    seen: list[int] = []

    def stop(text: str) -> None:
        if moment in text.lower() and not seen:
            time.sleep(0.1)
            seen.append(len(_in_work(kernel)))
            kernel.manager.interrupt_kernel()
            time.sleep(0.05)
            kernel.manager.interrupt_kernel()  # impatience does not cut the clearing up short

    ran = kernel.run("lab.check()", on_update=stop)
    assert ran.error["traceback"] == ["Stopped. Nothing was scored."], "and the rest of a Run All does not run"
    assert moment == "loading" or seen[0] > 8, "loader workers were at work"
    assert not _in_work(kernel)
    assert kernel.run("lab.result").text == ""


@pytest.mark.slow
def test_released_lab_in_papermill(tmp_path: Path, own_temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody filled anything in: it says so, fails nowhere, gives no points, and leaves nothing behind."""
    monkeypatch.setenv("TMPDIR", str(own_temporary))
    done = papermill.execute_notebook(
        RELEASED,
        tmp_path / "done.ipynb",
        parameters={"device": "cpu", "quick": True},
        cwd=tmp_path,
        progress_bar=False,
    )
    nbformat.validate(done)
    shown = {cell.source: cell.outputs for cell in done.cells if cell.cell_type == "code"}
    assert not [o for outputs in shown.values() for o in outputs if o.output_type == "stream"]
    assert "loads_in_main  16" in shown["lab.peek()"][0].data["text/plain"]
    assert "Predict first" in shown["lab.check()"][0].data["text/plain"]
    assert [o.data["text/plain"] for o in shown['lab.grade("throughput")']][-1] == "0"
    assert eventually(lambda: not workspaces())  # its fork server may take a moment longer than the kernel


def test_magic_without_a_lab() -> None:
    kernel = Kernel()
    try:
        assert not kernel.run("%load_ext grader").error
        assert kernel.run("%%submission\nx = 3\nx", cell="one").text == "3"
        kernel.run('import grader; lab = grader.lab("2a_workers", "cpu")')
        assert kernel.run(NAMES).text.strip() == "['x']"
        server = next(p for p in kernel.process.children() if "grader.sandbox.server" in p.cmdline())
    finally:
        kernel.close()
    psutil.wait_procs([server], timeout=600)
    assert not server.is_running(), "the fork server ends with its kernel"


def test_imports_stay_light() -> None:
    script = "import sys, grader; light = set(sys.modules); import grader.frontends.notebook; print(*light, '|', *sys.modules)"
    light, all_ = subprocess.check_output([sys.executable, "-c", script], text=True).split("|")
    assert not {"numpy", "IPython", "psutil"} & set(light.split())
    assert not {"torch", "IPython", "matplotlib", "nbformat"} & set(all_.split())


def test_phases_are_lanes_of_their_own_in_the_picture_of_a_trace():
    recorded = shared.recording(labs.get("1c_diagnose").questions[2].trace).analysis.trace
    timeline = trace.timeline(recorded)
    lanes = _with_phases(timeline, recorded)["lanes"]
    names = [lane["name"] for lane in lanes]
    assert names[:3] == ["phase fwd", "phase bwd", "phase opt"] and lanes[3:] == timeline["lanes"]
    for lane in lanes[:3]:
        assert len(lane["intervals"]) == len(timeline["steps"])
        assert all(0 <= start < start + length <= timeline["span_ns"] for start, length in lane["intervals"])
    trace.draw({"your trace": timeline | {"lanes": lanes}})
