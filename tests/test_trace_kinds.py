"""Kinds of foreign traces that were once misread, each with neighbours. Made by hand, so that what is true of each is known."""

import gzip
import json

import pytest
from test_trace_anybody import ADD, CUDA, LAYERS, Job, ms, seen

from grader import trace

STEP = "execute_32_context_0(0)_generation_32"

# ---------------------------------------------------------------- one step, cut out of a longer recording


def split(before, held, streams=(7,), orphans=0):
    """A server's step, for whose first `before` us the GPU was busy with the step before it. held: whether the host waits for that."""
    job = Job()
    start = job.now
    for number in range(orphans):
        ids = {"stream": 7, "correlation": 9000 + number}
        job.event("kernel", ADD, start + 20_000 * number, 19_990, 7, 0, device=0, **ids)
    job.event("cuda_runtime", "cudaLaunchKernel", job.now, 4, correlation=8000)  # on the scheduler's own stream
    job.event("kernel", ADD, job.now + 6, 3, 2, 0, device=0, stream=2, correlation=8000)
    job.now += 20
    job.gpu = start + before
    job.op("aten::embedding", 20)
    if held:
        job.event("cuda_runtime", "cudaStreamSynchronize", job.now, start + before - job.now + 30)
        job.now = start + before + 35
    for number in range(50):
        job.op(length=200)
        job.events[-1]["args"]["stream"] = job.events[-1]["tid"] = streams[number % len(streams)]
    return job.wait().mark(STEP, start)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("before", [3_000, 400_000])
def test_a_step_whose_gpu_was_still_busy_with_one_that_was_not_recorded(before, held):
    a = seen(split(before, held))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(10e6, rel=0.03)
    assert "the GPU did work of a step before" in "; ".join(a.metrics.notes) and a.metrics.gpu_idle < 0.05


def test_nor_where_the_last_of_that_was_recorded():
    a = seen(split(400_000, True, orphans=20))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(10e6, rel=0.2)


def test_a_host_that_is_late_is_not_taken_for_that():
    """It waits for nothing before the GPU begins: the time is its own."""
    job = Job()
    start = job.now
    job.now += 50_000
    for _ in range(50):
        job.op(length=200)
    a = seen(job.wait().mark(STEP, start))
    assert a.metrics.step_ns_traced == pytest.approx(60e6, rel=0.02) and a.diagnosis.cause in (
        "input-bound",
        "host-bound",
    )


# ---------------------------------------------------------------- JSON that only a lenient reader takes

VALUES = [
    "N/A",
    "-nan(ind)",
    "1.#INF",
    "-1.#IND",
    "nan(0x7ff)",
    "Infinity",
    "None",
    "True",
    "+5",
    ".5",
    "5.",
    "007",
    "0x1F",
]
VALUES += ["[1, NaN]", "[1,]", '{"a": 1,}']


@pytest.mark.parametrize("value", VALUES)
def test_values_that_are_no_json_cost_nothing_else(value):
    text = Job().steps().text().replace('"device": 0', f'"device": 0, "est. achieved occupancy %": {value}')
    a = seen(text)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 10 and a.metrics.complete
    assert "40 events are damaged and were read as far as possible" in a.metrics.notes


@pytest.mark.parametrize("path", [r"C:\Users\x\train.py", r"C:\users\x\unit.py", r"D:\new\table.py", r"\\server\x"])
def test_paths_of_windows(path):
    a = seen(Job().steps().text().replace("aten::mm", f"{path}(3): step"))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete and a.metrics.cpu_ops == 10


@pytest.mark.parametrize(("number", "ms"), [("1000.", 10), ("01000", 10), ("+500", 5), ("1e3", 10)])
def test_numbers_that_another_writer_wrote(number, ms):
    job = Job().steps()
    for event in job.events:
        if event["cat"] == "kernel" and number == "+500":
            event["dur"] = 500  # as it is written
    a = seen(job.text().replace(f'"dur": {500 if number == "+500" else 1000}', f'"dur": {number}'))
    assert a.metrics.kernels == 10 and a.metrics.gpu_busy_ns == pytest.approx(ms * 1e6)


