"""Traces of anybody's job: other vendors, other frameworks, without marks, with flaws. Made by hand in a few lines, so that what is
true of each is known exactly, and a few real ones in `data/`."""

import gzip
import json
from pathlib import Path

import kineto
import pytest

from grader import trace

GEMM, ADD = "sm90_xmma_gemm_bf16bf16_bf16f32", "void at::native::vectorized_elementwise_kernel<4>"
CUDA = ("cuda_runtime", "cudaLaunchKernel", "cudaDeviceSynchronize")
LAYERS = ["aten::embedding", *["aten::layer_norm", "aten::linear", "aten::add"] * 12, "aten::cross_entropy_loss"]
DATA = Path(__file__).with_name("data")


class Job:
    """A host thread that launches and a stream that works in order; times in us."""

    def __init__(self, calls=CUDA, kernel=GEMM):
        self.events, self.calls, self.kernel = [], calls, kernel
        self.now, self.gpu, self.ids = 1000.0, 0.0, 0

    def event(self, cat, name, start, duration, tid=100, pid=100, **args):
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration})
        self.events[-1]["args"] = args
        return self.events[-1]

    def launch(self, name, length, call, stream=7):
        """Returns the kernel."""
        self.ids += 1
        self.event(self.calls[0], call, self.now + 2, 4, correlation=self.ids)
        start = max(self.now + 8, self.gpu)
        self.gpu = start + length
        return self.event("kernel", name, start, length, stream, 0, device=0, stream=stream, correlation=self.ids)

    def op(self, name="aten::mm", length=1000, kernel=None, backward=False):
        self.event("cpu_op", name, self.now, 8, 200 if backward else 100)
        self.launch(kernel or self.kernel, length, self.calls[1])
        self.now += 20
        return self

    def wait(self):
        end = max(self.now, self.gpu) + 1
        self.event(self.calls[0], self.calls[2], self.now, end - self.now)
        self.now = end + 5
        return self

    def mark(self, name, start):
        self.event("user_annotation", name, start, self.now - start)
        return self

    def steps(self, count=4, ops=10, length=1000, name="ProfilerStep#{}"):
        for number in range(count):
            start = self.now
            for _ in range(ops):
                self.op(length=length)
            self.wait().mark(name.format(number), start)
        return self

    def text(self, **more):
        return json.dumps(kineto.document(self.events, **more))


def seen(job, **more):
    """What is found in a Job, in text, or in a file of `data/`."""
    if isinstance(job, str) and not job.lstrip().startswith(("{", "[")):
        return trace.analyse(trace.read(DATA / job))
    return trace.analyse(trace.read_bytes((job if isinstance(job, str) else job.text(**more)).encode()))


def ms(a):
    return pytest.approx(a.metrics.step_ns_traced / 1e6, rel=0.02)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("streams", [[7], [7, 20]])
def test_kernels_of_the_step_before_are_not_this_step_s(streams):
    job = Job()
    for number in range(10):
        for stream in streams:
            ids = {"stream": stream, "correlation": stream * 100 + number}
            job.event("kernel", ADD, 1000 + number * 1000, 1000, stream, 0, device=0, **ids)
    job.now, job.gpu, start = 1000, 11_000, 1000
    for _ in range(10):
        job.op()
    a = seen(job.mark("ProfilerStep#5", start))
    assert ms(a) == 10 and a.breakdown["tensor_core"] == pytest.approx(10e6) and not a.breakdown["memory"]
    assert a.diagnosis.cause == "compute-bound" and "one whole step was recorded" in a.metrics.notes[-1]


def test_nor_where_the_host_takes_longer_than_the_gpu():
    job = Job()
    job.event("kernel", ADD, 1000, 3000, 7, 0, device=0, stream=7, correlation=900)
    job.gpu, start = 4000, 1000
    for _ in range(5):
        job.now += 4000
        job.op()
    a = seen(job.wait().mark("ProfilerStep#5", start))
    assert a.breakdown["tensor_core"] == pytest.approx(5e6) and not a.breakdown["memory"] and ms(a) == 21.1


@pytest.mark.parametrize("ops", [0, 3])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_last_step_that_was_cut_off_is_not_counted(steps, ops):
    job = Job().steps(steps)
    start = job.now
    for _ in range(ops):
        job.op()
    job.now = start + 50
    a = seen(job.mark(f"ProfilerStep#{steps}", start))
    assert ms(a) == 10 and a.metrics.steps == max(1, steps - 1) and a.metrics.kernels == 10
    assert "the recording ends within its last step, which is not counted" in a.metrics.notes
    assert a.diagnosis.cause == "compute-bound"


