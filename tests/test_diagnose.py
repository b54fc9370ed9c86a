"""`grader diagnose` as its users meet it: real processes on real files, exit statuses, JSON, text and page."""

import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from test_diagnosis import on_cpu
from test_trace import good

from grader import trace
from grader.errors import UserError
from grader.frontends import diagnose, diagnosis_facts
from grader.safe_text import size_text
from tests.loops import US, Loop, Recording

REPOSITORY = Path(__file__).resolve().parents[1]
SLOW = Loop([200 * US] * 30, data=20_000 * US, copy=1500 * US)
FAST = Loop([200 * US] * 30)
HOSTILE = "<script>alert(1)</script>\x1b]0;title\x07\x1b[2J\u202e"


def run(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "grader.frontends.cli", "diagnose", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100", "LINES": "40"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, **options)


def document(loop: Loop) -> bytes:
    return json.dumps(loop.record()[0].document()).encode()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    (folder / "slow.json").write_bytes(document(SLOW))
    (folder / "slow.json.gz").write_bytes(gzip.compress(document(SLOW)))
    (folder / "fast.json.gz").write_bytes(gzip.compress(document(FAST)))
    (folder / "nosteps.json").write_text(json.dumps(Recording().work("kernel", "k", 1000, 2000, 3000).document()))
    overlapping = Recording().work("kernel", "k", 1000, 2000, 3000).step(1, 0, 5000).step(2, 2000, 9000)
    (folder / "overlap.json").write_text(json.dumps(overlapping.document()))
    (folder / "empty.json").write_bytes(b"")
    (folder / "text.json").write_text("hello")
    (folder / "array.json").write_text("[1, 2]")
    (folder / "cut.json.gz").write_bytes(gzip.compress(document(SLOW))[:40])
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link.json.gz").symlink_to("slow.json.gz")
    (folder / "circle.json").symlink_to("circle.json")
    return folder


def strict(text: str) -> dict:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- the text ----------------------------------------------------------------------------------------------------


def test_the_report_names_the_cause_and_fits_a_screen(files):
    done = run(files / "slow.json.gz")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100 and "\x1b" not in done.stdout
    for part in ("input-bound", "Confidence", "21.8 ms under the profiler", "idle: data", "14.2 ms", "aten::mm"):
        assert part in done.stdout
    for part in ("num_workers", "2a_workers", "pinned", "NVIDIA H200, 4 steps counted"):
        assert part in done.stdout
    assert run(files / "slow.json").stdout.splitlines()[2:] == lines[2:], "gzip or not"


def test_a_step_time_measured_without_the_profiler_is_used(files):
    done = run(files / "fast.json.gz", "--step-ms", "6.5")
    assert done.returncode == 0 and "6.5 ms, measured without the profiler, 6 ms under it" in done.stdout


def test_each_share_of_idle_time_says_what_it_is_a_share_of(files):
    """The recording has a step more than those counted, and the profiler makes steps longer: three lengths, three shares."""
    row = next(line for line in run(files / "slow.json.gz", "--step-ms", "24").stdout.splitlines() if line[:3] == "GPU")
    assert re.fullmatch(
        r"GPU      [\d.]+ ms busy per step, idle \d+% of a step without the profiler, \d+% of the whole recording", row
    )
    row = next(line for line in run(files / "slow.json.gz").stdout.splitlines() if line[:3] == "GPU")
    assert re.fullmatch(
        r"GPU      [\d.]+ ms busy per step, idle \d+% of a step under the profiler, \d+% of the whole recording", row
    )


def test_two_traces_are_compared(files):
    done = run(files / "slow.json.gz", files / "fast.json.gz", "--step-ms", "21", "--step-ms", "6.1")
    assert done.returncode == 0, done.stderr
    assert "before: slow.json.gz" in done.stdout and "after: fast.json.gz" in done.stdout
    assert "3.44 times as fast" in done.stdout and re.search(r"idle: data +13.5 ms +0 ms +-13.5 ms", done.stdout)
    assert len(done.stdout.splitlines()) <= 40
    before, after, change = re.search(
        r"GPU idle, of a step without.* (\d+)% +(\d+)% +([+-]\d+) points", done.stdout
    ).groups()
    assert int(after) - int(before) == int(change)


@pytest.mark.slow
def test_two_files_of_one_name_are_told_apart(files, tmp_path):
    for folder, name in (("old", "slow"), ("new", "fast")):
        (tmp_path / folder).mkdir()
        shutil.copy(files / f"{name}.json.gz", tmp_path / folder / "trace.json.gz")
    both = [tmp_path / folder / "trace.json.gz" for folder in ("old", "new")]
    done = run(*both, "--html", tmp_path / "page.html", "--json", tmp_path / "all.json")
    assert "before: old/trace.json.gz " in done.stdout and "after: new/trace.json.gz " in done.stdout
    assert "after: new/trace.json.gz" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "all.json").read_text())["other"]["trace"] == "new/trace.json.gz"
    done = run("trace.json.gz", "../old/trace.json.gz", cwd=tmp_path / "old")
    assert "after: ../old/trace.json.gz " in done.stdout, "the whole path, where nothing less tells"
    done = run("trace.json.gz", cwd=tmp_path / "old")
    assert done.stdout.startswith("trace.json.gz ")