WHOLE = Job().steps().text()


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (WHOLE[: WHOLE.rindex("}]") + 1].encode(), "it is cut short"),
        (gzip.compress(WHOLE.encode())[:-8], "they break off"),
        (gzip.compress(WHOLE.encode()) + b"more", "incorrect header check"),
    ],
)
def test_only_what_closes_the_file_is_missing(packed, said):
    a = trace.analyse(trace.read_bytes(packed))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.steps == 3 and said in "; ".join(a.metrics.notes)


def test_but_not_where_any_byte_may_be_another():
    a = trace.analyse(trace.read_bytes(gzip.compress(WHOLE.encode())[:-8] + bytes(8)))
    assert a.diagnosis.cause is None and not a.metrics.complete


# ---------------------------------------------------------------- which marks are the steps


def marked(*, inner=0, around=False):
    job = Job()
    begin = job.now
    for number in range(4):
        start = job.now
        for part in range(inner or 1):
            first = job.now
            for _ in range(10):
                job.op(length=100)
            job.wait()
            if inner:
                job.mark(f"ProfilerStep#{10 * number + part}", first)
        job.mark(f"ProfilerStep#{number + 100}", start)
    return job.mark("ProfilerStep#0", begin) if around else job


@pytest.mark.parametrize("options", [{"inner": 3}, {"inner": 1}, {"around": True}])
def test_steps_of_nested_schedules(options):
    a, kernels = seen(marked(**options)), 10 * options.get("inner", 1)
    assert a.diagnosis.cause == "compute-bound" and (a.metrics.steps, a.metrics.kernels) == (3, kernels)
    assert "some ProfilerStep annotations lie within others" in a.metrics.notes[-1]


@pytest.mark.parametrize("name", ["ProfilerStep#{} of rank 0", "ProfilerStep#{}cpyAsync", "ProfilerStep#{}#1"])
def test_whatever_follows_the_number_of_a_step(name):
    a = seen(Job().steps(4, name=name))
    assert a.metrics.steps == 3 and a.diagnosis.cause == "compute-bound"


def test_steps_that_overlap_in_part_stay_unjudged():
    job = Job().steps()
    job.event("user_annotation", "ProfilerStep#9", job.now - 15_000, 15_500)
    assert "its steps overlap" in seen(job).metrics.reasons


# ts beside epochs of 2026 as floats of 64 bits, or whole microseconds: start and duration are rounded apart
@pytest.mark.parametrize("name", ["ProfilerStep#{}", "decode {}"])
@pytest.mark.parametrize("unit", [0.001, 0.25, 1])
def test_steps_that_touch_after_rounding_do_not_overlap(name, unit):
    job, starts = Job(), []
    for number in range(6):
        start = job.now = job.now + 0.61 * (number > 0)
        for _ in range(10):
            job.op(length=100)
        job.wait()
        job.now += 100.37
        job.mark(name.format(number), start)
        starts.append(start)
    for event, after in zip([e for e in job.events if e["name"].startswith(name[:6])], starts[1:], strict=False):
        event["dur"] = after + 0.9 * unit - event["ts"]
    a = seen(job)
    assert a.metrics.complete and a.metrics.steps == 5 and a.diagnosis.cause == "compute-bound"


# ---------------------------------------------------------------- kernels of one's own


def own_kernel():
    job = Job()
    for number in range(5):
        start = job.now
        job.event("cpu_op", "mine::render", job.now, 20)
        job.launch("render_tiles_v2(float*, int)", 10_000, CUDA[1], stream=20)
        job.now += 30
        for _ in range(10):
            job.op(length=300)
        job.wait().mark(f"ProfilerStep#{number}", start)
    return job