def test_a_last_mark_around_nothing_is_no_step():
    """The loop had ended, and its profiler had not."""
    job = Job().steps(5)
    start = job.now
    job.now += 3e6
    a = seen(job.mark("ProfilerStep#5", start))
    assert ms(a) == 10 and a.metrics.steps == 4 and a.diagnosis.cause == "compute-bound"


def test_a_last_step_that_has_less_to_do_is_counted():
    job = Job().steps(4)
    start = job.now
    job.op()
    job.now = start + 10_000
    a = seen(job.mark("ProfilerStep#4", start))
    assert a.metrics.steps == 4 and not a.metrics.notes


def test_the_whole_recording_is_all_threads_and_streams():
    a = seen("nosteps_mi210.json.gz")
    low, high = a.trace.start.min(), a.trace.end.max()
    assert a.metrics.steps == 1 and a.metrics.step_ns_traced == high - low > 6_000_000
    assert a.metrics.kernels == 562 and a.diagnosis.cause and "counted as one step" in a.metrics.notes[-1]


def test_kernels_that_overlap_on_one_stream_cannot_be():
    job = Job().steps()
    kernels = [e for e in job.events if e["cat"] == "kernel"]
    kernels[15]["dur"] = 2e6
    a = seen(job)
    assert a.diagnosis.cause is None and not a.metrics.complete
    assert "ran while another one of the same stream still did" in a.metrics.reasons[0]
    kernels[15]["dur"], kernels[-1]["dur"] = 1000, 2e6  # nothing comes after it, but the host had waited for it
    assert "1 kernel ended after the host had waited" in seen(job).metrics.reasons[0]


def test_kernels_that_may_overlap_do():
    job = Job().steps()
    for e in job.events:
        if e["cat"] == "kernel" and e["args"]["correlation"] % 2:
            e["ts"] -= 700  # before the one before it has ended
    assert "same stream" in seen(job).metrics.reasons[0]
    for e in job.events:
        e["name"] = e["name"].replace("cudaLaunchKernel", "cudaLaunchKernelExC")
    assert seen(job).metrics.complete


# ---------------------------------------------------------------- without marks


def unmarked(steps=6, log_every=0):
    job = Job()
    for number in range(steps):
        job.now += 500
        for name in LAYERS:
            job.op(name, 20)
        for name in LAYERS:
            job.op(name, 40, backward=True)
        job.op("aten::_foreach_add_", 20)
        if log_every and not (number + 1) % log_every:
            job.op("aten::item", 3).wait()
    return job


def test_steps_are_found_by_the_optimizer():
    job = Job()
    for _ in range(6):
        for name in LAYERS:
            job.op(name, 20)
        start = job.now
        for _ in range(2):  # two of them
            begin = job.now
            job.op("aten::_fused_adamw_", 20).mark("Optimizer.step#AdamW.step", begin)
        job.mark("inner", start)
    a = seen(job)
    assert a.metrics.steps == 5 and a.metrics.kernels == len(LAYERS) + 2 and a.metrics.steps_sure >= 0.9
    assert '"Optimizer.step#AdamW.step"' in a.metrics.notes[-1] and a.diagnosis.cause


@pytest.mark.parametrize("more", [[0, 1, 0, -1, 0, 0], [0, 2, -2, 0, -1, 1], [1, -1, 0, 0, 1, 0]])
def test_a_launch_more_or_less_makes_no_other_step(more):
    job = Job()
    for extra in more:
        for _ in range(60 + extra):
            job.op(length=200)
        job.event("user_annotation", "Optimizer.step#AdamW.step", job.now, 100)
        job.now += 100
        job.wait()
    assert seen(job).metrics.notes[0].endswith("which ends 6 of them (95% sure)")


@pytest.mark.parametrize(
    "name", ["[pl][profile]run_training_batch", "execute_context_0(0)_generation_16({})", "my step"]
)
def test_steps_are_found_by_annotations_that_repeat(name):
    a = seen(Job().steps(8, name=name))
    assert ms(a) == 10 and a.metrics.steps == 7 and a.metrics.kernels == 10 and a.diagnosis.cause == "compute-bound"
    assert "which was recorded 8 times" in a.metrics.notes[-1] and a.diagnosis.confidence <= 0.9


def layered(passes, around=None, name="TransformerLayer_{}", inner="Attention"):
    job = Job()
    for _ in range(passes):
        start = job.now
        job.op("aten::embedding", 300)
        for layer in range(4):
            first = job.now
            for _ in range(5):
                job.op(length=300)
            job.mark(inner, first)
            for _ in range(5):
                job.op(length=300)
            job.mark(name.format(layer), first)
        job.op(length=300).wait()
        if around:
            job.mark(around, start)
    return job


