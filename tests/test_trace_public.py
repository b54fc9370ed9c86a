"""What traces that strangers published once got wrong, each made again in a few lines."""

import json

import kineto
import pytest
from test_trace_anybody import GEMM, Job, seen
from test_trace_kinds import split

from grader import trace
from grader.trace.collectives import kind_of
from grader.trace.job import job
from grader.trace.rank import rank_of


def test_numbered_marks_of_which_one_holds_the_work_are_no_steps():
    job = Job()
    start = job.now
    for _ in range(40):
        job.op(length=100)
    job.wait().mark("generate_masks 0", start)
    for number in range(1, 60):
        start = job.now
        job.now += 30
        job.mark(f"generate_masks {number}", start)
    a = seen(job)
    assert a.metrics.steps == 1 and a.metrics.kernels == 40 and a.diagnosis.cause
    assert 'one "generate_masks 0"' in a.metrics.notes[-1]


def test_numbered_marks_of_which_a_few_hold_the_work_are_no_steps():
    job = Job()
    whole = job.now
    for number, ops in enumerate((20, 60, 1, 2, 1, 1, 2, 1)):
        start = job.now
        for _ in range(ops):
            job.op(length=100)
        job.mark(f"crop {number}", start)
    a = seen(job.wait().mark("generate_masks 0", whole))
    assert a.metrics.steps == 1 and a.metrics.kernels == 88


def pass_of(stem, blocks=10):
    """Operators before the blocks of one pass, and its head."""
    job = Job()
    for name in stem:
        job.op(name, 20)
    for _ in range(blocks):
        for name in [
            "aten::layer_norm",
            "aten::linear",
            "aten::softmax",
            "aten::bmm",
            "aten::linear",
            "aten::add_",
        ] * 2:
            job.op(name, 20)
    return seen(job.op("aten::layer_norm", 20).op("aten::linear", 20).wait())


def test_a_long_stem_before_the_blocks_of_one_pass():
    a = pass_of(["aten::conv1d", "aten::batch_norm", "aten::gelu", "aten::mul", "aten::log"] * 12)
    assert a.metrics.steps == 1 and a.metrics.kernels == 182


def test_a_long_preparation_before_steps():
    a = pass_of(["aten::normal_", "aten::fill_", "aten::uniform_", "aten::mul_", "aten::add"] * 12)
    assert a.metrics.steps > 5 and a.metrics.kernels == 6


def test_the_gpu_was_busy_before_though_most_of_the_work_is_on_another_stream():
    a = seen(split(100_000, held=True, streams=(20,)))
    assert (
        a.diagnosis.cause == "compute-bound"
        and "step before" in a.metrics.notes[-1]
        and a.metrics.step_ns_traced == pytest.approx(10e6, rel=0.03)
    )


def held(name, length=30_000):
    """Steps in which one operator that launches nothing takes long."""
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=10)
        job.event("cpu_op", name, job.now, length)
        job.now += length + 10
        job.op().wait().mark(f"ProfilerStep#{number}", start)
    return seen(job).diagnosis


@pytest.mark.parametrize("name", ["aten::split_with_sizes", "aten::expand", "aten::as_strided", "aten::detach"])
def test_an_operator_that_makes_a_view_works_on_nothing(name):
    d = held(name)
    assert d.cause == "host-bound" and "tensors of the CPU" not in d.text
    assert f"Of it {name} (30 ms) only made views" in d.text


def test_others_work_on_tensors_of_the_cpu():
    assert "Of it aten::embedding (30 ms) worked on tensors of the CPU" in held("aten::embedding").text


def in_turns(pauses, kernel=GEMM + "_{}"):
    """Steps whose queued kernels are held up for that long, us, one after the other."""
    job = Job()
    for number in range(4):
        start = job.now
        for i in range(len(pauses) * 5):
            if i % 5 == 4:
                job.gpu = max(job.gpu, job.now) + pauses[i // 5]
            job.op(length=50, kernel=kernel.format(i))
        job.wait().mark(f"ProfilerStep#{number}", start)
    return seen(job).diagnosis


def test_pauses_of_one_length_are_another_process_s_turns():
    d = in_turns([2300, 2400, 2350, 2380, 2200, 2390])
    assert d.cause == "queue-bound" and "another process" in d.text and "nvidia-smi" in d.what_to_try[0]


def test_a_single_stream_waits_for_no_other():
    assert "All its work is on one stream" in in_turns([300, 9000, 2400, 5000, 700, 1500]).text


@pytest.mark.parametrize(
    "job", [([300, 9000, 2400, 5000, 700, 1500],), ([2400],), ([2400] * 6, GEMM)], ids=["uneven", "few", "one_kernel"]
)
def test_other_pauses_are_not(job):
    assert "another process has its turn" not in in_turns(*job).text


def with_work_beside(host, late=5000.0, second=0.0):
    """A rank that launches a collective once its host is ready, us after the step's begin, and then computes beside it before the next
    one, which takes as much longer as `second`; the last rank is ready after `late`."""
    events, ids, at, compute, short = [], 0, 1000.0, 8000.0, 100.0

    def add(cat, name, ts, dur, tid=1, **args):
        pid = 0 if cat == "kernel" else 1
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for number in range(5):
        first, ready = late + 10, host + 10
        for name, stream, start, length in (
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, ready, first + short - ready),
            (GEMM, 7, ready, compute),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, ready + compute, first + short + second - ready),
        ):
            ids += 1
            add("cpu_op", "aten::mm", at + host, 6)
            add("cuda_runtime", "cudaLaunchKernel", at + host + 1, 4, correlation=ids)
            add("kernel", name, at + start, length, stream, device=0, stream=stream, correlation=ids)
        end = at + first + compute + short + second + 20
        add("cuda_runtime", "cudaDeviceSynchronize", at + host + 8, end - at - host - 10)
        add("user_annotation", f"ProfilerStep#{number}", at, end - at)
        at = end
    return events