def test_a_kernel_whose_name_tells_nothing_makes_no_sure_verdict():
    d = seen(own_kernel()).diagnosis
    assert d.cause == "memory-bound" and d.confidence <= 0.55 and "names do not tell what they do" in d.text


def test_kernels_of_different_steps_are_not_fused():
    a = seen(own_kernel())
    assert a.diagnosis.what_if.get("memory", a.metrics.step_ns_traced / 1e6) == ms(a)


# ---------------------------------------------------------------- layers are no steps

BLOCK = [
    "aten::conv2d",
    "aten::batch_norm",
    "aten::relu_",
    "aten::conv2d",
    "aten::batch_norm",
    "aten::add_",
    "aten::relu_",
]
RESNET = [op for i in range(16) for op in BLOCK + ["aten::conv2d", "aten::batch_norm"] * (i in (4, 8, 12))]
LLAMA = [
    "aten::rms_norm",
    *["aten::linear"] * 3,
    "aten::scaled_dot_product_attention",
    "aten::linear",
    "aten::add",
    "aten::silu",
]
ONE_PASS = {
    "it ends with something else": [*RESNET, "aten::adaptive_avg_pool2d", "aten::linear"],
    "it begins with something else": ["aten::embedding", *LLAMA * 24, "aten::rms_norm", "aten::linear"],
    "both": ["aten::embedding", *LLAMA * 24, "aten::cross_entropy_loss"],
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ONE_PASS)
def test_layers_of_one_pass_are_no_steps(name, backward):
    job = Job()
    for op in ONE_PASS[name]:
        job.op(op, 50)
    for op in ONE_PASS[name][::-1] * backward:
        job.op(op.replace("aten::", "autograd::engine::evaluate_function: "), 80, backward=True)
    a = seen(job.wait())
    assert a.metrics.steps == 1 and a.metrics.kernels == len(ONE_PASS[name]) * (1 + backward)
    assert "nothing in it repeats" in a.metrics.notes[-1]


@pytest.mark.parametrize("end", [[], ["aten::item"], ["aten::to"]])
@pytest.mark.parametrize("name", ONE_PASS)
def test_passes_that_repeat_are_steps(name, end):
    """Whatever is read or waited for at the end of all."""
    job = Job()
    for _ in range(6):
        for op in ONE_PASS[name]:
            job.op(op, 50)
    for op in end:
        job.op(op, 2)
    a = seen(job.wait())
    assert 4 <= a.metrics.steps <= 6 and a.metrics.kernels == pytest.approx(len(ONE_PASS[name]), abs=0.5)


# ---------------------------------------------------------------- what is no usual step


def prepared(job, count=30):
    """As models are made: some operators for each parameter, and its copy to the GPU."""
    for _ in range(count):
        job.event("cpu_op", "aten::empty", job.now, 5)
        job.event("cpu_op", "aten::uniform_", job.now + 6, 500)
        job.now += 510
        job.op("aten::to", 20)
        job.now += 300
    return job


def first_use(job, name="cudaFree", length=6e6):
    job.event("cuda_runtime", name, job.now, length)
    job.now += length
    return job


def trained(job, steps=6):
    for _ in range(steps):
        for name in LAYERS:
            job.op(name, 200)
        for name in LAYERS:
            job.op(name, 400, backward=True)
        job.op("aten::_foreach_add_", 200).wait()
    return job


def test_steps_are_looked_for_where_the_work_is():
    a = seen(trained(first_use(prepared(Job()))))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 2 * len(LAYERS) + 1
    assert a.metrics.step_ns_traced == pytest.approx(23e6, rel=0.01)