@pytest.mark.parametrize("around", ["Model_Forward", "train_step", "forward pass"])
@pytest.mark.parametrize("name", ["TransformerLayer_{}", "blocks.{}", "part {}", "[pl][module]Block: model.layers.{}"])
def test_annotated_layers_of_one_pass_are_no_steps(name, around):
    a = seen(layered(1, around, name))
    assert a.metrics.steps == 1 and a.metrics.kernels == 42 and a.diagnosis.cause == "compute-bound"


@pytest.mark.parametrize("name", ["TransformerLayer_{}", "encoder.block.{}", "[pl][module]Block: model.layers.{}"])
def test_nor_without_an_annotation_around_all(name):
    a = seen(layered(1, None, name))
    assert a.metrics.steps == 1 and a.metrics.kernels == 42 and "nothing in it repeats" in a.metrics.notes[-1]


@pytest.mark.parametrize("name", ["TransformerLayer_{}", "encoder.block.{}", "stage{}"])
def test_a_layer_comes_once_in_each_step(name):
    a = seen(layered(6, None, name, inner="nccl:all_gather"))
    assert a.metrics.steps in (4, 5) and a.metrics.kernels == 42 and a.diagnosis.cause == "compute-bound"


@pytest.mark.parametrize(
    "around", ["epoch {}", "Epoch: {}", "train_epoch_{}", "[pl][profile]run_training_epoch", "training"]
)
def test_epochs_are_no_steps(around):
    job = Job()
    for number in range(3):
        start = job.now
        job.steps(5, name="batch {}").mark(around.format(number), start)
    a = seen(job)
    assert ms(a) == 10 and a.metrics.kernels == 10 and "batch 0" in a.metrics.notes[-1]


def test_steps_within_one_annotation_are_steps():
    job = Job()
    start = job.now
    a = seen(job.steps(8, name="decode {}").mark("generate", start))
    assert ms(a) == 10 and a.metrics.kernels == 10


def test_what_lies_between_annotations_belongs_to_the_step():
    job = Job()
    for number in range(8):
        start = job.now
        for _ in range(10):
            job.op(length=300)
        job.wait().mark(f"execute_context_0(0)_generation_{number}", start)
        job.now += 2000
    a = seen(job)
    assert ms(a) == 5 and a.metrics.gpu_busy_ns == pytest.approx(3e6)


def test_steps_are_found_by_the_replays_of_a_graph():
    job = Job()
    for _ in range(20):
        job.now += 100
        job.launch(GEMM, 20, "cudaGraphLaunch")
        for _ in range(49):
            job.event("kernel", GEMM, job.gpu, 20, 7, 0, device=0, stream=7, correlation=job.ids)
            job.gpu += 20
        job.now += 30
        job.wait()
    a = seen(job)
    assert a.metrics.steps == 18 and a.metrics.kernels == 50 and "replays of CUDA graphs" in a.metrics.notes[-1]
    assert a.diagnosis.cause


@pytest.mark.parametrize("log_every", [0, 3])
def test_steps_are_found_by_the_longest_sequence_that_repeats(log_every):
    a = seen(unmarked(8, log_every))
    assert 5 <= a.metrics.steps <= 7 and a.metrics.kernels == pytest.approx(2 * len(LAYERS) + 1, abs=0.6)
    assert "operators that comes" in a.metrics.notes[-1] and a.diagnosis.cause and a.metrics.steps_sure <= 0.7


def test_what_does_not_repeat_is_one_step():
    job = Job()
    for name in LAYERS:
        job.op(name, 20)
    a = seen(job)
    assert a.metrics.steps == 1 and a.metrics.kernels == len(LAYERS) and a.diagnosis.cause
    assert "nothing in it repeats" in a.metrics.notes[-1]


def test_one_step_of_a_serving_engine():
    a = seen("vllm_decode_graph.json.gz")
    assert a.metrics.steps == 1 and a.metrics.kernels == 425 and a.diagnosis.cause
    assert 'it has one "execute_32' in "; ".join(a.metrics.notes) and a.metrics.tensor_core_share["yes"] > 0.9


@pytest.mark.parametrize("marked", [True, False])
def test_operators_of_a_run_on_the_cpu_are_listed(marked):
    job = Job()
    for number in range(6):
        start = job.now
        for name in LAYERS:
            job.event("cpu_op", name, job.now, 50)
            job.now += 55
        if marked:
            job.mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert "these operators took most: aten::layer_norm" in a.diagnosis.text and a.metrics.steps >= 4


# ---------------------------------------------------------------- flaws