def job_of(ranks, size=4):
    found = []
    for number, events in enumerate(ranks):
        told = {"distributedInfo": {"backend": "nccl", "rank": number, "world_size": size}}
        text = json.dumps(kineto.document(events, devices=size, **told))
        found.append(rank_of(trace.analyse(trace.read_bytes(text.encode())), f"rank{number}.json"))
    return job(found)


def test_what_ranks_do_beside_a_collective_makes_none_late():
    found = job_of([with_work_beside(host) for host in (0.0, 0.0, 0.0, 5000.0)])
    assert found.cause == "straggler" and [found.ranks[r].rank for r in found.stragglers] == [3]
    assert found.why["host"] == pytest.approx(5e6, rel=0.02) and found.why["computing"] < 0.1e6


def test_collectives_whose_size_was_not_recorded_tell_nothing_of_ranks_without_a_file():
    """A long one may be a large one."""
    found = job_of([with_work_beside(0.0, late=0.0, second=4000.0)] * 2)
    assert found.missing == [2, 3] and not found.absent_ns and found.cause == "communication-bound"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)", "dispatch"),
        ("void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*, void*)", "combine"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*)", "notify"),
    ],
)
def test_exchanges_between_experts_have_kinds(name, kind):
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("cat", "name"),
    [("cpu_op", "aten::cudnn_convolution"), ("python_function", "<built-in function _cuda_synchronize>")],
)
def test_a_recording_without_the_gpu_that_worked_says_so(cat, name):
    job = Job()
    for _ in range(5):
        job.event("cpu_op", "aten::add", job.now, 500)
        job.event(cat, name, job.now + 600, 700)
        job.now += 1500
    d = seen(job).diagnosis
    assert "nothing ran on a GPU" not in d.text and "ProfilerActivity.CUDA" in d.text and "aten::add" in d.text


def waiting(behind):
    """Steps that wait for each kernel, as the GPU's clock is so much behind, us."""
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=100).wait()
            job.now += 90
        job.mark(f"ProfilerStep#{number}", start)
    for event in job.events:
        event["ts"] += behind * (event["cat"] == "kernel")
    return seen(job)


def test_a_gpu_s_clock_that_is_late_makes_no_queue():
    assert waiting(0).diagnosis.cause == waiting(10).diagnosis.cause == "sync-bound"
    late = waiting(200)
    assert late.diagnosis.cause is None and "the clocks of host and GPU are apart" in late.metrics.reasons[0]


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_a_wait_for_one_stream_or_gpu_says_nothing_of_another(call):
    """A prefetcher waits for its copies, and a process with two GPUs for one of them, while the kernels are queued."""
    job, other = (
        Job(),
        {"cudaStreamSynchronize": {"stream": 20, "device": 0}, "cudaDeviceSynchronize": {"stream": 7, "device": 1}},
    )
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=3000)
            job.ids += 1
            job.event("cuda_runtime", "cudaMemcpyAsync", job.now, 4, correlation=job.ids)
            ids = other[call] | {"correlation": job.ids}
            job.event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", job.now + 5, 50, 20, 0, **ids)
            job.event("cuda_runtime", call, job.now + 10, 46)
            job.now += 100
        job.mark(f"ProfilerStep#{number}", start)
    assert not [
        said for said in seen(job).metrics.reasons if "had waited" in said or "have waited" in said or "apart" in said
    ]


@pytest.mark.parametrize(("length", "fewer"), [(30, True), (80, False)])
def test_a_product_that_is_faster_than_its_type_computes_in_fewer_bits(length, fewer):
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(5):
            about = {"Input Dims": [[4096, 1024], [1024, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
            job.op(length=length).events[-3]["args"] = about
        job.wait().mark(f"ProfilerStep#{number}", start)
    why = seen(job).operations[0].why
    assert ("fewer bits" in why) == fewer and ("TFLOP/s" in why) != fewer


def test_what_pytorch_marks_in_compiled_code_is_not_called_the_user_s():
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=10)
            job.now += 3000
        job.mark("## Call CompiledFxGraph fem7v7a2b5fjalp ##", start)
        job.wait().mark(f"ProfilerStep#{number}", start)
    d = seen(job).diagnosis
    assert d.cause == "host-bound" and "compiled code" in d.text and "record_function" not in d.text