@pytest.mark.parametrize(
    "name", ["cudaFree", "cudaMalloc", "cudaLaunchKernel", "cudaStreamCreateWithFlags", "cuModuleLoadData"]
)
def test_a_single_pass_after_the_start_of_the_gpu(name):
    job = first_use(first_use(Job().op(length=20), "cudaGetDeviceProperties", 2e6), name)
    for layer in LAYERS:
        job.op(layer, 200)
    a = seen(job.wait())
    assert a.diagnosis.cause == "compute-bound" and a.metrics.step_ns_traced == pytest.approx(7.6e6, rel=0.01)
    assert "which started the GPU, is counted as one step" in "; ".join(a.metrics.notes)


def test_a_long_call_beside_which_the_gpu_works_is_no_start():
    job = Job().op(length=40_000)
    job.event("cuda_runtime", "cudaEventRecord", job.now, 20_000)  # its queue is full
    job.now += 20_000
    for layer in LAYERS:
        job.op(layer, 200)
    a = seen(job.wait())
    assert a.metrics.step_ns_traced > 35e6 and a.diagnosis.cause == "compute-bound"


def uneven(*rest, mark="ProfilerStep#{}"):
    """Steps of 10 ms each, after which the host does something else for so many us."""
    job = Job()
    for number, more in enumerate(rest):
        start = job.now
        for _ in range(10):
            job.op()
        job.wait()
        job.now += more
        job.mark(mark.format(number), start)
    return job


@pytest.mark.parametrize("rest", [(3e6, 2e6, 0, 0, 0), (3e6, 2e6, 9e4, 0, 0, 0, 0), (0, 0, 0, 0)])
def test_steps_that_warm_up_are_not_counted(rest):
    warm = max(1, sum(more > 0 for more in rest))
    a = seen(uneven(*rest))
    assert a.diagnosis.cause == "compute-bound" and a.metrics.steps == len(rest) - warm
    assert warm == 1 or f"its first {warm} steps took many times as long" in a.metrics.notes[-1]


@pytest.mark.parametrize("rest", [(0, 0, 0, 2e6, 0, 0), (0, 0, 3e5, 0, 0, 0, 3e5, 0)])
def test_a_rare_step_that_takes_longer_is_told_from_the_others(rest):
    a = seen(uneven(*rest))
    assert a.diagnosis.cause == "host-bound" and a.diagnosis.confidence <= 0.6
    assert "Most of it lies there. The others are compute-bound." in a.diagnosis.text


def test_what_each_step_does_is_not_rare():
    a = seen(uneven(0, 1e5, 2e5, 1e5, 3e5, 1e5))
    assert a.diagnosis.cause == "host-bound" and a.diagnosis.confidence > 0.9 and "lies there" not in a.diagnosis.text


# ---------------------------------------------------------------- times, ids and devices that are not what they seem


def short():
    return Job().steps(4, ops=60, length=5)


def of_gpu(change, job):
    for event in job.events:
        if event["cat"] == "kernel":
            change(event)
    return job


@pytest.mark.parametrize("job", [Job().steps, short])
def test_times_in_nanoseconds_are_noticed(job):
    doc = json.loads(job().text())
    for event in doc["traceEvents"]:
        event |= {key: 1000 * event[key] for key in ("ts", "dur") if key in event}
    a = seen(json.dumps(doc))
    assert (
        a.diagnosis.cause is None and "takes 4 ms in it, so its times are not in microseconds" in a.metrics.reasons[0]
    )


@pytest.mark.parametrize("change", [lambda e: e.pop("dur"), lambda e: e.update(dur=0)])
def test_kernels_without_durations_are_no_idle_gpu(change):
    a = seen(of_gpu(change, Job().steps()))
    assert a.diagnosis.cause is None and "40 of 40 kernels have no duration" in a.metrics.reasons


@pytest.mark.parametrize("every", [3, 7])
def test_nor_are_some_without_one(every):
    job = of_gpu(lambda e: e["args"]["correlation"] % every or e.update(dur=0), Job().steps())
    a = seen(job)
    assert a.diagnosis.cause is None and f"{40 // every} of 40 kernels have no duration" in a.metrics.reasons