def flawed(old, new):
    text = Job().steps(length=300).text()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (flawed('"device": 0, ', '"device": 0, "memory bandwidth (GB/s)": inf, '), "1 event is damaged and was read"),
        (flawed('"device": 0, ', '"device": 0, "est. achieved occupancy %": NaN, '), "1 event is damaged and was read"),
        (flawed("gemm_bf16", "gemm\x01_\n_bf16"), "1 event is damaged and was read"),
        (flawed("gemm_bf16", 'gemm"_bf16'), "1 event is damaged and was read"),
        (flawed('"dur": 300', '"dur": -300'), "1 event has a negative duration"),
        (flawed('"dur": 300', '"dur": inf'), "1 event is damaged and lost"),
        (flawed('"dur": 300', '"dur": 1e15'), "1 event has absurd times"),
        (flawed('"dur": 8', '"dur": -1'), "1 event has a negative duration"),
        (Job().steps(length=300).text(traceEvents=Job().steps(length=300).events), "mark that ends a recording"),
        (json.dumps(Job().steps(length=300).events), "bare list of events"),
    ],
)
def test_a_flaw_costs_the_event_and_not_the_verdict(text, said):
    a = seen(text)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete and said in "; ".join(a.metrics.notes)
    assert ms(a) == 3 and a.metrics.kernels in (10, pytest.approx(29 / 3))


def test_much_damage_costs_the_verdict():
    a = seen(Job().steps(length=300).text().replace('"dur": 300', '"dur": -300', 9))
    assert a.diagnosis.cause is None and "9 of " in a.metrics.reasons[0]


# ---------------------------------------------------------------- vendors


def test_numbers_as_strings_are_numbers():
    job = Job(("cuda_runtime", "hipLaunchKernel", "hipDeviceSynchronize"), "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64").steps()
    job.event("cuda_runtime", "hipMemcpyAsync", 1001, 3, correlation="900", bytes="128", kind="1")
    job.event(
        "gpu_memcpy",
        "Memcpy HtoD (Host -> Device)",
        1002,
        3,
        7,
        0,
        device="0",
        stream="7",
        correlation="900",
        bytes="128",
    )
    a = seen(job)
    assert not a.metrics.notes and a.metrics.complete and ms(a) == 10 and a.diagnosis.cause == "compute-bound"
    assert a.metrics.tensor_core_share["yes"] == 1 and a.metrics.half_share == 1
    assert a.trace.bytes[a.trace.category == 7].tolist() == [128]


def test_a_real_trace_of_rocm():
    a = seen("bert_mi300.json.gz")
    assert a.metrics.complete and a.metrics.kernels == 60 and a.diagnosis.cause and ms(a) == 4.007
    a = seen("minitoy_mi250.json.gz")
    assert a.metrics.complete and a.metrics.kernels == 14 and ms(a) == 9.288 and a.metrics.steps == 1


@pytest.mark.parametrize(
    "call", ["hipMemcpyWithStream", "hipMemcpyDtoH", "hipMemcpy", "cuMemcpyDtoH_v2", "cudaMemcpy2D"]
)
def test_copies_that_hold_the_host_are_waits(call):
    job = Job(("cuda_runtime", "hipLaunchKernel", "hipDeviceSynchronize"))
    for number in range(4):
        start = job.now
        job.op()
        job.launch("Memcpy DtoH (Device -> Host)", 5, call)["cat"] = "gpu_memcpy"
        job.now = job.gpu
        job.mark(f"ProfilerStep#{number}", start)
    assert seen(job).metrics.syncs == 1


def test_xpu():
    job = Job(("xpu_runtime", "urEnqueueKernelLaunch", "urQueueFinish"), "gemm_kernel").steps()
    a = seen(job)
    assert a.metrics.complete and a.metrics.launches == a.metrics.kernels == 10 and a.metrics.syncs == 1
    assert a.diagnosis.cause == "compute-bound"


def test_waits_of_other_vendors_that_name_their_calls_as_cuda_does():
    job = Job(("privateuse1_runtime", "musaLaunchKernel", "musaStreamSynchronize"))
    for number in range(4):
        start = job.now
        for _ in range(20):
            job.op(length=300).wait()
            job.now += 250
        job.mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.metrics.launches == a.metrics.syncs == 20 and a.diagnosis.cause == "sync-bound"


def test_an_accelerator_that_nobody_thought_of():
    a = seen(Job(("privateuse1_runtime", "launchThing", "waitThing")).steps())
    assert a.metrics.kernels == 10 and a.diagnosis.cause == "compute-bound"


