"""A trace of torch.profiler as a report of Nsight Systems."""

import gzip
import json
import sqlite3
import subprocess
import sys

import pytest

from grader import paths
from grader.data import nsys

TRACES = paths.DATA / "traces"
# Of NVIDIA's documented schema (Nsight Systems' user guide, "SQLite Schema Reference"); ours may leave columns out.
DOCUMENTED = {
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
    "ENUM_NSYS_EVENT_TYPE": "id name label",
    "TARGET_INFO_GPU": "id name",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName"
    " mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory"
    " dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId greenContextId streamId correlationId globalPid bytes copyKind"
    " deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId greenContextId streamId correlationId globalPid value bytes"
    " graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value int64Value"
    " doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = nsys.convert(TRACES / "gpt_sync.json.gz", tmp_path_factory.mktemp("nsys") / "report.sqlite")
    with sqlite3.connect(path) as database:
        yield database


def one(report, question):
    return report.execute(question).fetchone()[0]


def test_tables_and_columns_are_documented_ones(report):
    tables = [name for (name,) in report.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert set(tables) == DOCUMENTED.keys()
    for table in tables:
        columns = {row[1] for row in report.execute(f"PRAGMA table_info({table})")}
        assert columns and columns <= set(DOCUMENTED[table].split()), table


def test_it_says_that_it_was_converted(report):
    made = one(report, "SELECT value FROM META_DATA_EXPORT WHERE name = 'CONVERTED_FROM'")
    assert made == "gpt_sync.json.gz of torch.profiler"


def test_all_kernels_calls_and_times_are_the_trace_s(report):
    with gzip.open(TRACES / "gpt_sync.json.gz") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    for category, table in {
        "kernel": "KERNEL",
        "gpu_memcpy": "MEMCPY",
        "gpu_memset": "MEMSET",
        "cuda_runtime": "RUNTIME WHERE eventClass = 0",
        "cuda_driver": "RUNTIME WHERE eventClass = 1",
    }.items():
        same = [event for event in events if event["cat"] == category]
        assert one(report, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}") == len(same)
        spent = sum(event["dur"] for event in same)
        assert one(report, f"SELECT sum(end - start) / 1e3 FROM CUPTI_ACTIVITY_KIND_{table}") == pytest.approx(spent)
    launched = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN CUPTI_ACTIVITY_KIND_RUNTIME USING (correlationId)"
    assert one(report, launched) == one(report, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert one(report, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 2 AND srcKind = 2") > 600


def test_the_backward_pass_launches_from_a_thread_without_ranges(report):
    ranges = {text for (text,) in report.execute("SELECT DISTINCT text FROM NVTX_EVENTS WHERE eventType = 59")}
    assert ranges == {"fwd", "bwd", "opt", "step 3", "step 4", "step 5", "step 6"}
    launched = """SELECT count(*) FROM NVTX_EVENTS AS n JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
        ON r.start >= n.start AND r.end <= n.end {}
        JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k USING (correlationId) WHERE text = 'bwd'"""
    assert one(report, launched.format("AND r.globalTid = n.globalTid")) == 4
    assert one(report, launched.format("")) > 1000


@pytest.mark.parametrize(
    ("whole", "short"),
    [
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::L<1>, A<float>>(at::L<1>)", "multi_tensor_apply_kernel"),
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"),
        ("std::enable_if<true, void>::type f::reduce_kernel<512>(int)", "reduce_kernel"),
        ("<>", "<>"),
    ],
)  # fmt: skip
def test_a_kernel_s_short_name(whole, short):
    assert nsys.short_name(whole) == short


def test_a_trace_without_a_gpu_makes_a_report_without_kernels(tmp_path):
    event = {"ph": "X", "cat": "user_annotation", "name": "fwd", "pid": 7, "tid": 9, "ts": 5.0, "dur": 2.0}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    path = tmp_path / "report.sqlite"
    command = [sys.executable, "-m", "grader.data.nsys", str(trace), str(path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{path}\n"
    with sqlite3.connect(path) as made:
        assert made.execute("SELECT start, end, text, globalTid FROM NVTX_EVENTS").fetchall() == [(0, 2000, "fwd", (7 << 24) + 9)]  # fmt: skip
        assert one(made, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == 0


def test_what_is_no_trace_is_named(tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    command = [sys.executable, "-m", "grader.data.nsys", str(wrong), str(tmp_path / "report.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.returncode
        and done.stderr.startswith(f"{wrong} cannot be converted")
        and len(done.stderr.splitlines()) == 1
    )