def test_but_short_ones_whose_time_was_rounded_to_nothing_are():
    """Times of old releases are whole microseconds."""
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op(length=100).op(length=0)
            job.gpu += 1
        job.wait().mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.complete


@pytest.mark.parametrize("ids", [range(15, 26), range(11, 41, 3)])
def test_ids_that_only_some_have(ids):
    job = Job().steps()
    for event in job.events:
        if event["args"].get("correlation") in ids:
            del event["args"]["correlation"]
    a = seen(job)
    said = f"{len(ids)} of 30 launches have no GPU work recorded"
    assert a.diagnosis.cause is None and said in a.metrics.reasons


@pytest.mark.parametrize("steps", [2, 3])
def test_a_gpu_whose_recording_began_late(steps):
    """As in a second session of the profiler in one process."""
    job = Job().steps(8)
    begin = next(e["ts"] for e in job.events if e["name"] == f"ProfilerStep#{steps}")
    job.events = [e for e in job.events if e["cat"] != "kernel" or e["ts"] >= begin]
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.kernels == 10 and a.metrics.steps == 8 - steps
    assert f"Only {8 - steps} steps without such a loss are counted" in "; ".join(a.metrics.notes)


@pytest.mark.parametrize("late", [150, 200, 400])
def test_a_clock_that_is_late_makes_no_busy_gpu(late):
    """All kernels then seem to have been queued, with short pauses between them."""
    a = seen(of_gpu(lambda e: e.update(ts=e["ts"] + late), short()))
    assert a.diagnosis.cause == "launch-bound" and a.diagnosis.confidence <= 0.6
    assert "pauses between kernels that were queued" in a.diagnosis.text


@pytest.mark.parametrize(("ops", "length", "cause"), [(10, 1000, None), (100, 21, "compute-bound")])
def test_a_host_far_ahead_whose_launches_were_not_recorded(ops, length, cause):
    """By time alone the work of its steps is that of none, or of later ones."""
    job = Job()
    for number in range(6):
        start = job.now
        for _ in range(ops):
            job.op(length=length)
        job.op(length=3 * length, kernel=ADD).mark(f"ProfilerStep#{number}", start)
    job.events = [e for e in job.events if e["cat"] != "cuda_runtime"]
    a = seen(job)
    assert a.diagnosis.cause == cause
    assert cause or "ran after the last step" in "; ".join(a.metrics.reasons)


def test_a_gpu_with_next_to_nothing_to_do_is_not_idle():
    job = Job()
    for number in range(4):
        start = job.now
        for _ in range(10):
            job.op()
        job.ids += 1
        job.event("cuda_runtime", "cudaLaunchKernel", job.now, 4, correlation=job.ids)
        job.event("kernel", ADD, job.now + 9, 5, 7, 1, device=1, stream=7, correlation=job.ids)
        job.wait().mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.diagnosis.cause == "compute-bound" and a.metrics.gpu_busy_ns == pytest.approx(10e6, rel=0.01)
    assert a.metrics.gpu_idle < 0.05 and "next to nothing ran on GPU 1" in a.metrics.notes[-1]


def test_gpus_that_take_turns_wait_for_each_other():
    job = Job().steps()
    of_gpu(lambda e: e["args"].update(device=e["args"]["correlation"] % 2), job)
    a = seen(job)
    assert a.diagnosis.cause == "queue-bound" and "another GPU" in a.diagnosis.text and not a.metrics.notes


# ---------------------------------------------------------------- what others call waiting for data, and copies


def steps(body, calls=CUDA):
    job = Job(calls)
    for number in range(5):
        start = job.now
        body(job)
        for _ in range(10):
            job.op(length=300)
        job.wait().mark(f"ProfilerStep#{number}", start)
    return job


LOADING = [
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataPipe)#MapperIterDataPipe",
    "load batch",
]
LOADING += [
    "data_loading",
    "dataloader",
    "get_batch",
    "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
    "data time",
    "DALIGenericIterator.__next__",
    "next(data_iter)",
    "batch_fetch",
    "data",
    "fetch",
]