@pytest.mark.parametrize(
    "calls",
    [
        ("hpu_op", "synLaunch", "synStreamSynchronize"),
        ("mlu_runtime", "cnInvokeKernelEx", "cnrtQueueSync"),
        ("privateuse1_runtime", "cnInvokeKernel", "cnQueueSync"),
    ],
)
def test_launches_of_gaudi_and_cambricon(calls):
    a = seen(Job(calls).steps(4, 60, 4))
    assert a.metrics.launches == a.metrics.kernels == 60 and a.diagnosis.cause == "launch-bound"


def test_mtia_writes_copies_and_kernels_alike_and_no_launches():
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(5):
            job.event("cpu_op", "aten::mm", job.now, 8)
            job.event("mtia_ccp_events", "mm-dtype_Float", job.now + 9, 50, 801, 9, stream=1)
            job.event("mtia_ccp_events", "dma_request", job.now + 60, 5, 801, 9, stream=1, size=4)
            job.event("mtia_ccp_events", "event_wait", job.now, 99, 801, 9, stream=2)
            job.now += 100
        job.mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.metrics.kernels == 5 and a.metrics.gpu_busy_ns == pytest.approx(5 * 55_000)
    assert any("no launches of its GPU work are recorded" in note for note in a.metrics.notes)
    assert a.diagnosis.cause is None and "the GPU idles 45% of the step, and no launch" in a.diagnosis.text


def ascend(steps=4, more=lambda task, at: None):
    """As torch_npu writes it: times are strings, the device's events have no category. more: adds to a step of 1000 us."""
    events, ids = [], iter(range(1000, 9999))

    def task(name, kind, at, length, call="Node@launch", held=5, stream=2, **args):
        """On the device, and its call 5 us before, which lasts `held`."""
        one, what = next(ids), {"Task Type": kind, "Physic Stream Id": stream}
        for name_, pid, start, dur, more_ in ((call, 2, at - 5, held, {}), (name, 3001, at, length, what | args)):
            event = {"ph": "X", "name": name_, "pid": pid, "tid": 1, "args": more_ | {"connection_id": one}}
            events.append(event | {"ts": f"{start}.125", "dur": dur})

    for number in range(steps):
        at = 1_700_000_000_000_000 + 1000 * number
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "args": {}}
        events.append(mark | {"ts": f"{at}.125", "dur": 1000})
        events.append(mark | {"name": "Computing", "pid": 9, "cat": None, "ts": f"{at}.125", "dur": 1000})
        if not more(task, at):
            for i in range(10):
                task("MatMul", "AI_CORE", at + i * 100 + 10, 90)
    return json.dumps(events)


def test_ascend():
    a = seen(ascend())
    assert a.metrics.complete and a.metrics.kernels == a.metrics.launches == 10 and a.metrics.steps == 3
    assert a.metrics.gpu_busy_ns == pytest.approx(10 * 90_000) and a.trace.start[0] == 1_700_000_000_000_000_125
    assert any("matched by the id" in note for note in a.metrics.notes)


def arrows(events):
    """As without ids of connections: arrows alone lead from a call to what it launched."""
    made, calls = [], {}
    for event in events:
        number = event["args"].pop("connection_id", None)
        if number is None:
            continue
        calls[number], kind = calls.get(number, 0) + 1, "s" if event["pid"] == 2 else "f"
        arrow = {
            "ph": kind,
            "cat": "HostToDevice",
            "id": str(number << 32 | 7),
            "name": f"HostToDevice{number << 32 | 7}",
        }
        made.append(arrow | {key: event[key] for key in ("pid", "tid", "ts")})
    return [*events, *made]


@pytest.mark.parametrize(("length", "cause"), [(90, "compute-bound"), (30, "launch-bound")])
@pytest.mark.parametrize("order", [1, -1])
def test_arrows_of_ascend(order, length, cause):
    text = ascend(more=lambda task, at: [task("MatMul", "AI_CORE", at + i * 100 + 10, length) for i in range(10)])
    a, b = seen(text), seen(json.dumps(arrows(json.loads(text))[::order]))
    assert a.diagnosis.cause == b.diagnosis.cause == cause and b.metrics.complete
    assert b.metrics.kernels == b.metrics.launches == 10
    assert (b.metrics.gpu_busy_ns, b.diagnosis.confidence) == (a.metrics.gpu_busy_ns, a.diagnosis.confidence)


def test_few_arrows_of_ascend_among_others_and_with_ids_of_more_than_64_bits():
    """A connection of 9,314,300,672 is an arrow's id of 40,004,631,069,296,951,295."""
    events = json.loads(ascend().replace('"dur": 90', '"dur": 30'))
    for event in events:
        if "connection_id" in event["args"]:
            event["args"]["connection_id"] += 9_314_300_672
    counters = [{"ph": "C", "name": "HBM", "pid": 9, "tid": 0, "ts": "1.5", "args": {"MB/s": 1.0}} for _ in range(1000)]
    a = seen(json.dumps([*counters, *arrows(events), *counters]))
    assert a.diagnosis.cause == "launch-bound" and a.metrics.launches == a.metrics.kernels == 10