def test_a_length_for_one_of_two_traces_is_refused(files):
    done = run(files / "slow.json.gz", files / "fast.json.gz", "--step-ms", "21")
    assert done.returncode == 2 and "for both" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_incomplete_trace_says_so_first_and_shows_what_it_can(files):
    done = run(files / "overlap.json")
    assert done.returncode == 3
    assert "its steps overlap" in done.stdout.splitlines()[2] and not done.stderr
    assert run(files / "slow.json", files / "overlap.json").returncode == 3


def test_without_steps_there_is_a_verdict_and_a_note(files):
    done = run(files / "nosteps.json")
    assert done.returncode == 0 and "-bound" in done.stdout
    assert "no ProfilerStep" in done.stdout.splitlines()[2] and "counted as one step" in done.stdout.replace("\n", " ")


def test_a_trace_without_any_gpu_is_incomplete_and_diagnosed(tmp_path):
    (tmp_path / "cpu.json").write_text(json.dumps(on_cpu(800).document()))
    (tmp_path / "short.json").write_text(json.dumps(on_cpu(0).document()))
    done = run(tmp_path / "cpu.json")
    assert done.returncode == 3 and "incomplete: it has no GPU events" in done.stdout
    assert "waited for data 80% of the step, and nothing ran on a GPU." in done.stdout
    done = run(tmp_path / "cpu.json", tmp_path / "short.json", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert done.returncode == 3 and "In numbers (before)" in page and "In numbers (after)" not in page


def test_without_a_gpu_workers_are_no_free_gain(tmp_path):
    (tmp_path / "cpu.json").write_text(json.dumps(on_cpu(800).document()))
    done = run(tmp_path / "cpu.json", "--html", tmp_path / "page.html")
    text, page = " ".join(done.stdout.split()), (tmp_path / "page.html").read_text()
    said = "(at most 5.00x, as workers take cores from the training)"
    assert said in text and said in page
    assert "on the GPU" not in text[text.index("What to try") :]
    (tmp_path / "gpu.json").write_bytes(document(SLOW))
    assert "at most" not in run(tmp_path / "gpu.json").stdout


DOUBT = "The profiler makes no step shorter. Batches were ready while it recorded, or the {} ms are of another job. The missing time counts as waiting."


@pytest.mark.parametrize("step_ms, doubted", [("24", False), ("30", True)])
def test_a_step_that_the_profiler_made_shorter_is_doubted(files, tmp_path, step_ms, doubted):
    """21.8 ms under it. Loader workers fill their queue while it starts, so it may be of the same job all the same."""
    done = run(files / "slow.json.gz", "--step-ms", step_ms, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    for shown in (" ".join(done.stdout.split()), (tmp_path / "page.html").read_text()):
        assert (DOUBT.format(step_ms) in shown) == doubted
    assert len(done.stdout.splitlines()) <= 40


def test_the_share_of_the_recording_is_told_from_that_of_the_step(files):
    (row,) = [line for line in run(files / "slow.json.gz", "--step-ms", "24").stdout.splitlines() if line[:4] == "host"]
    assert "% waiting for data under the profiler, " in row
    (row,) = [line for line in run(files / "slow.json.gz").stdout.splitlines() if line[:4] == "host"]
    assert "% waiting for data, " in row


@pytest.mark.slow
def test_names_from_the_trace_are_harmless_in_the_terminal_and_on_the_page(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(Loop([200 * US] * 5, data=9000 * US, name=HOSTILE).record()[0].document()))
    done = run(path, "--html", tmp_path / "t.html")
    assert done.returncode == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", done.stdout)
    page = (tmp_path / "t.html").read_text()
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page


# --- JSON --------------------------------------------------------------------------------------------------------


def test_the_json_has_what_it_promises(files):
    done = run(files / "slow.json.gz", "--json", "-", "--step-ms", "21", "--top", "1")
    assert done.returncode == 0 and not done.stderr
    data = strict(done.stdout)
    assert (
        data["complete"] is True
        and data["reasons"] == []
        and (data["steps"], data["steps_counted"]) == (5, 4)
        and data["device"] == "NVIDIA H200"
    )
    d = data["diagnosis"]
    assert d["cause"] == "input-bound" and 0 < d["confidence"] <= 1 and d["runner_up"] == "transfer-bound"
    assert d["what_if_step_ms"] == pytest.approx(7.5, abs=0.1) and d["evidence"][0]["events"][0]["dur"] == 1500
    assert len(data["top_operations"]) == 1 and data["top_operations"][0]["name"] == "aten::mm"
    assert sum(data["breakdown_ms"].values()) == pytest.approx(21)
    assert data["longest_gaps"][0]["cause"] == "idle_data"
    names = "gpu_busy_ns gpu_idle gpu_idle_unprofiled h2d_pinned h2d_overlap syncs kernels launches tiny_kernel_share"
    names += " tensor_core_share phases comm_exposed_ns copies peak_memory memory_growth"
    assert {*names.split()} <= {*data["metrics"]}
    assert data["metrics"]["gpu_idle_unprofiled"] == pytest.approx(1 - 7.5 / 21)


def test_gpu_idle_is_that_of_the_whole_recording(files):
    r = Recording().step(1, 1000, 2000).step(2, 2000, 3000)
    r.work("kernel", "k", 1100, 1500, 500).work("kernel", "k", 2100, 4000, 1000)
    path = files / "window.json"
    path.write_text(json.dumps(r.document()))
    assert strict(run(path, "--json", "-").stdout)["metrics"]["gpu_idle"] == pytest.approx(1 - 1500 / 4000)
    r = Recording().work("kernel", "k", 10, 1000, 100).work("kernel", "k", 20, 1300, 100)
    path.write_text(json.dumps(r.document()))
    done = run(path, "--json", "-")
    assert done.returncode == 0 and strict(done.stdout)["metrics"]["gpu_idle"] == pytest.approx(0.5)


def test_two_traces_in_json(files):
    data = strict(run(files / "slow.json.gz", files / "fast.json.gz", "--json", "-").stdout)
    assert data["trace"] == "slow.json.gz" and data["other"]["trace"] == "fast.json.gz"
    assert data["other"]["diagnosis"]["cause"] == "compute-bound"
    assert data["comparison"]["step"]["before"] > data["comparison"]["step"]["after"]


def test_json_into_a_file_comes_with_the_text(files, tmp_path):
    done = run(files / "slow.json.gz", "--json", tmp_path / "out.json")
    assert "input-bound" in done.stdout
    assert strict((tmp_path / "out.json").read_text())["diagnosis"]["cause"] == "input-bound"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_what_is_not_finite_becomes_null():
    a = trace.analyse(good().read())
    a = replace(a, metrics=replace(a.metrics, gpu_idle=math.nan, data_wait=math.inf), breakdown={"memory": -math.inf})
    data = diagnose.as_json(["x"], [a])
    assert data["metrics"]["gpu_idle"] is None and data["breakdown_ms"]["memory"] is None
    json.dumps(data, allow_nan=False)


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained(files, tmp_path):
    done = run(files / "slow.json.gz", files / "fast.json.gz", "--html", tmp_path / "page.html")
    assert done.returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/") == 4 and "could not be drawn" not in page  # breakdown, timeline, two rooflines
    assert "<script" not in page and not re.search(r'(src|href)="(?!data:)', page)
    for part in ("input-bound", "What changed", "Operations that cost the GPU most", "What to try"):
        assert part in page
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_an_incomplete_trace_has_a_page_too(files, tmp_path):
    assert run(files / "overlap.json", "--html", tmp_path / "page.html", "--json", "-").returncode == 3
    assert "its steps overlap" in (tmp_path / "page.html").read_text()


# --- what cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["empty.json", "text.json", "array.json", "folder", "pipe", "circle.json", "none.json"]
)
def test_what_is_no_trace_is_one_clear_line(files, name):
    done = run(files / name)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and name in done.stderr and "Traceback" not in done.stderr


def test_a_gzip_cut_short_is_never_complete(files):
    done = run(files / "cut.json.gz", "--json", "-")
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr


def test_a_link_is_followed(files):
    assert run(files / "link.json.gz").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--step-ms", "0"), "--step-ms 0"),
        (("--step-ms=-3",), "--step-ms -3"),
        (("--step-ms", "nan"), "--step-ms nan"),
        (("--step-ms", "inf"), "--step-ms inf"),
        (("--step-ms", "fast"), "--step-ms fast"),
        (("--step-ms", "3", "--step-ms", "4"), "more often"),
        (("--top", "0"), "--top 0"),
        (("--top", "many"), "--top many"),
        (("--json", "/nowhere/out.json"), "/nowhere/out.json"),
        (("--html", "/nowhere/out.html"), "/nowhere/out.html"),
        (("--html", "."), "cannot be written"),
        (("--html", "-"), "--html"),
    ],
)
def test_bad_options_are_one_clear_line(files, arguments, says):
    done = run(files / "slow.json.gz", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr


@pytest.mark.parametrize(
    ("ms", "says"),
    [
        ("4", "kernels took 6 ms per step"),  # below 0.8 times that
        ("0.0245", "kernels took 6 ms per step"),  # in seconds
        ("110", "took 21.8 ms under the profiler"),  # of another loop
        ("24500", "took 21.8 ms under the profiler"),  # in microseconds
    ],
)
def test_a_step_that_cannot_be_is_refused(files, ms, says):
    done = run(files / "slow.json.gz", "--step-ms", ms)
    assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert f"--step-ms {ms}: " in done.stderr and says in done.stderr and "slow.json.gz" in done.stderr
    assert "in milliseconds, of the same loop?" in done.stderr
    done = run(files / "slow.json.gz", files / "fast.json.gz", "--step-ms", "24", "--step-ms", "600")
    assert done.returncode == 2 and "--step-ms 600: " in done.stderr and "fast.json.gz" in done.stderr


@pytest.mark.parametrize("side", sorted((REPOSITORY / "data/traces").glob("*.json")), ids=lambda path: path.stem)
def test_the_measured_length_of_a_recorded_step_is_taken(side):
    ms, file = json.loads(side.read_text())["step_ms"], side.with_suffix(".json.gz")
    recorded = trace.read(file)
    diagnose.check_step(trace.analyse(recorded, ms * 1e6), str(file))
    for wrong in (ms / 1e3, ms * 1e3):
        with pytest.raises(UserError, match="in milliseconds"):
            diagnose.check_step(trace.analyse(recorded, wrong * 1e6), str(file))


def test_without_steps_no_length_is_refused(files):
    assert run(files / "nosteps.json", "--step-ms", "1000").returncode == 0


@pytest.mark.parametrize("form", ["--json -", ""])  # more than a buffer holds, and less
@pytest.mark.parametrize("reader", ["head -c 10", "true"])
def test_output_that_nobody_reads_is_no_error(files, form, reader):
    command = f"{sys.executable} -m grader.frontends.cli diagnose {files / 'slow.json.gz'} {form} | {reader}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=REPOSITORY, env=buffered, timeout=600
    )
    assert not done.stderr


