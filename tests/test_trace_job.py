"""All ranks of a job: who waits for whom, and why, of jobs whose waits are known, and of a real one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.errors import UserError
from grader.frontends import cli, diagnose_job
from grader.trace import analyse, links, read, read_bytes
from grader.trace.collective_text import found, item_bytes, signs
from grader.trace.collectives import collectives, kind_of
from grader.trace.job import Job, job
from grader.trace.job_files import NotOneJob
from grader.trace.job_words import main_reason, numbers_in
from grader.trace.rank import SHARES, WAITING, Rank, rank_of
from tests import ranks as made
from tests.ranks import Plan

DLRM8 = Path(__file__).parent / "data" / "dlrm8"


def ranks_of(plan: Plan, name: str = "rank{}.json") -> list[Rank]:
    return [
        rank_of(analyse(read_bytes(json.dumps(trace).encode())), name.format(r))
        for r, trace in enumerate(made.traces(plan))
    ]


def job_of(plan: Plan) -> Job:
    return job(ranks_of(plan))


# ---------------------------------------------------------------- who, why, how long


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("computing", {"computing": [4500.0]}),
        ("data", {"data": [1500.0]}),
        ("host", {"host": [1500.0]}),
    ],
)
def test_straggler_of_each_kind(n: int, reason: str, more: dict[str, list[float]]) -> None:
    columns = {name: [3000.0 if name == "computing" else 0.0] * (n - 1) + late for name, late in more.items()}
    found = job_of(Plan(**{"computing": [3000.0] * n, **columns}))
    assert found.cause == "straggler" and [found.ranks[r].rank for r in found.stragglers] == [n - 1]
    assert main_reason(found) == reason
    assert found.why[reason] == pytest.approx(1.5e6, abs=2e3)
    assert found.wait_ns == pytest.approx([1.5e6] * (n - 1) + [0], abs=2)
    assert found.what_if_ns == pytest.approx(found.step_ns - 1.5e6, abs=2e3)
    assert [e.kind for e, _ in found.waited_in] == ["all_reduce"]


@settings(max_examples=40)
@given(
    computing=st.lists(st.integers(500, 5000), min_size=2, max_size=8),
    data=st.lists(st.integers(0, 3000), min_size=8, max_size=8),
    clocks=st.lists(st.integers(-(10**7), 10**7), min_size=8, max_size=8),
    exchange=st.integers(20, 3000),
)
def test_waits_are_exact_whatever_the_clocks(
    computing: list[int], data: list[int], clocks: list[int], exchange: int
) -> None:
    n = len(computing)
    plan = Plan([float(c) for c in computing], data=[float(d) for d in data[:n]], exchange=float(exchange))
    found = job_of(replace(plan, clocks=[0.0, *map(float, clocks[1:n])]))
    assert found.wait_ns / 1e3 == pytest.approx(made.waits(plan), abs=0.01)
    assert found.offset_ns / 1e3 == pytest.approx([0, *clocks[1:n]], abs=0.01)
    # Blame is shared out without rest, and parts fill the step.
    assert found.caused_ns.sum() == pytest.approx(found.wait_ns.sum(), abs=n)
    for rank, parts in zip(found.ranks, found.parts, strict=True):
        assert sum(parts.values()) == pytest.approx(rank.step_ns, rel=1e-6)
        assert all(parts[name] >= 0 for name in SHARES)
    (exchanged,) = found.exchanges
    assert exchanged.ns == pytest.approx(1e3 * exchange, abs=2)
    assert exchanged.bus == pytest.approx(2 * (n - 1) / n * 4e6 / (exchange * 1e-6), rel=1e-3)


def test_drifting_clocks_are_put_right() -> None:
    plan = Plan([3000.0, 3000.0, 4500.0, 3000.0], steps=30)
    found = job_of(replace(plan, drift=[0.0, 5e-5, 0.0, -2e-5], clocks=[0.0, 9e8, -40.0, 0.0]))
    assert found.wait_ns / 1e3 == pytest.approx(made.waits(plan), abs=2)
    assert any("clocks" in note for note in found.notes)


def test_two_late_ranks_share_the_blame() -> None:
    found = job_of(Plan([3000.0] * 6 + [4500.0, 4500.0]))
    assert sorted(found.ranks[r].rank for r in found.stragglers) == [6, 7]
    assert "ranks 6 and 7 come late" in found.text or "ranks 7 and 6 come late" in found.text


def test_ranks_that_take_turns_are_no_stragglers() -> None:
    found = job_of(Plan([3000.0] * 4, vary=lambda step, r: 1500.0 if step % 4 == r else 0.0, steps=9))
    assert found.cause == "imbalance" and not found.stragglers
    assert main_reason(found) == "computing"


def test_even_ranks_that_exchange_for_long_are_bound_by_communication() -> None:
    found = job_of(Plan([3000.0] * 4, exchange=3000.0, elements=100_000_000))
    assert found.cause == "communication-bound" and not found.stragglers
    assert found.wait_ns.max() == 0


def test_even_ranks_have_the_verdict_of_each() -> None:
    found = job_of(Plan([3000.0] * 4, data=[6000.0] * 4))
    assert found.cause == "input-bound" and found.text.startswith("input-bound, on all ranks")


def test_a_slower_gpu_is_told_from_more_work() -> None:
    slow = job_of(Plan([3000.0, 4500.0], kernels=[3, 3]))
    assert slow.slower == pytest.approx(1.5, rel=0.01) and "1.50 times as long" in slow.text
    more = job_of(Plan([3000.0, 4500.0], kernels=[2, 3]))
    assert more.slower is None and "times as long" not in more.text


def test_a_wait_beside_computing_costs_nothing() -> None:
    plan = Plan([3000.0, 4500.0])
    traces = made.traces(plan)
    events = traces[0]["traceEvents"]
    for e in [e for e in events if e.get("cat") == "kernel" and "sgemm" in e["name"]]:
        later = {**e, "ts": e["ts"] + e["dur"], "dur": 1500.0, "tid": 8, "args": {**e["args"], "stream": 8}}
        events.append(later)
    found = job(rank_of(analyse(read_bytes(json.dumps(t).encode())), str(r)) for r, t in enumerate(traces))
    assert found.wait_ns[0] == pytest.approx(1.5e6, abs=2)
    assert found.parts[0][WAITING] == pytest.approx(0, abs=2e4)
    assert found.cause != "straggler"


# ---------------------------------------------------------------- what is recorded, and how


def test_gloo_on_the_cpu() -> None:
    found = job_of(Plan([3000.0, 3000.0, 4500.0, 3000.0], backend="gloo"))
    assert found.cause == "straggler" and main_reason(found) == "computing"
    assert [found.ranks[r].rank for r in found.stragglers] == [2]
    assert "nvidia-smi" not in " ".join(found.what_to_try)
    (exchanged,) = found.exchanges
    assert exchanged.bytes == 4_000_000 and exchanged.link is None


def test_rccl_without_metadata() -> None:
    kernel = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    found = job_of(Plan([3000.0, 4500.0], metadata=False, kernel=kernel))
    assert found.cause == "straggler" and found.exchanges[0].bus is None
    assert "not recorded" in found.text


def test_steps_that_are_not_marked_are_matched_by_time() -> None:
    plan = Plan([3000.0, 3000.0, 4500.0, 3000.0], labelled=False, steps=8)
    traces = made.traces(plan)
    starts = sorted(e["ts"] for e in traces[1]["traceEvents"] if e["name"] == "train_step")
    traces[1]["traceEvents"] = [e for e in traces[1]["traceEvents"] if e["ts"] >= starts[2] or e["ph"] != "X"]
    found = job(rank_of(analyse(read_bytes(json.dumps(t).encode())), str(r)) for r, t in enumerate(traces))
    assert found.wait_ns / 1e3 == pytest.approx(made.waits(plan), abs=0.01)
    assert np.abs(found.offset_ns).max() < 100


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("late", [0.3, 0.6, 0.8])
def test_steps_that_ranks_come_to_at_different_times_are_the_same(late: float, numbered: bool) -> None:
    """As where a host runs ahead of its GPU, and another one waits for its data."""
    plan = Plan([3000.0, 3000.0, 4500.0, 3000.0], labelled=False, steps=8)
    traces = made.traces(plan)
    for trace in traces:
        calls = [e for e in trace["traceEvents"] if "Collective name" in e.get("args", {})]
        for number, event in enumerate(sorted(calls, key=lambda e: (e["cat"], e["ts"]))):
            event["args"] |= {"Seq": number % 8} if numbered else {}
    for event in traces[1]["traceEvents"]:
        event["ts"] += late * 4700 * (event["name"] == "train_step")
    found = job(rank_of(analyse(read_bytes(json.dumps(t).encode())), str(r)) for r, t in enumerate(traces))
    assert found.wait_ns / 1e3 == pytest.approx(made.waits(plan), abs=0.01)
    assert found.stragglers == [2] and np.abs(found.offset_ns).max() < 100


def test_missing_ranks_are_named() -> None:
    found = job_of(Plan([3000.0, 4500.0, 3000.0], world=8))
    assert found.missing == [3, 4, 5, 6, 7]
    assert "ranks 3, 4, 5, 6 and 7" in found.text


@pytest.mark.parametrize("known", [True, False])
def test_what_may_be_a_wait_for_a_missing_rank_is_not_sure(known: bool) -> None:
    """All others come at the same time and wait equally long each time: that may be the exchange itself."""
    ranks = ranks_of(Plan([3000.0, 3001.0, 4500.0, 3002.0], known=known))
    found = job(ranks[:2] + ranks[3:])
    assert found.missing == [2] and "No file is of rank 2" in found.text
    assert found.cause == "communication-bound" and found.confidence <= 0.6
    assert job(ranks).cause == "straggler"


def test_a_straggler_without_a_file_is_noticed() -> None:
    plan = Plan([3000.0] * 4, vary=lambda step, r: 1500.0 if r == 3 and step % 2 else 0.0, steps=9)
    found = job(ranks_of(plan)[:3])
    assert found.cause == "straggler" and not found.stragglers
    assert found.absent_ns == pytest.approx(0.75e6, rel=0.01) and "rank 3" in found.text


def test_a_lost_kernel_costs_its_step() -> None:
    plan = Plan([3000.0, 4500.0], steps=8)
    traces = made.traces(plan)
    lost = [e for e in traces[0]["traceEvents"] if e.get("cat") == "kernel" and e["name"].startswith("nccl")][4]
    traces[0]["traceEvents"].remove(lost)
    found = job(rank_of(analyse(read_bytes(json.dumps(t).encode())), str(r)) for r, t in enumerate(traces))
    assert found.cause == "straggler" and "a rank recorded fewer" in " ".join(found.notes)
    assert found.wait_ns[0] == pytest.approx(1.5e6, abs=2)


def test_ranks_of_different_steps() -> None:
    a, b = ranks_of(Plan([3000.0, 4500.0])), ranks_of(Plan([3000.0, 4500.0], first=90))
    found = job([a[0], b[1]])
    assert not found.labels and found.cause is not None
    assert "different steps" in " ".join(found.notes)
    some = job([*ranks_of(Plan([3000.0, 4500.0, 3000.0]))[:2], ranks_of(Plan([3000.0, 4500.0, 3000.0], first=90))[2]])
    assert len(some.ranks) == 2 and "rank2.json" in " ".join(some.notes)
    assert some.cause == "straggler"


def test_steps_in_common_are_compared() -> None:
    plan = Plan([3000.0, 4500.0], steps=8)
    late = ranks_of(replace(plan, steps=5, first=6))
    shift = 3 * (4500.0 + 200 + 25)  # of the clock, as the second recording begins three steps later
    found = job([ranks_of(plan)[0], replace(late[1], zero=late[1].zero + int(1e3 * shift))])
    assert found.labels == [7, 8, 9, 10] and found.wait_ns[0] == pytest.approx(1.5e6, abs=2)


def test_one_recording_twice_counts_once() -> None:
    a, b = ranks_of(Plan([3000.0, 4500.0]))
    found = job([a, replace(a, file="copy.json"), b])
    assert len(found.ranks) == 2 and "copy.json" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Plan([3000.0, 4500.0], world=16), "different numbers of ranks"),
        (Plan([3000.0, 4500.0], elements=77), "different collectives"),
        (Plan([3000.0, 9500.0], vary=lambda step, r: 700.0 * step), "do not end when"),
    ],
)
def test_files_of_different_jobs_are_refused_by_name(other: Plan, why: str) -> None:
    a, b = ranks_of(Plan([3000.0, 4500.0], steps=8), "a{}.json")[0], ranks_of(replace(other, steps=8), "b{}.json")[1]
    with pytest.raises(NotOneJob, match=why) as error:
        job([a, b])
    assert "a0.json" in str(error.value) and "b1.json" in str(error.value)


def test_two_recordings_of_one_rank() -> None:
    plan = Plan([3000.0, 4500.0])
    later = ranks_of(replace(plan, first=90), "later{}.json")
    found = job([*ranks_of(plan), later[0]])
    assert "rank0.json is compared, later0.json is not" in " ".join(found.notes)
    other = ranks_of(replace(plan, computing=[2000.0, 4500.0]), "other{}.json")[0]
    with pytest.raises(NotOneJob, match="both rank 0"):
        job([*ranks_of(plan), other])


def test_ranks_are_read_from_names_where_traces_do_not_tell_them() -> None:
    found = job(ranks_of(Plan([3000.0, 4500.0], known=False), "run12_worker{}.json"))
    assert [rank.rank for rank in found.ranks] == [0, 1] and found.cause == "straggler"
    assert numbers_in(["a_5_x.json", "a_7_x.json"]) == [5, 7]
    assert numbers_in(["second.json", "first.json"]) == [1, 0]


def untold(ranks: list[Rank], *which: int) -> list[Rank]:
    """As where a recording was cut off before it said its rank."""
    return [replace(rank, rank=None, world_size=None) if r in which else rank for r, rank in enumerate(ranks)]


@pytest.mark.parametrize("name", ["host_100{}.171.json", "rank{}.json", "b{}x.json", "run-8812.{}.json"])
@pytest.mark.parametrize("which", [(1,), (0, 3), (2,)])
def test_a_rank_that_one_trace_does_not_tell_is_what_the_others_leave(name: str, which: tuple[int, ...]) -> None:
    found = job(untold(ranks_of(Plan([3000.0, 3001.0, 4500.0, 3002.0]), name), *which))
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3] and not found.missing
    assert found.cause == "straggler" and [found.ranks[r].rank for r in found.stragglers] == [2]
    assert f"{name.format(which[0])} does not tell its rank, and is taken for rank {which[0]}" in found.notes


@pytest.mark.parametrize("name", ["host_{}.json", "train-0_88{}.1712345678{}.pt.trace.json"])
def test_numbers_of_processes_are_no_ranks(name: str) -> None:
    ranks = untold(ranks_of(Plan([3000.0, 3001.0, 4500.0, 3002.0])), 0, 1, 2, 3)
    found = job(replace(rank, file=name.format(57 + r, r)) for r, rank in enumerate(ranks))
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3] and not found.missing
    assert "come" in found.text and "No file" not in found.text


def test_a_rank_whose_gpu_was_not_recorded_waits_for_nobody() -> None:
    """And is not counted among those that do."""
    traces = made.traces(Plan([3000.0, 3001.0, 4500.0, 3002.0]))
    traces[1]["traceEvents"] = [e for e in traces[1]["traceEvents"] if e.get("cat") != "kernel"]
    found = job(rank_of(analyse(read_bytes(json.dumps(t).encode())), str(r)) for r, t in enumerate(traces))
    assert found.cause == "straggler" and not found.ranks[1].complete
    assert "wait 1.5 ms of a step" in found.text and found.what_if_ns == pytest.approx(found.step_ns - 1.5e6, rel=0.01)


@pytest.mark.parametrize(("exchange", "low", "high"), [(700.0, 0.5, 0.65), (3000.0, 0.85, 0.9)])
def test_how_sure_it_is_of_communication_follows_from_how_much_there_is(
    exchange: float, low: float, high: float
) -> None:
    found = job_of(Plan([3000.0] * 4, exchange=exchange))
    assert found.cause == "communication-bound" and low <= found.confidence <= high


def test_one_rank_alone_and_none() -> None:
    found = job(ranks_of(Plan([3000.0, 4500.0]))[:1])
    assert found.missing == [1] and found.cause and not found.stragglers


def test_groups_that_overlap_are_put_on_one_clock() -> None:
    """As with tensor and data parallelism: nobody exchanges with all others."""
    clocks = [0.0, 7e4, -3e6, 5e5]
    ranks = ranks_of(Plan([3000.0, 3200.0, 4500.0, 3000.0], steps=12, clocks=clocks))
    grouped = []
    for r, rank in enumerate(ranks):
        names = [f"tensor {r // 2}" if i % 2 else f"data {r % 2}" for i in range(len(rank.calls))]
        grouped.append(replace(rank, calls=replace(rank.calls, group=names)))
    found = job(grouped)
    assert found.offset_ns / 1e3 == pytest.approx(clocks, abs=0.01)
    assert [found.ranks[r].rank for r in found.stragglers] == [2]
    assert found.wait_ns[0] == pytest.approx((1.5e6 * 5 + 0.2e6 * 6) / 11, abs=2)  # every second step for 2, else for 1


def test_traces_that_exchange_nothing_are_no_job() -> None:
    quiet = [
        replace(rank, calls=replace(rank.calls, group=[""] * len(rank.calls))) for rank in ranks_of(Plan([3e3, 4e3]))
    ]
    found = job(quiet)
    assert "no collective" in " ".join(found.notes) and found.cause not in ("straggler", "imbalance")
    with pytest.raises(NotOneJob, match="exchange nothing"):
        job(replace(rank, world_size=1) for rank in quiet)


def test_absurd_metadata_harms_nothing() -> None:
    traces = made.traces(Plan([3000.0, 4500.0]))
    values = [2**70, -5, "x", "9" * 30, None, 1.5, [], {"a": 1}, "\x1b[31m<b>"]
    keys = ("Group size", "In msg nelems", "dtype", "Process Group Ranks", "Collective name", "Seq", "Input Dims")
    for trace in traces:
        said = [e for e in trace["traceEvents"] if "Collective name" in e.get("args", {})]
        for i, event in enumerate(said):
            event["args"][keys[i % len(keys)]] = values[i % len(values)]
        trace["distributedInfo"]["world_size"] = 2**62
    ranks = [rank_of(analyse(read_bytes(json.dumps(trace).encode())), str(r)) for r, trace in enumerate(traces)]
    found = job(ranks)
    assert len(found.ranks) == 2 and "\x1b" not in found.text
    json.dumps(diagnose_job.as_json("x", found), allow_nan=False)


# ---------------------------------------------------------------- collectives and links


def test_what_a_trace_says_of_collectives() -> None:
    trace = read_bytes(json.dumps(made.traces(Plan([3000.0, 4500.0], steps=2))[0]).encode())
    calls = collectives(trace)
    assert calls.kind == ["all_reduce"] * 2 and calls.group == ["0 [0, 1]"] * 2
    assert calls.bytes.tolist() == [4_000_000] * 2 and calls.members.tolist() == [2, 2]
    assert found(b'[{"name": "nccl:x", "ts": "broken", "args": {}}]', signs(["nccl:x"])) == []
    event = {"name": "gloo:all_reduce", "ts": 1, "args": {"Input Dims": [[1] * 65], "Input type": ["float"]}}
    ((_, _, _, dtype, sent, *_),) = found(json.dumps(event).encode(), signs(["gloo:all_reduce"]))
    assert (dtype, sent) == ("", -1)  # more sizes than a tensor has
    assert not signs(["aten::mm", "", None])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("gloo:broadcast", "broadcast"),
        ("nccl:recv 0<-1", "recv"),
        ("ncclDevKernel_Generic_1", "collective"),
    ],
)
def test_kinds_of_collectives(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_sizes_of_types() -> None:
    sizes = {
        "Float": 4,
        "BFloat16": 2,
        "c10::Half": 2,
        "long int": 8,
        "signed char": 1,
        "Float8_e4m3fn": 1,
        "?": 0,
        "": 0,
    }
    assert {dtype: item_bytes(dtype) for dtype in sizes} == sizes


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # the factors of nccl-tests/doc/PERFORMANCE.md
    factors = {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "broadcast": 1.0}
    assert {kind: links.bus_factor(kind, 8) for kind in factors} == factors
    assert links.bus_factor("all_reduce", 1) is None
    names = {
        "NVIDIA H200": 450e9,
        "NVIDIA H100 PCIe": 63e9,
        "Tesla V100-SXM2-32GB": 150e9,
        "Tesla V100-PCIE-16GB": 15.75e9,
    }
    for name, peak in names.items():
        link = links.link(name)
        assert link is not None and link.peak == peak and link.source
    assert links.link("Tesla T4") is None and links.link("some GPU") is None and links.link(None) is None


# ---------------------------------------------------------------- a real one


def test_dlrm8() -> None:
    """Eight ranks of a recommendation model, from facebookresearch/param; one recorded step."""
    found = job(rank_of(analyse(read(path)), path.name) for path in sorted(DLRM8.iterdir()))
    assert [found.ranks[r].rank for r in found.stragglers] == [7]
    assert found.cause == "straggler" and main_reason(found) == "start" and found.confidence <= 0.6
    # Rank 1 is in NCCL kernels for 11.3 ms, of which it waits 11.1; rank 7 for 1.7 ms.
    nccl = [float((rank.calls.end - rank.calls.start).sum()) for rank in found.ranks]
    assert nccl[1] == pytest.approx(11.3e6, abs=5e4) and nccl[7] == pytest.approx(1.7e6, abs=5e4)
    assert found.wait_ns[1] == pytest.approx(11.1e6, abs=5e4)
    where, _ = found.waited_in[0]
    assert where.kind == "all_to_all" and where.bytes == 24_576 and where.members == 8


# ---------------------------------------------------------------- grader diagnose


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = cli.main(["diagnose", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_a_folder_is_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.write(Plan([3000.0, 3000.0, 4500.0, 3000.0], hosts=["a", "a", "<b>", "a"]), tmp_path / "job")
    (tmp_path / "job" / "config.json").write_text('{"batch": 3}')
    (tmp_path / "job" / "other.json").write_text('{"traceEvents": [broken')
    page, data = tmp_path / "job.html", tmp_path / "job.json"
    status, text = diagnosed(capsys, tmp_path / "job", "--html", page, "--json", data)
    assert status == 0
    flat = " ".join(text.split())
    assert "straggler: rank 2 comes late" in flat and "It runs on <b>" in flat and "other.json is left out" in flat
    assert "config.json" not in flat
    html = page.read_text()
    assert (
        "<img" in html
        and 'alt="A bar for each rank' in html
        and "<b>&lt;b&gt;</b>" in html
        and "It runs on <b>" not in html
    )
    found = json.loads(data.read_text())
    assert found["cause"] == "straggler" and found["stragglers"] == [2] and len(found["ranks"]) == 4
    assert found["ranks"][0]["waits_ms"] == pytest.approx(1.5, abs=1e-3)


def test_waits_for_other_ranks_are_a_track(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = made.write(Plan([3000.0, 4500.0, 3000.0]), tmp_path / "job")
    assert diagnosed(capsys, tmp_path / "job", "--annotate", tmp_path / "tracks")[0] == 0
    waited = []
    for path in paths:
        events = json.loads((tmp_path / "tracks" / Path(path).name).read_text())["traceEvents"]
        slices = [e for e in events if e["ph"] == "X" and e["name"] == "waits for other ranks"]
        waited.append(sum(e["dur"] for e in slices))
        kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" in e["name"]]
        for e in slices:  # within a collective, from its beginning
            assert any(abs(k["ts"] - e["ts"]) < 0.002 and k["dur"] >= e["dur"] - 0.002 for k in kernels)
    assert waited[1] == 0 and waited[0] > 3000 and waited[0] == pytest.approx(waited[2], rel=0.01)
    assert cli.main(["diagnose", str(tmp_path / "job"), "--annotate", str(tmp_path / "job")]) == 2
    assert "another folder" in capsys.readouterr().err


def test_two_files_are_a_job_or_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made.write(Plan([3000.0, 4500.0]), tmp_path)
    assert "Read as ranks of one job" in diagnosed(capsys, a, b)[1]
    assert "Read as before and after" in diagnosed(capsys, a, a)[1]
    assert diagnosed(capsys, a, b, "--before-after")[1].startswith("before: rank0.json")
    assert "counts once" in " ".join(diagnosed(capsys, a, a, "--job")[1].split())
    (nameless_a, nameless_b) = made.write(Plan([3000.0, 4500.0], known=False), tmp_path, "worker{}.json")
    assert "Read as ranks of one job" in diagnosed(capsys, nameless_a, nameless_b)[1]
    for r, file in enumerate((nameless_a, nameless_b)):
        (tmp_path / "of_ranks" / f"rank{r}_ascend_pt" / "OUTPUT").mkdir(parents=True)
        (tmp_path / "of_ranks" / f"rank{r}_ascend_pt" / "OUTPUT" / "trace_view.json").write_text(file.read_text())
    assert "Read as ranks of one job" in diagnosed(capsys, tmp_path / "of_ranks")[1]
    (old,) = made.write(Plan([3000.0], known=False), tmp_path, "old.json")
    assert diagnosed(capsys, old, nameless_a)[1].startswith("before: old.json")


def test_step_ms_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = made.write(Plan([3000.0, 4500.0, 3000.0]), tmp_path)
    for lengths in (["4.6"], ["4.6", "4.6", "4.6"]):
        status, text = diagnosed(capsys, *paths, *(word for ms in lengths for word in ("--step-ms", ms)))
        assert status == 0 and "of a step of 4.6 ms" in " ".join(text.split())
    for wrong in (["4.6", "4.6"], ["4600"]):
        assert cli.main(["diagnose", *map(str, paths), *(word for ms in wrong for word in ("--step-ms", ms))]) == 2


@pytest.mark.parametrize("arguments", [["--before-after"], ["--job", "--before-after"]])
def test_three_files_are_no_before_and_after(tmp_path: Path, arguments: list[str]) -> None:
    paths = made.write(Plan([3000.0] * 3), tmp_path)
    try:
        status = cli.main(["diagnose", *map(str, paths), *arguments])
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2


def test_different_jobs_end_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (a, _), (_, b) = (made.write(Plan([3000.0, 4500.0], world=w), tmp_path / str(w)) for w in (2, 16))
    assert cli.main(["diagnose", "--job", str(a), str(b)]) == 2
    said = capsys.readouterr().err
    assert "not of ranks of one job" in said and "Traceback" not in said


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UserError, match="holds no trace"):
        diagnose_job.traces_of([str(tmp_path)])


def test_ranks_in_folders_of_their_own(tmp_path: Path) -> None:
    for r, trace in enumerate(made.traces(Plan([3000.0, 4500.0]))):
        (tmp_path / f"rank{r}").mkdir()
        (tmp_path / f"rank{r}" / "trace.json").write_text(json.dumps(trace))
    found = diagnose_job.job_of(diagnose_job.traces_of([str(tmp_path)]))
    assert found.cause == "straggler" and [rank.file for rank in found.ranks] == [
        "rank0/trace.json",
        "rank1/trace.json",
    ]


def test_folders_of_machines_hold_those_of_ranks(tmp_path: Path) -> None:
    for r, trace in enumerate(made.traces(Plan([3000.0, 3000.0, 4500.0, 3000.0]))):
        folder = tmp_path / "traces" / f"node{r // 2}" / f"worker{r}"
        folder.mkdir(parents=True)
        (folder / "trace.json").write_text(json.dumps(trace))
    found = diagnose_job.job_of(diagnose_job.traces_of([str(tmp_path)]))
    assert found.cause == "straggler" and [found.ranks[r].rank for r in found.stragglers] == [2]


@pytest.mark.parametrize("size", [0, 300])
def test_a_rank_of_which_next_to_nothing_was_written_is_named(size: int, tmp_path: Path) -> None:
    """As where the disk was full."""
    paths = made.write(Plan([3000.0, 3000.0, 4500.0, 3000.0]), tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:size])
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    found = diagnose_job.job_of(diagnose_job.traces_of([str(tmp_path)]), lenient=True)
    assert found.cause == "straggler" and any("rank1.json is left out" in note for note in found.notes)


def test_an_incomplete_rank_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made.write(Plan([3000.0, 4500.0]), tmp_path)
    text = b.read_text()
    b.write_text(text[: int(0.3 * len(text))])
    status, said = diagnosed(capsys, a, b)
    assert status == 3 and "rank 1: it is cut short" in said
    b.write_text(text[: int(0.8 * len(text))])  # some steps are whole
    status, said = diagnosed(capsys, a, b)
    assert status == 0 and "rank1.json is cut short" in said and "straggler: rank 1" in said


def test_the_page_of_many_ranks_stays_readable(tmp_path: Path) -> None:
    found = job_of(Plan([3000.0] * 47 + [4500.0], steps=3))
    text = diagnose_job.text("big", found, 80)
    assert "16 of 48" in text and "47" in text and max(map(len, text.splitlines())) <= 80
    assert "40 of 48" in diagnose_job.page("big", found) or "<img" in diagnose_job.page("big", found)