def test_one_call_of_ascend_that_launches_several():
    events = json.loads(ascend())
    for event in [e for e in events if e["name"] == "MatMul"]:
        del event["args"]["connection_id"]
    calls, tasks = ([e for e in events if e["name"] == name] for name in ("Node@launch", "MatMul"))
    for i, (call, task) in enumerate(zip(calls, tasks, strict=True)):
        del call["args"]["connection_id"]
        from_ = calls[i - i % 2]
        if from_ is not call:
            events.remove(call)
        for kind, event in (("s", from_), ("f", task)):
            arrow = {"ph": kind, "cat": "HostToDevice", "id": 100 + i, "name": "HostToDevice"}
            events.append(arrow | {key: event[key] for key in ("pid", "tid", "ts")})
    a = seen(json.dumps(events))
    assert a.metrics.complete and (a.metrics.kernels, a.metrics.launches) == (10, 5)
    assert a.diagnosis.cause == "compute-bound"


def test_arrows_from_calls_that_were_not_recorded():
    """As at the lowest level of torch_npu's profiler: ids of connections are there, but only those of calls that launch nothing."""
    events = json.loads(ascend().replace('"dur": 90', '"dur": 30'))
    whole = [*events, *arrows(json.loads(json.dumps(events)))[len(events) :]]
    assert seen(json.dumps(whole)).metrics.launches == 10
    for event in whole:
        if event["name"] == "Node@launch":
            event |= {"name": "AscendCL@aclnnMm", "ts": event["ts"].replace(".125", ".100")}
            event["args"] = {"connection_id": event["args"]["connection_id"] + 50_000}
    a = seen(json.dumps(whole))
    assert a.diagnosis.cause == "launch-bound" and a.metrics.launches == a.metrics.kernels == 10


def test_arrows_that_lead_nowhere_tell_nothing():
    events = arrows(json.loads(ascend()))
    for event in events:
        if event["ph"] == "s":
            event["ts"] = "1.5"
    a = seen(json.dumps(events))
    assert "no launches of its GPU work are recorded" in "; ".join(a.metrics.notes)


def test_tasks_of_ascend_that_no_call_launched():
    events = json.loads(ascend())
    for event in [e for e in events if e["name"] == "MatMul"][::10]:
        args = event["args"] | {"connection_id": 4294967295, "Task Type": "AI_CPU"}
        events.append(event | {"name": "TopK", "ts": f"{int(event['ts'][:-4]) + 980}.125", "dur": 5, "args": args})
    a = seen(json.dumps(events))
    assert a.metrics.complete and a.metrics.kernels == 11 and a.metrics.launches == 10


@pytest.mark.parametrize(
    ("operation", "kind", "part"),
    [
        ("host to device", "HtoD other", "copies"),
        ("device to host", "DtoH", "copies"),
        ("host to device ex", "HtoD other", "copies"),
        ("device to device", "DtoD", "memory"),
        ("other", "other", "copies"),
        (None, "other", "copies"),
    ],
)
@pytest.mark.parametrize("task_type", ["SDMA_SQE", "PCIE_DMA_SQE", "Other", "PLACE_HOLDER_SQE"])
def test_copies_of_ascend(task_type, operation, kind, part):
    def copy(task, at):
        said = {"size(B)": 1 << 20, "bandwidth(GB/s)": 1.7, "operation": operation} if operation else {}
        held = 610 if part == "copies" else 5
        task("MEMCPY_ASYNC", task_type, at + 10, 600, "AscendCL@aclrtMemcpy" + "Async" * (held < 10), held, **said)
        for i in range(3):
            task("MatMul", "AI_CORE", at + 650 + 100 * i, 90)
        return True

    a = seen(ascend(more=copy))
    assert a.metrics.kernels == 3 and set(a.metrics.copies) >= {kind} and a.metrics.complete
    assert a.breakdown[part] == pytest.approx(600e3)
    assert operation is None or (a.trace.bytes == 1 << 20).sum() == 4
    assert a.diagnosis.cause == ("transfer-bound" if part == "copies" else "memory-bound")


def test_calls_that_ascend_did_not_record():
    doc = [event for event in json.loads(ascend()) if event["name"] != "Node@launch"]
    doc += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": doc[0]["ts"], "dur": 5}]
    a = seen(json.dumps(doc).replace('"dur": 90', '"dur": 40'))
    assert a.diagnosis.cause is None and "but not the calls that launch" in a.diagnosis.text


