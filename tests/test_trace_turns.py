"""Steps that are not alike: turns of several kinds, work between two steps, and what stands behind a cause that comes with another."""

import pytest
from test_trace_anybody import ADD, CUDA, GEMM, Job, ms, seen

from grader.trace import collectives, read_bytes

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def in_turns(steps, turn, first=0):
    """Every `turn`-th step takes 10 ms and communicates 20 ms more, the others take 10 ms."""
    job = Job()
    for number in range(steps):
        start = job.now
        for _ in range(10):
            job.op()
        if (number + first) % turn == turn - 1:
            job.op("c10d::allreduce_", 20_000, ALL_REDUCE)
        job.wait().mark(f"ProfilerStep#{number}", start)
    return job


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_steps_in_turns_are_counted_in_whole_turns(first):
    """As with no_sync() in three of four, whatever the first recorded one is."""
    a = seen(in_turns(9, 4, first))
    assert ms(a) == 15 and a.metrics.steps == 8 and a.breakdown["communication"] == pytest.approx(5e6, rel=0.01)
    assert "its steps come in turns of 4, so a whole number of turns is counted" in a.metrics.notes


def test_a_gan_of_two_kinds_of_steps():
    job = Job()
    for number in range(8):
        start = job.now
        for _ in range(4 if number % 2 else 16):
            job.op()
        job.wait().mark(f"ProfilerStep#{number}", start)
    assert ms(seen(job)) == 10


@pytest.mark.parametrize("steps", [3, 4, 6])
def test_of_one_turn_nobody_knows_that_it_is_one(steps):
    a = seen(in_turns(steps, 4))
    assert a.metrics.steps == steps - 1 and not any("turns" in note for note in a.metrics.notes)


def test_a_checkpoint_between_two_steps_is_told_as_one_pause():
    job = Job().steps(4)
    start = job.now
    job.event("python_function", "torch/serialization.py(900): save", job.now, 700_000, **{"Python id": 1})
    job.now += 700_000
    for number in range(4, 8):
        start = job.now
        for _ in range(10):
            job.op()
        job.wait().mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.diagnosis.confidence <= 0.55 and "One of 7 steps took 710 ms, and the others 10" in a.diagnosis.text
    assert "The others are compute-bound." in a.diagnosis.text


def with_frame(name, wait=False, took=6000):
    """`took` us of Python in every step, beside a graph or operators of 4 ms."""
    job = Job()
    for number in range(8):
        start = job.now
        if wait:
            job.ids += 1
            job.event("cuda_runtime", "cudaGraphLaunch", job.now, 20, correlation=job.ids)
            for kernel in range(40):
                at = job.now + 25 + 100 * kernel
                job.event("kernel", GEMM, at, 99, 7, 0, device=0, stream=7, correlation=job.ids)
            job.now, job.gpu = job.now + 25, job.now + 4025
            job.wait()
        else:
            for _ in range(10):
                job.op(length=10)
        job.event("python_function", name, job.now, took, **{"Python id": number + 1})
        job.now += took
        if not wait:
            job.op(kernel=ADD, length=10)
        job.wait().mark(f"ProfilerStep#{number}", start)
    return seen(job).diagnosis


@pytest.mark.parametrize(
    ("took", "causes"), [(6000, ("host-bound", "sync-bound")), (4000, ("sync-bound", "host-bound"))]
)
def test_a_wait_and_the_host_s_own_work_are_both_told(took, causes):
    """Whichever costs clearly more comes first, and the function is named."""
    found = with_frame("server.py(77): tokenize_outputs", wait=True, took=took)
    assert (found.cause, found.runner_up) == causes and found.confidence <= 0.6
    assert "server.py(77): tokenize_outputs" in found.text and all(cause in found.text for cause in causes)


@pytest.mark.parametrize(
    "name",
    [
        "queue.py(154): get",
        "multiprocessing/connection.py(250): recv",
        "threading.py(323): wait",
        "multiprocessing/queues.py(90): get",
    ],
)
def test_a_host_that_waits_for_another_thread_may_wait_for_data(name):
    found = with_frame(name)
    assert found.cause == "host-bound" and "If that makes the batches, the step waits for data." in found.text


@pytest.mark.parametrize("name", ["queue.py(123): put", "metrics.py(3): get", "threading.py(1): start"])
def test_and_one_that_works_does_not(name):
    assert "waits for another thread" not in with_frame(name).text


@pytest.mark.parametrize("second", [900, 500])
def test_two_exchanges_that_start_together_are_told_apart(second):
    """Of one name, on two streams, as a stage of a pipeline sends and receives."""
    job = Job()
    for number in range(3):
        start = job.now
        for kind, source, target, length, stream in (("recv", 0, 1, 500, 20), ("send", 1, 2, second, 24)):
            job.ids += 1
            said = {"Collective name": kind, "Src Rank": source, "Dst Rank": target, "Process Group Name": "pp"}
            job.event("cuda_runtime", "cudaLaunchKernelExC", job.now, 4, correlation=job.ids)
            at = {"device": 0, "stream": stream, "correlation": job.ids}
            job.event(
                "kernel",
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                start + 50,
                length,
                stream,
                0,
                **at,
                **said,
            )
            job.now += 5
        job.now = job.gpu = start + 1000
        job.wait().mark(f"ProfilerStep#{number}", start)
    found = collectives.collectives(read_bytes(job.text().encode()))
    assert list(zip(found.kind, found.group, strict=True)) == [("recv", "pp 0->1"), ("send", "pp 1->2")] * 3


@pytest.mark.parametrize(("name", "cause"), [("aten::_embedding_bag", "host-bound"), ("aten::flip", "input-bound")])
def test_a_layer_on_the_cpu_makes_no_batch(name, cause):
    """Before the first copy of a step, where a batch is made most likely."""
    job = Job()
    for number in range(6):
        start = job.now
        job.event("cpu_op", name, job.now, 15_000)
        job.now += 15_010
        job.ids += 1
        job.event("cuda_runtime", "cudaMemcpyAsync", job.now, 5, correlation=job.ids)
        at = {"device": 0, "stream": 7, "correlation": job.ids, "bytes": 1 << 20}
        job.event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", job.now + 6, 90, 7, 0, **at)
        job.now, job.gpu = job.now + 10, job.now + 100
        for _ in range(10):
            job.op(length=480)
        job.wait().mark(f"ProfilerStep#{number}", start)
    found = seen(job).diagnosis
    assert found.cause == cause and (name in found.text) == (cause == "host-bound")


@pytest.mark.parametrize("launches", [True, False])
def test_an_operator_that_launches_works_on_no_tensor_of_the_cpu(launches):
    """As where a library is set up at its first use: the operator takes long, and launches at its end."""
    job = Job()
    for number in range(6):
        start = job.now
        job.op(length=100).wait()
        job.event("cpu_op", "aten::addmm", job.now, 20_000 if launches else 19_900)
        job.now += 19_950
        job.launch(GEMM, 500, CUDA[1])
        job.now += 60
        for _ in range(10):
            job.op(length=100)
        job.wait().mark(f"ProfilerStep#{number}", start)
    found = seen(job).diagnosis
    assert found.cause == "host-bound" and ("tensors of the CPU" in found.text) != launches