def test_the_command_starts_light(files):
    heavy = ("torch", "matplotlib", "IPython", "nbformat", "ipywidgets", "pandas", "psutil")
    code = f"""import sys
from grader.frontends.cli import main
main(["diagnose", {str(files / "slow.json.gz")!r}])
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=600)
    assert done.stderr == "[]\n"


def test_long_names_and_many_operations_still_fit(tmp_path):
    a = trace.analyse(SLOW.record()[0].read())
    o = a.operations[0]
    many = [replace(o, name="x::" + "y" * 300, shapes="[1, 2] " * 50, line="f" * 200 + ".py:1", why="z " * 300)] * 30
    a = replace(a, operations=many)
    said = diagnose.text(["n" * 400], [a])
    assert max(map(len, said.splitlines())) <= 100
    whole = "".join(said.split())  # one operation, and nothing of it is cut
    assert "n" * 400 in whole and whole.count("z" * 300) == 1 and "f" * 200 + ".py:1" in whole
    assert len(diagnose.text(["n"], [a], top=30).splitlines()) > 60
    for width in (60, 68, 80):
        assert max(map(len, diagnose.text(["n" * 400], [a], width=width).splitlines())) <= width
    assert asdict(o)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "data" / "traces").glob("*.json.gz")), ids=lambda path: path.stem)
def test_reports_of_the_recorded_traces_fit_a_screen(path):
    a = trace.analyse(trace.read(path))
    lines = diagnose.text([path.name], [a]).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    json.dumps(diagnose.as_json([path.name], [a]), allow_nan=False)


def test_numbers_have_their_words():
    facts = dict(diagnosis_facts.facts(replace(trace.analyse(SLOW.record()[0].read()).metrics, launches=1.0)))
    assert "1 launch," in facts["host"] + ","
    assert [size_text(n) for n in (999.7e6, 1e9, 12.34e6, 1023)] == [
        "1 GB",
        "1 GB",
        "12.3 MB",
        "1.02 KB",
    ]


def test_lines_that_wait_are_named():
    path = REPOSITORY / "data" / "traces" / "gpt_sync_stacks.json.gz"
    assert re.search(
        r"^syncs +\d+ at data/planted.py:\d+, ", diagnose.text(["x"], [trace.analyse(trace.read(path))]), re.M
    )


def test_colours_are_for_terminals_only():
    a = trace.analyse(SLOW.record()[0].read())
    assert "\x1b[1m" in diagnose.text(["x"], [a], colour=True) and "\x1b" not in diagnose.text(["x"], [a])


def test_a_file_name_with_escapes_is_cleaned(tmp_path):
    with pytest.raises(UserError) as caught:
        diagnose.read_trace(str(tmp_path / "a\x1b[2Jb"))
    assert "\x1b" not in str(caught.value)


def test_a_confidence_says_how_often_it_was_right():
    table = (REPOSITORY / "data" / "measured" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+)% to .*\| (\d+) of (\d+) \| \d+% \|$", table, re.M)
    assert {int(low) / 100: (int(right), int(cases)) for low, right, cases in rows} == dict(diagnosis_facts.RIGHT)
    assert "30 of 31 known cases" in diagnosis_facts.how_often_right(0.6)