def test_waits_of_ascend_are_no_work():
    def waits(task, at):
        for kind in ("EVENT_WAIT_SQE", "NOTIFY_WAIT_SQE", "Notify Wait", "EVENT_RECORD_SQE", "WRITE_VALUE_SQE"):
            task(kind, kind, at + 10, 980, "AscendCL@aclrtStreamWaitEvent", stream=5)

    a = seen(ascend(more=waits))
    assert a.metrics.kernels == 10 and a.metrics.gpu_busy_ns == pytest.approx(900e3)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete


def test_calls_of_ascend_are_those_of_the_thread_of_the_same_number():
    """They have a process of their own: what launches is a thread beside Python's there, and Python's waits."""
    doc = json.loads(ascend().replace('"dur": 90', '"dur": 30'))
    for event in doc:
        if event["name"] == "Node@launch":
            event["tid"] = 5
            ends = int(event["ts"].split(".")[0]) + 35
            wait = {"ph": "X", "tid": 1, "ts": f"{ends - 30}.125", "dur": 35, "args": {}}
            doc.append(wait | {"pid": 2, "name": "AscendCL@aclrtSynchronizeStreamWithTimeout"})
            doc.append(wait | {"pid": 1, "name": "aten::item", "cat": "cpu_op", "dur": 40})
    a = seen(json.dumps(doc))
    assert a.metrics.syncs == a.metrics.launches == 10 and a.diagnosis.cause == "sync-bound"
    assert "The host waited in aten::item (10)" in a.diagnosis.text


def test_collectives_of_ascend():
    """They have a row of their own, with an id as the host's calls have."""
    doc = json.loads(ascend(more=lambda task, at: [task("MatMul", "AI_CORE", at + 10 + 90 * i, 80) for i in range(3)]))
    for number in range(4):
        args = {
            "connection_id": 7_000 + number,
            "model id": 1,
            "data_type": "FP32",
            "alg_type": "RING-RING",
            "count": 9,
        }
        where = {"pid": 3031, "tid": 0, "ts": f"{1_700_000_000_000_300 + 1000 * number}.125", "dur": 600}
        doc.append({"ph": "X", "name": f"hcom_allReduce__{number}_0_1", "args": args} | where)
        call = {"pid": 2, "tid": 1, "ts": f"{1_700_000_000_000_290 + 1000 * number}.125", "dur": 5}
        doc.append({"ph": "X", "name": "Node@launch", "args": {"connection_id": 7_000 + number}} | call)
    a = seen(json.dumps(doc))
    assert a.metrics.kernels == 4 and a.breakdown["communication"] == pytest.approx(600e3)
    assert a.diagnosis.cause == "communication-bound"


# ---------------------------------------------------------------- what it is, if it is none