LOADING += [
    "get_next_minibatch",
    "decode frames",
    "waiting for data",
    "train_loader",
    "create_batch",
    "shuffle data",
    "tokenize",
    "data_loading_time",
]
FRAMES = [
    "replay_buffer.py(33): sample",
    "my_dataset.py(10): get",
    "pyarrow/parquet/core.py(10): read",
    "openslide/lowlevel.py(9): read_region",
    "numpy/lib/_npyio_impl.py(312): load",
    "<built-in method read of _io.BufferedReader object at 0x7f>",
]


@pytest.mark.parametrize("name", FRAMES)
def test_functions_that_read_what_a_batch_is_made_of(name):
    def body(job):
        job.event("python_function", name, job.now, 20_000, **{"Python id": job.ids + 1})
        job.now += 20_005

    assert seen(steps(body)).diagnosis.cause == "input-bound"


def with_a_mark(name):
    """Each step begins with 20 ms on the host under a mark of this name."""

    def body(job):
        job.event("user_annotation", name, job.now, 20_000)
        job.now += 20_005

    return seen(steps(body))


@pytest.mark.parametrize("name", LOADING)
def test_marks_that_say_that_a_batch_is_made(name):
    a = with_a_mark(name)
    assert a.diagnosis.cause == "input-bound" and a.breakdown["idle_data"] == pytest.approx(20e6, rel=0.02)


@pytest.mark.parametrize("marked", [True, False])
def test_what_precedes_the_first_copy_of_all_is_no_batch(marked):
    """As where a model is loaded and compiled, and the whole recording is one step."""
    job = Job()
    start = job.now
    job.event("cuda_runtime", "cudaStreamIsCapturing", job.now, 3)
    job.now += 60_000
    for number in range(12):
        copied(job, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 1 << 10, 2, "aten::to")
        job.op(f"aten::op{number}", length=300)
    d = seen(job.wait().mark("ProfilerStep#3", start) if marked else job).diagnosis
    assert d.cause == ("input-bound" if marked else "host-bound") and d.confidence <= 0.6


def test_operators_that_were_not_recorded_are_said():
    """With activities=[ProfilerActivity.CUDA]."""
    job = uneven(5e4, 5e4, 5e4, 5e4, 5e4, 5e4)
    job.events = [e for e in job.events if e["cat"] in ("cuda_runtime", "kernel")]
    d = seen(job).diagnosis
    assert d.cause == "host-bound" and "no operators of the CPU" in d.text and d.confidence <= 0.6


def test_a_cause_that_costs_as_much_is_not_close_behind():
    """Memory is taken and given back where the host has just waited: without the wait that would still hold the step."""

    def body(job):
        for _ in range(5):
            job.wait()
            for name, length in (("cudaFree", 600), ("cudaMalloc", 700)):
                job.event("cuda_runtime", name, job.now, length)
                job.now += length + 10
            job.op(length=500)

    d = seen(steps(body)).diagnosis
    assert (d.cause, d.runner_up) == ("host-bound", "sync-bound") and d.confidence <= 0.6
    assert (
        "host-bound: the GPU waits while the host does something that PyTorch does not see (53% of the step)" in d.text
    )
    assert "Close behind, it is sync-bound" in d.text and "cudaMalloc" in d.text


DOING = [
    "get_image_metrics",
    "make_image_grid",
    "make_video",
    "sample_images",
    "get_batch_size",
    "fetch_metrics",
    "generate_text",
    "sampler_step",
    "transform_hidden",
    "wait_for_event",
    "dataloader_state_dict",
    "loading checkpoint",
    "next_state",
]


@pytest.mark.parametrize("name", DOING)
def test_marks_that_only_sound_like_it(name):
    assert with_a_mark(name).diagnosis.cause == "host-bound"


@pytest.mark.parametrize("path", ["/datasets/me/train.py(30): main", "/data/streaming/train.py(5): fit", "data"])
def test_what_holds_the_whole_step_makes_no_batch(path):
    def body(job):
        job.now += 20_000

    job = steps(body)
    job.event("python_function", path, 1000, job.now - 1000, **{"Python id": 1})
    assert seen(job).diagnosis.cause == "host-bound"


HIP = ("cuda_runtime", "hipLaunchKernel", "hipDeviceSynchronize")
XPU = ("xpu_runtime", "urEnqueueKernelLaunch", "urQueueFinish")


def copied(job, call, kind, size, length, op):
    """A copy that holds the host until it has ended."""
    job.ids += 1
    start = max(job.now + 6, job.gpu)
    job.gpu = start + length
    where = {"device": 0, "stream": 7, "correlation": job.ids, "bytes": size}
    job.event("gpu_memcpy", kind, start, length, 7, 0, **where)
    job.event("cpu_op", op, job.now, job.gpu + 8 - job.now)
    job.event(job.calls[0], call, job.now + 2, job.gpu + 4 - job.now, correlation=job.ids)
    job.now = job.gpu + 10


TO_DEVICE = pytest.mark.parametrize(
    ("calls", "call", "kind"),
    [
        (CUDA, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)"),
        (CUDA, "cudaMemcpy", "Memcpy HtoD (Unknown -> Device)"),
        (HIP, "hipMemcpyWithStream", "Memcpy HtoD (Host -> Device)"),
        (HIP, "hipMemcpy", "CopyHostToDevice"),
        (HIP, "hipMemcpyAsync", "CopyHostToDevice"),
        (XPU, "urEnqueueUSMMemcpy", "Memcpy M2D (Memory -> Device)"),
    ],
)


@TO_DEVICE
def test_a_batch_that_is_made_before_it_is_copied(calls, call, kind):
    def body(job):
        job.now += 20_000
        copied(job, call, kind, 1 << 20, 100, "aten::to")

    assert seen(steps(body, calls)).diagnosis.cause == "input-bound"


@TO_DEVICE
def test_a_batch_that_is_converted_by_the_operator_that_copies_it(calls, call, kind):
    """`x.to(device, torch.float32)` converts on the host, and takes more bytes to the GPU."""

    def body(job):
        start = job.now
        job.event("cpu_op", "aten::to", start + 5, 20_000)
        job.now += 20_010
        copied(job, call, kind, 1 << 20, 100, "aten::copy_")
        for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::copy_")):
            job.event("cpu_op", name, start + depth, job.now - start - 2 * depth)
        job.now += 5

    a = seen(steps(body, calls))
    assert a.diagnosis.cause == "transfer-bound" and a.breakdown["idle_transfer"] == pytest.approx(20e6, rel=0.02)
    assert "convert on the GPU" in " ".join(a.diagnosis.what_to_try)


@TO_DEVICE
def test_a_batch_that_is_copied_while_the_host_waits(calls, call, kind):
    a = seen(steps(lambda job: copied(job, call, kind, 300 << 20, 30_000, "aten::to"), calls))
    assert a.diagnosis.cause == "transfer-bound" and a.breakdown["copies"] == pytest.approx(30e6, rel=0.02)
    assert a.metrics.h2d_bytes == 300 << 20


@pytest.mark.parametrize(
    ("calls", "call", "kind"),
    [
        (CUDA, "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)"),
        (CUDA, "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)"),
        (HIP, "hipMemcpyDtoH", "CopyDeviceToHost"),
        (HIP, "hipMemcpyAsync", "CopyDeviceToHost"),
        (XPU, "urEnqueueUSMMemcpy", "Memcpy D2M (Device -> Memory)"),
    ],
)
def test_values_that_the_host_waits_for(calls, call, kind):
    def body(job):
        for _ in range(20):
            for _ in range(3):
                job.op(length=80)
            copied(job, call, kind, 4, 2, "aten::cpu")
            job.now += 250

    a = seen(steps(body, calls))
    assert a.metrics.syncs == 21 and "sync-bound" in (a.diagnosis.cause, a.diagnosis.runner_up)