XLA = [{"ph": "X", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0, "name": "fusion.3", "args": {"hlo_op": "fusion.3"}}, {}]
CHROME = [{"cat": "devtools.timeline", "ph": "X", "name": "RunTask", "pid": 1, "tid": 2, "ts": 1000, "dur": 10}]
TENSORFLOW = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/job:localhost/replica:0/task:0/device:GPU:0"}},
    {"ph": "X", "cat": "Op", "name": "MatMul", "pid": 1, "tid": 0, "ts": 1, "dur": 2, "args": {"op": "MatMul"}},
]
LEGACY = [{"name": "add", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}]
ROCPROF = [
    {"ph": "X", "name": "gemm", "pid": 6, "tid": 0, "ts": 1, "dur": 3, "args": {"BeginNs": "1", "DurationNs": "1"}}
]
VIZTRACER = [{"ph": "X", "cat": "FEE", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
ORT = [{"cat": "Session", "pid": 1, "tid": 1, "dur": 9, "ts": 1, "ph": "X", "name": "model_loading_uri", "args": {}}]
ORT += [
    {
        "cat": "Node",
        "pid": 1,
        "tid": 1,
        "dur": 9,
        "ts": 20,
        "ph": "X",
        "name": "Conv_0",
        "args": {"op_name": "Conv", "provider": "CUDA"},
    }
]
BAZEL = [{"cat": "action processing", "name": "Compiling a.cc", "ph": "X", "ts": 10, "dur": 100, "pid": 1, "tid": 2}]
HOROVOD = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad_0"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1},
]
RAY = [
    {
        "cat": "task::train",
        "name": "train",
        "pid": "10.0.0.1",
        "tid": "worker:1",
        "ts": 1.0,
        "dur": 5.0,
        "ph": "X",
        "args": {},
    }
]
FTRACE = [{"name": "sched", "ph": "X", "cat": "sched", "pid": 1, "tid": 2, "ts": 1, "dur": 5}]
NSYS = b'{"NvtxEvent":{"Type":59,"Text":"x"}}\n{"CudaEvent":{"startNs":"1","endNs":"2","kernel":{"shortName":"5"}}}\n'
SQLITE = b"SQLite format 3\0" + bytes(100)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"displayTimeUnit": "ns", "traceEvents": XLA}, "JAX"),
        ({"traceEvents": CHROME}, "browser"),
        ({"traceEvents": TENSORFLOW}, "TensorFlow"),
        ({"traceEvents": [{"cat": "v8", "ph": "B", "name": "V8.Run", "pid": 1, "tid": 2, "ts": 1000}]}, "browser"),
        ({"traceEvents": ROCPROF}, "rocprof"),
        ({"traceEvents": VIZTRACER}, "VizTracer"),
        (
            {"traceEvents": [{"ph": "X", "cat": "http", "name": "GET", "pid": 1, "tid": 0, "ts": 1, "dur": 3}]},
            "Chrome trace",
        ),
        (LEGACY, "torch.autograd.profiler"),
        ({"schema": "1.0.1", "nodes": []}, "execution trace"),
        ({"rocprofiler-sdk-tool": []}, "rocprofv3"),
        ({"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}, "speedscope"),
        ({"nbformat": 4, "cells": []}, "notebook"),
        ([[-1, 1, 37888, 7], [-1, 1, 512, 7]], "memory timeline"),
        (SQLITE + b"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL", "Nsight Systems"),
        (SQLITE + b"CREATE TABLE rocpd_kernel", "rocprofv3"),
        (b"\n\x0f\x08\x01\x12\x0bhello world\n\x05\x08\x02\x12\x01x" * 9, "Perfetto"),
        (b"\x0a\x9d\xb2\x08\x12\x0e/host:metadata\x22\x93\x07", "XPlane"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\x80\x04\x95", "pickle"),
        (b"PK\x03\x04", "zip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (ORT, "ONNX Runtime"),
        ({"otherData": {"build_id": "1"}, "traceEvents": BAZEL}, "Bazel"),
        (HOROVOD, "Horovod"),
        (RAY, "Ray"),
        ({"traceEvents": FTRACE, "systemTraceEvents": "# tracer: nop"}, "Linux or Android"),
        (b"# tracer: nop\n#\n  <idle>-0 [000] d..3 1.0: sched_switch", "Linux or Android"),
        (NSYS, "Nsight Systems"),
        (
            [{"cat": "checkTypes", "name": "checkVariable", "ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 9}],
            "TypeScript",
        ),
        ([{"cat": "py-spy", "name": "f", "ph": "B", "pid": 1, "tid": 1, "ts": 5, "args": {"line": 3}}], "py-spy"),
        (b"main (train.py:3);step (train.py:9);forward (m.py:1) 120\nmain (train.py:3) 33\n", "py-spy"),
        (b"Time (%),Total Time (ns),Instances,Name\n40.1,1000,3,gemm\n", "CSV"),
        (b'"Kind","Agent_Id","Kernel_Name"\n"KERNEL_DISPATCH",1,"gemm"\n', "CSV"),
        ({"meta": {"interval": 1, "product": "Firefox"}, "libs": [], "threads": []}, "browser"),
        (b"7z\xbc\xaf\x27\x1c", "7z"),
        (b"\x04\x22\x4d\x18", "lz4"),
        ({"nodes": [{"id": 1, "callFrame": {}}], "samples": [1], "timeDeltas": [1]}, "V8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:76\nsize 8706\n", "git lfs pull"),
        (b"\n".join(json.dumps(e).encode() for e in Job().steps(1).events), "an event a line"),
        (Job().steps(1).text().encode("utf-16-le"), "UTF-16"),
        (Job().steps(1).text().encode("utf-16-be"), "UTF-16"),
        (Job().steps(1).text().encode("utf-32"), "UTF-32"),
        ({"schema": "1.0.2-chakra.0.0.4", "rid": 1, "nodes": []}, "execution trace"),
    ],
)
def test_another_file_is_named_in_one_line(data, says):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    for packed in (data, gzip.compress(data)):
        with pytest.raises(trace.TraceError) as error:
            trace.read_bytes(packed)
        assert says in str(error.value) and "\n" not in str(error.value) and "torch.profiler" in str(error.value)


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.qdrep", "a.ncu-rep", "a.pftrace", "a.xplane.pb"])
def test_another_file_is_named_by_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x01\x02\x03")
    with pytest.raises(trace.TraceError, match=r"Nsight|Perfetto|XPlane"):
        trace.read(tmp_path / name)