@pytest.mark.parametrize(
    ("calls", "call", "kind"),
    [
        (HIP, "hipMemcpyAsync", "CopyDeviceToHost"),
        (HIP, "hipMemcpyAsync", "Memcpy DtoH (Device -> Host)"),
        (XPU, "urEnqueueUSMMemcpy", "Memcpy D2M(Device -> Memory)"),
        (XPU, "zeCommandListAppendMemoryCopy", "Memcpy D2M (Device -> Memory)"),
    ],
)
@pytest.mark.parametrize("waits", [True, False])
def test_short_waits_of_copies_that_no_name_tells(calls, call, kind, waits):
    """The call is longer than one that hands a copy over, and the copy lies within it."""

    def body(job):
        for _ in range(60):
            for _ in range(3):
                job.op(length=25)
            if waits:
                copied(job, call, kind, 4, 2, "aten::copy_")
            else:
                job.launch(kind, 2, call)["cat"] = "gpu_memcpy"
                job.now += 20

    a = seen(steps(body, calls))
    assert a.metrics.syncs == 1 + 60 * waits
    assert not waits or "sync" in a.diagnosis.what_if


def test_advice_for_a_step_that_replays_a_graph_already():
    job = Job()
    for number in range(5):
        start = job.now
        for _ in range(40):
            job.op(length=3)
        job.launch(ADD, 3, "cudaGraphLaunch")
        job.now += 20
        job.wait().mark(f"ProfilerStep#{number}", start)
    a = seen(job)
    assert a.diagnosis.cause == "launch-bound" and "A CUDA graph is replayed already" in " ".join(
        a.diagnosis.what_to_try
    )


# ---------------------------------------------------------------- calls that take long


def test_memory_that_is_pinned_in_each_step():
    def body(job):
        job.event("cpu_op", "aten::pin_memory", job.now, 25_000)
        job.event("cuda_runtime", "cudaHostAlloc", job.now, 25_000)
        job.now += 25_000
        copied(job, "cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 1 << 20, 50, "aten::copy_")

    d = seen(steps(body)).diagnosis
    assert d.cause == "host-bound" and "pins memory of its own (cudaHostAlloc 1 times)" in d.text
    assert d.what_to_try[0].startswith("Pin memory once")


@pytest.mark.parametrize("ops", [0, 30])
def test_an_optimizer_that_works_on_the_cpu(ops):
    def body(job):
        job.wait()
        start = job.now
        for _ in range(ops):
            job.event("cpu_op", "aten::mul_", job.now, 950)
            job.now += 1000
        job.now += 30_000 - 1000 * ops
        job.mark("Optimizer.step#DeepSpeedCPUAdam.step", start)

    d = seen(steps(body)).diagnosis
    assert d.cause == "host-bound" and "DeepSpeedCPUAdam" in d.text


def test_the_host_does_no_more_beside_launching_than_is_seen():
    """What follows a wait is not divided by what little is seen elsewhere."""

    def body(job):
        for _ in range(40):
            job.event("cpu_op", "aten::linear", job.now, 700)
            job.now += 700
            job.op(length=10).wait()
        job.now += 3000

    a = seen(steps(body))
    assert a.diagnosis.cause != "host-bound" and 0 < a.breakdown["idle_other"] <= 3.1e6


def test_counts_per_step_are_whole_numbers_with_thousands_apart():
    """A loop that reads 1,040 values in three steps of four, and one more in the others."""

    def body(job):
        for _ in range(1040 + (job.ids % 4 == 0)):
            job.op(length=5).wait()

    d = seen(steps(body)).diagnosis
    assert "waits for the GPU 1,04" in d.text and "." not in d.text.partition("for the GPU ")[2].partition(" times")[0]
