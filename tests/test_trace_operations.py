"""Operations of a trace: look-up of what is around an event, arithmetic, source lines, reasons."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from grader import trace
from grader.trace import nesting, roofline
from grader.trace.nesting import Ancestry, Nesting
from grader.trace.operations import operations
from grader.trace.roofline import Tensor, Work, inputs, work
from tests.loops import BACKWARD, MAIN, PAGEABLE, PINNED, Recording

US = 1000
# torch 2.11 counts neither the CPU's attention nor grouped queries
COUNTS_THE_CPUS_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
SGEMM, ADD = "ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >"
NVJET = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"

# --- what is around an event -------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.integers(0, 25), st.integers(0, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=40
)


class Events(SimpleNamespace):
    """As much of a Trace as nesting needs."""

    def __init__(self, rows):
        rows = sorted(rows, key=lambda row: (row[0], -row[1]))
        start, duration, thread, self.marked = np.array(rows, np.int64).T
        super().__init__(start=start, duration=duration, end=start + duration, thread=thread.astype(np.int32))
        self.marked = self.marked.astype(bool)

    def __len__(self):
        return len(self.start)

    def nesting(self, events):
        return Nesting(self.thread, self.start, self.end, events)

    def innermost(self, event, marked):
        around = [
            other
            for other in range(event)
            if marked[other] and self.thread[other] == self.thread[event] and self.end[other] > self.start[event]
        ]
        return max(around, default=-1)


@given(EVENTS, st.sampled_from([0, 1, 3, nesting.HOPS]))
def test_what_is_around_an_event_is_exact_even_where_events_overlap_in_part(rows, hops):
    t = Events(rows)
    asked, usual = np.arange(len(t)), nesting.HOPS
    try:
        nesting.HOPS = hops
        found = t.nesting(np.flatnonzero(t.marked)).around(asked)
    finally:
        nesting.HOPS = usual
    assert found.tolist() == [t.innermost(event, t.marked) for event in asked]


@given(EVENTS, st.integers(0, 2**40 - 1))
def test_chains_of_operators(rows, flags):
    t = Events(rows)
    calls, ops = np.flatnonzero(~t.marked), np.flatnonzero(t.marked)
    operator = np.append(t.nesting(ops).around(np.arange(len(t))), -1)
    a = Ancestry(operator, calls)
    flag = np.array([bool(flags >> int(op) & 1) for op in a.ops], bool)
    for answer, choose in ((a.nearest(flag), 0), (a.outermost(flag), -1)):
        for position, call in enumerate(calls):
            chain, event = [], call
            while (event := t.innermost(event, t.marked)) >= 0:
                chain.append(event)
            flagged = [event for event in chain if flags >> int(event) & 1]
            found = answer[a.of_call[position]]
            assert (a.ops[found] if found >= 0 else -1) == (flagged[choose] if flagged else -1)
    assert set(a.ops.tolist()) <= set(ops.tolist())


# --- arithmetic --------------------------------------------------------------------------------------------------

SIZE = st.integers(1, 40)


def floats(*shapes):
    return [Tensor(tuple(shape), 4) for shape in shapes]


def counted(function, *shapes, gradients=False):
    """What torch counts, without computing anything."""
    arguments = [torch.empty(shape, device="meta", requires_grad=gradients) for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        result = function(*arguments)
        forward = counter.get_total_flops()
        if gradients:
            result.sum().backward()
    return (forward, counter.get_total_flops() - forward) if gradients else forward


@given(SIZE, SIZE, SIZE, SIZE)
def test_products_are_counted_as_torch_counts_them(b, n, k, m):
    def check(name, function, *shapes):
        assert work(f"aten::{name}", floats(*shapes)).flops == counted(function, *shapes)

    check("mm", torch.mm, (n, k), (k, m))
    check("addmm", torch.addmm, (m,), (n, k), (k, m))
    check("bmm", torch.bmm, (b, n, k), (b, k, m))
    check("baddbmm", torch.baddbmm, (b, n, m), (b, n, k), (b, k, m))
    check("linear", torch.nn.functional.linear, (b, n, k), (m, k), (m,))
    check("matmul", torch.matmul, (b, n, k), (k, m))
    check("matmul", torch.matmul, (2, b, n, k), (1, b, k, m))
    assert work("aten::mv", floats((n, k), (k,))) == Work(2 * n * k, 4 * (n * k + k + n))
    assert work("aten::dot", floats((n,), (n,))) == Work(2 * n, 4 * (2 * n + 1))
    assert work("aten::mm", floats((n, k), (k, m))).bytes == 4 * (n * k + k * m + n * m)
    half = [Tensor((m,), 2), Tensor((n, k), 2), Tensor((k, m), 2)]
    assert work("aten::addmm", half).bytes == 2 * (m + n * k + k * m + n * m)


@given(
    st.integers(1, 3), st.integers(1, 3), SIZE, SIZE, st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_convolutions_are_counted_as_torch_counts_them(d, batch, c_in, c_out, kernel, stride, more, transposed):
    size = kernel + 2 * stride + more
    x = (batch, c_in, *[size] * d)
    weight = ((c_in, c_out) if transposed else (c_out, c_in)) + (kernel,) * d
    name = f"conv{'_transpose' if transposed else ''}{d}d"
    function = getattr(torch.nn.functional, name)
    output = tuple(function(torch.empty(x, device="meta"), torch.empty(weight, device="meta"), stride=stride).shape)
    forward, backward = counted(lambda *a: function(*a, stride=stride), x, weight, gradients=True)
    assert work(f"aten::{name}", floats(x, weight), output).flops == forward
    assert work("aten::convolution_backward", floats(output, x, weight)).flops == backward
    only_weight = work("aten::convolution_backward", floats(output, x, weight), grads=1)
    assert 2 * only_weight.flops == backward
    if not transposed:
        assert work("aten::cudnn_convolution", floats(x, weight)) == Work(None, None), "the output's size is not known"
        elements = np.prod(x) + np.prod(weight) + np.prod(output)
        assert work("aten::conv2d", floats(x, weight), output).bytes == 4 * elements


@given(st.integers(1, 4), st.sampled_from([(4, 4), (4, 2), (8, 1)]), SIZE, SIZE, SIZE, SIZE)
def test_attention_is_counted_as_torch_counts_it(b, heads, s, t, d, e):
    assume(heads[0] == heads[1] or COUNTS_THE_CPUS_ATTENTION)
    q, k, v, gradient = (b, heads[0], s, d), (b, heads[1], t, d), (b, heads[1], t, e), (b, heads[0], s, e)
    name = "aten::_scaled_dot_product_flash_attention"
    assert work(name, floats(q, k, v)).flops == sdpa_flop_count(q, k, v)
    assert work(f"{name}_backward", floats(gradient, q, k, v)).flops == sdpa_backward_flop_count(gradient, q, k, v)
    assert work(name, floats(q, k, v)).bytes == 4 * sum(int(np.prod(shape)) for shape in (q, k, v, gradient))


def test_bytes_of_everything_else():
    big, row = (64, 100), (100,)
    n = 6400
    assert work("aten::add", floats(big, big)) == Work(0, 4 * 3 * n)
    assert work("aten::mul", floats((64, 1), (1, 100))) == Work(0, 4 * (164 + n)), "broadcast"
    assert work("aten::add_", [*floats(big, row), None]) == Work(0, 4 * (2 * n + 100))
    assert work("aten::gt", floats(big, big)) == Work(0, 9 * n)
    assert work("aten::gelu_backward", floats(big, big)) == Work(0, 12 * n)
    assert work("aten::native_layer_norm", [Tensor(big, 2), None, *floats(row, row)]) == Work(0, 4 * n + 800)
    assert work("aten::native_batch_norm", floats((8, 5, 6, 7), *[(5,)] * 4)) == Work(0, 4 * (2 * 1680 + 20))
    assert work("aten::sum", floats(big)) == Work(0, 4 * n)
    assert work("aten::copy_", [Tensor(big, 2), Tensor(big, 4), None]) == Work(0, 6 * n)
    assert work("aten::fill_", [Tensor(big, 2), Tensor((), 4)]) == Work(0, 2 * n)
    assert work("aten::embedding", [Tensor((50000, 8), 4), Tensor((2, 3), 8), None]) == Work(0, 2 * 6 * 8 * 4 + 48)
    assert work("triton_poi_fused_relu_0", floats(big, big)) == Work(0, 8 * n)
    assert work("aten::add", [Tensor(big, None), Tensor(big, 4)]) == Work(0, None), "an unknown type"
    assert work("aten::index_put_", floats(big)) == Work(0, 4 * n)
    table = Tensor((10**6, 100), 4)
    assert work("aten::index_add_", [table, None, Tensor((64,), 8), *floats(big)]) == Work(0, 8 * n + 512), "64 rows"
    assert work("aten::gather", [table, None, Tensor(big, 8)]) == Work(0, 12 * n)
    assert work("aten::index_put_", [Tensor(big, None)]) == Work(0, None)
    assert work("aten::scatter_add_", [*floats(big), None, Tensor(big, 8), *floats(big)]) == Work(0, 16 * n)
    assert work("aten::cumsum", [*floats(big), None]) == Work(0, 8 * n)
    assert work("aten::topk", [*floats(big), None]) == work("aten::_unique2", floats(big)) == Work(0, 4 * n)
    assert work("aten::sort", [*floats(big), None]) == Work(0, 4 * 2 * 12 * n)
    assert work("aten::sort", [Tensor(big, None)]) == Work(0, None)
    assert work("aten::unheard_of", floats(big)) == Work(None, None)


def test_inputs_as_they_are_recorded():
    dims, types = (
        "[[64, 3, 7, 7], [512], [], [], [[2, 3], [4]]]",
        '["float", "c10::BFloat16", "Scalar", "int", "TensorList"]',
    )
    assert inputs(dims, types) == [Tensor((64, 3, 7, 7), 4), Tensor((512,), 2), None, Tensor((), 4), None]
    assert inputs("[[2]]", None) == [Tensor((2,), None)]
    assert inputs("[[1099511627776, 1099511627776]]", '["float"]') == [None]
    for text in ("", "[", "7", '["a"]', "[[1.5]]", "[[-1]]", "[[[[1]]]]", "[" * 5000, "[[1e999]]", "[[null]]"):
        assert all(t is None for t in inputs(text, '["float"]'))
    assert inputs("[[2]]", "[1]") == []


@given(
    st.text(max_size=20),
    st.lists(st.none() | st.builds(Tensor, st.lists(SIZE, max_size=4).map(tuple), st.just(2)), max_size=5),
)
def test_shapes_that_do_not_fit_are_unknown(text, tensors):
    for name in (
        text,
        *(f"aten::{n}" for n in ("mm", "addmm", "bmm", "linear", "matmul", "mv", "dot", "conv2d", "add_")),
    ):
        found = work(name, tensors)
        assert found.flops is None or found.flops >= 0
    for name in ("convolution_backward", "conv_transpose2d", "_scaled_dot_product_flash_attention_backward", "copy_"):
        work(f"aten::{name}", tensors, (1, 2))


def test_nobody_elses_peaks():
    assert roofline.peaks("NVIDIA H200").half == 799e12
    assert roofline.peaks("NVIDIA TITAN X (Pascal)") is roofline.peaks(None) is None


def test_the_ridge():
    assert roofline.bound_by(100, 10, 10, 1.01) == "compute"
    assert roofline.bound_by(100, 10, 10, 0.99) == "memory"


# --- operations of made traces -----------------------------------------------------------------------------------


class Loop(Recording):
    """Three steps of 1 ms; what is added is added to the last two, which are counted."""

    def __init__(self):
        super().__init__()
        for n in range(3):
            self.step(n, n * 1000 * US, (n + 1) * 1000 * US)
        self.free = {}

    def op(self, name, at, duration, tid=MAIN, shapes=None, types=None, **args):
        args |= {"Input Dims": shapes, "Input type": types or ["float"] * len(shapes)} if shapes else {}
        for n in (1, 2):
            self.event("cpu_op", name, (n * 1000 + at) * US, duration * US, tid, **args)
        return self

    def kernel(self, name, at, duration, tid=MAIN, cat="kernel", **args):
        for n in (1, 2):
            launched = (n * 1000 + at) * US
            self.work(cat, name, launched, launched + 50 * US, int(duration * US), tid=tid, **args)
        return self

    def frame(self, name, at, duration, called_from=None, **args):
        args |= {"CallFrom": called_from} if called_from else {}
        for n in (1, 2):
            self.event("python_function", name, (n * 1000 + at) * US, duration * US, MAIN, **args)
        return self

    def operations(self, **options):
        return operations(self.read(), **options)


def test_the_outermost_operator_is_the_operation_and_counts_once():
    loop = Loop().op("aten::linear", 100, 50, shapes=[[64, 512], [256, 512]])
    loop.op("aten::to", 102, 10, shapes=[[64, 512]]).op("aten::copy_", 103, 5, shapes=[[64, 512], [64, 512]])
    loop.kernel(ADD.replace("CUDAFunctor_add", "direct_copy_kernel"), 104, 10)
    loop.op("aten::addmm", 120, 20, shapes=[[256], [64, 512], [512, 256]]).kernel(SGEMM, 125, 90)
    (one,) = loop.operations()
    assert (one.name, one.shapes, one.phase, one.line) == ("aten::linear", "[64, 512] [256, 512]", "", None)
    assert (one.count, one.gpu_ns, one.share) == (1, 100 * US, 1)
    assert one.kernels[0] == SGEMM and len(one.kernels) == 2 and one.tensor_cores is False
    assert one.flops == 2 * 64 * 512 * 256
    assert one.bytes_moved == 4 * (256 + 64 * 512 + 512 * 256 + 64 * 256) + 4 * 2 * 64 * 512
    assert one.intensity == one.flops / one.bytes_moved
    assert one.why.startswith("fp32 on the CUDA cores: 0.186 TFLOP/s of the 51 this H200 reaches")
    assert "8x faster" in one.why


def test_forward_backward_and_lines():
    loop = Loop().frame("train.py(3): step", 50, 800, "train.py:60").frame("nn.Module: Net_0", 90, 200, "train.py:41")
    loop.frame("torch/nn/modules/conv.py(9): forward", 95, 100, "torch/nn/modules/module.py:5")
    sequence = {"Sequence number": 7}
    loop.op("aten::conv2d", 100, 50, shapes=[[8, 3, 9, 9], [4, 3, 3, 3]], **sequence)
    loop.op("aten::cudnn_convolution", 110, 20, shapes=[[8, 3, 9, 9], [4, 3, 3, 3]])
    loop.kernel("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", 115, 30)
    node = "ConvolutionBackward0"
    loop.op(f"autograd::engine::evaluate_function: {node}", 300, 100, BACKWARD, **sequence)
    loop.op(node, 301, 98, BACKWARD, [[8, 4, 7, 7]], **sequence)
    loop.op("aten::convolution_backward", 302, 90, BACKWARD, [[8, 4, 7, 7], [8, 3, 9, 9], [4, 3, 3, 3]])
    loop.kernel("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", 310, 60, BACKWARD)
    back, forward = loop.operations()
    assert (forward.name, forward.line, forward.function, forward.phase) == (
        "aten::conv2d",
        "train.py:41",
        "step",
        "forward",
    )
    assert (back.name, back.line, back.phase) == ("aten::convolution_backward", "train.py:41", "backward")
    once = 2 * (8 * 4 * 7 * 7) * (3 * 3 * 3)
    assert forward.flops == back.flops == once, "the second gradient was not computed: one kernel"
    assert forward.tensor_cores and "TF32" in forward.why


def test_a_step_of_the_optimizer_is_one_operation():
    loop = Loop()
    for n in (1, 2):
        loop.event("user_annotation", "Optimizer.step#AdamW.step", (n * 1000 + 100) * US, 400 * US)
    for n in range(30):
        loop.op("aten::mul_", 110 + 5 * n, 4, shapes=[[n + 1]]).kernel(ADD, 111 + 5 * n, 2)
    (one,) = loop.operations()
    assert (one.name, one.phase, one.count, one.shapes) == ("AdamW.step", "optimizer", 1, "")
    assert one.why == "30 kernels of 2.0 µs each, which cost more to launch than to run"
    assert one.bound == "launch"


def test_compiled_kernels_and_graphs_stand_for_themselves():
    loop = Loop().op("Torch-Compiled Region: 0/0", 100, 200).op("CompiledFunction", 101, 190, **{"Sequence number": 3})
    loop.op("## Call CompiledFxGraph fabc ##", 102, 180).kernel(
        "triton_poi_fused_relu_0", 110, 40, call="cuLaunchKernel"
    )
    loop.op("aten::mm", 200, 20, shapes=[[8, 8], [8, 8]]).kernel(NVJET, 210, 30)
    loop.op("aten::whatever", 500, 50)
    for n in (1, 2):
        at = (n * 1000 + 510) * US
        loop.event("cuda_runtime", "cudaGraphLaunch", at, 5, correlation=900 + n)
        for k in range(2):
            args = {"correlation": 900 + n, "device": 0, "stream": 7}
            loop.event("kernel", SGEMM, at + (100 + k * 20) * US, 5 * US, 7, **args)
    fused, mm, graph = loop.operations()
    assert (fused.name, fused.phase, fused.count, fused.bound) == ("triton_poi_fused_relu_0", "forward", 1, "memory")
    assert (mm.name, mm.phase) == ("aten::mm", "forward")
    assert (graph.name, graph.count, graph.flops, graph.bound) == (SGEMM, 2, None, None)


def test_groups_fall_apart_by_line_and_the_order_is_that_of_the_parts():
    loop = Loop().frame("train.py(3): step", 50, 800, "train.py:60")
    for n in range(6):  # together the most, each less than the other operation
        loop.frame("<built-in function mul>", 100 + 20 * n, 10, f"train.py:1{n}")
        loop.op("aten::mul", 101 + 20 * n, 5, shapes=[[1000]]).kernel(ADD, 102 + 20 * n, 20)
    loop.op("aten::div", 400, 5, shapes=[[1000]]).kernel(ADD, 401, 50)
    found = loop.operations()
    assert [(o.name, o.line, o.gpu_ns) for o in found] == [
        ("aten::div", "train.py:3", 50 * US),
        *(("aten::mul", f"train.py:1{n}", 20 * US) for n in range(6)),
    ]
    assert sum(o.share for o in found) == pytest.approx(1)
    assert [o.name for o in loop.operations(top=1)] == ["aten::div"]


def test_lines_of_older_traces_and_of_libraries():
    loop = Loop().frame("/home/me/lib/model.py(30): forward", 50, 800)
    loop.frame("/opt/venv/lib/python3.12/site-packages/timm/layers.py(7): f", 60, 700)
    loop.frame("contextlib.py(75): inner", 70, 600).frame("torch/nn/functional.py(8): relu", 80, 500)
    loop.frame("<built-in method relu of type object at 0x7f>", 90, 400)
    (one,) = loop.op("aten::relu", 100, 50, shapes=[[1000]]).kernel(ADD, 110, 40).operations()
    assert (one.line, one.function) == ("/home/me/lib/model.py:30", "forward")


@pytest.mark.parametrize(
    "device, says",
    [
        ("Tesla T4", "of the 8.1 of this Tesla T4's data sheet; tensor cores would do it about 8x faster, in fp16 with a Grad"),
        ("Tesla P100-PCIE-16GB", "of the 9.3 of this Tesla P100-PCIE-16GB's data sheet; this GPU has no tensor cores"),
        ("NVIDIA GeForce RTX 3080", "of the 29.8 of this GeForce RTX 3080's data sheet; tensor cores would do it about 2x faster, in bf16"),
        ("NVIDIA L40S", "of the 91.6 of this L40S's data sheet; tensor cores would do it about 2x faster, in TF32 already"),
    ],
)  # fmt: skip
def test_a_reason_is_one_of_this_device(device, says):
    loop = Loop().op("aten::mm", 100, 50, shapes=[[512, 512], [512, 512]]).kernel(SGEMM, 125, 90)
    document = loop.document(deviceProperties=[{"id": 0, "name": device}])
    (one,) = operations(trace.read_bytes(json.dumps(document).encode()))
    assert says in one.why
    assert (one.bound is None) == (device == "NVIDIA GeForce RTX 3080")  # of which there are two, with different memory


def test_python_ids_rather_than_times_and_no_circle():
    loop = (
        Loop().frame("train.py(1): a", 10, 500, **{"Python id": 1}).frame("other.py(1): b", 20, 5, **{"Python id": 2})
    )
    loop.frame("torch/x.py(8): c", 100, 50, **{"Python id": 3, "Python parent id": 2})
    (one,) = loop.op("aten::relu", 110, 10, shapes=[[1000]]).kernel(ADD, 111, 40).operations()
    assert one.line == "other.py:1"
    loop = Loop()
    for number, parent in ((1, 2), (2, 1)):
        loop.frame("torch/x.py(8): c", 100 + number, 50, **{"Python id": number, "Python parent id": parent})
    (one,) = loop.op("aten::relu", 110, 10, shapes=[[1000]]).kernel(ADD, 111, 40).operations()
    assert one.line is None


def test_reasons():
    def why(op, kernel, duration, shapes, types=None, **args):
        loop = Loop().op(op, 100, 50, shapes=shapes, types=types).kernel(kernel, 110, duration, **args)
        (one,) = loop.operations()
        return one.bound, one.why

    half = ["c10::BFloat16"] * 2
    bound, text = why("aten::mm", NVJET, 172, [[4096, 4096], [4096, 4096]], half)
    assert bound == "compute" and text == "half precision on tensor cores: 799 TFLOP/s of the 799 this H200 reaches"
    bound, text = why("aten::mm", NVJET, 600, [[4096, 4096], [4096, 4097]], half)
    assert bound == "compute" and "4097 is no multiple of 8" in text
    bound, text = why("aten::mm", NVJET, 100, [[65536, 16], [16, 1024]], half)
    assert bound == "memory" and "too little arithmetic" in text
    bound, text = why("aten::add", ADD, 300, [[100_000_000], [100_000_000]])
    assert bound == "memory" and text.startswith("moves 1.2 GB per step at 4 TB/s, bound by memory")
    bound, text = why("aten::add", ADD, 3000, [[100_000_000], [100_000_000]])
    assert bound == "memory" and "of the 4.25 TB/s" in text
    bound, text = why("aten::to", PAGEABLE, 300, [[1]], cat="gpu_memcpy", bytes=3_000_000)
    assert bound is None and "3 MB per step at 10 GB/s" in text and "Pinned memory is faster" in text
    bound, text = why("aten::to", PINNED, 300, [[1]], cat="gpu_memcpy", bytes=3_000_000)
    assert text == "copies 3 MB per step at 10 GB/s"
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert "other GPUs" in why("c10d::allreduce_", nccl, 300, [[1]])[1]


def test_lists_of_tensors_are_not_counted_and_that_is_said():
    """A trace has the shapes of short lists, the types of none; a tensor beside them is not all that is moved."""
    adamw = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(...)"
    loop = Loop().op("aten::_fused_adamw_", 100, 50, shapes=[[], [], []], types=["TensorList", "TensorList", "float"])
    loop.kernel(adamw, 110, 300)
    shapes, types = [[[64, 512], [64, 512]], []], ["TensorList", "Scalar"]
    loop.op("aten::cat", 500, 50, shapes=shapes, types=types).kernel(ADD, 510, 90)
    for one in loop.operations():
        assert one.bytes_moved is None and one.bound == "memory"
        assert "in lists of tensors aren't counted" in one.why
    (one,) = Loop().op("aten::add", 100, 50, shapes=[[1 << 20], [1 << 20]]).kernel(ADD, 110, 90).operations()
    assert one.bytes_moved and "lists" not in one.why


def test_without_what_operations_need_there_are_none():
    assert operations(Recording().read()) == []
    assert operations(Recording().step(1, 0, 10).step(2, 10, 20).read(expect_gpu=False)) == []
    assert Loop().kernel(SGEMM, 10, 5).operations(top=0) == []
    (one,) = Loop().kernel(SGEMM, 10, 5).operations()
    assert (one.name, one.flops, one.bytes_moved, one.line, one.tensor_cores) == (SGEMM, None, None, None, False)


NAMES = (
    "aten::mm",
    "aten::linear",
    "aten::convolution_backward",
    "ConvolutionBackward0",
    "autograd::engine::evaluate_function: X",
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cpu_op", "python_function", "kernel", "cuda_runtime", "user_annotation"]),
            st.sampled_from(
                [*NAMES, SGEMM, ADD, "Optimizer.step#", "a.py(1): f", "torch/a.py(1): g", "cudaGraphLaunch"]
            ),
            st.integers(0, 40),
            st.integers(0, 40),
            st.integers(1, 2),
            st.fixed_dictionaries(
                {"correlation": st.integers(1, 4), "device": st.just(0), "stream": st.just(0)},
                optional={
                    "Input Dims": st.sampled_from([[[2, 3], [3, 4]], [[1, 2, 3, 4], [1], [[2]]], "no", 7, [["x"]]]),
                    "Input type": st.sampled_from([["float", "float"], ["Scalar"], {}, "float"]),
                    "Sequence number": st.integers(-1, 3) | st.just(2**60),
                    "Python id": st.integers(-1, 3),
                    "Python parent id": st.integers(-1, 3),
                    "CallFrom": st.sampled_from(["b.py:2", "torch/b.py:3", "", ":", "nonsense"]),
                },
            ),
        ),
        max_size=25,
    )
)
def test_any_trace_is_answered(rows):
    r = Recording().step(0, 0, 1).step(1, 1, 100)
    for cat, name, start, duration, tid, args in rows:
        r.event(cat, name, start, duration, tid, **args)
    found = operations(r.read())
    json.dumps([o.__dict__ for o in found], allow_nan=False)
    assert [o.gpu_ns for o in found] == sorted((o.gpu_ns for o in found), reverse=True)


# --- real traces of the CPU, each of whose products stands for a kernel of the GPU -------------------------------

TRAIN = """
import sys, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.second = nn.Conv2d(16, 24, 3)
        self.up = nn.ConvTranspose2d(24, 8, 2, stride=2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = self.up(self.second(x))
        x = x.flatten(2).transpose(1, 2)
        q = self.head.weight.new_ones(x.shape[0], 2, x.shape[1], 4) * x.mean()
        x = x + nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).flatten(2).mean(-1)[:, :8, None].mean()
        x = x @ x.transpose(1, 2) @ x
        return self.head(x).mean(1)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(4, 3, 20, 20), torch.tensor([0, 1, 2, 3])

def step():
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step()
with FlopCounterMode(display=False) as counter:
    step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True,
             schedule=schedule(wait=0, warmup=1, active=3, repeat=1)) as profiler:
    for _ in range(4):
        step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
print(counter.get_total_flops())
"""
# What computes on the CPU; on a GPU these, or what is within them, would launch the kernels.
LEAVES = {
    *("aten::mkldnn_convolution", "aten::convolution_backward", "aten::addmm", "aten::mm", "aten::bmm"),
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}


def as_if_on_a_gpu(document):
    """One kernel for each product, two for the two gradients of a convolution, as long as a tenth of the operator."""
    number = 0
    for e in list(document["traceEvents"]):
        transposed = e.get("name") == "aten::_convolution" and e["args"]["Concrete Inputs"][6] == "True"
        if e.get("name") not in LEAVES and not transposed:
            continue
        gradients = e["name"].endswith("convolution_backward") and "[True, True" in e["args"]["Concrete Inputs"][-1]
        for _ in range(1 + gradients):
            number += 1
            call = {"ph": "X", "pid": e["pid"], "tid": e["tid"], "ts": e["ts"] + 0.002, "dur": 0.001}
            args = {"correlation": number, "device": 0, "stream": 7}
            document["traceEvents"] += [
                {**call, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": number}},
                {**call, "cat": "kernel", "name": SGEMM, "tid": 7, "dur": e["dur"] / 10, "args": args},
            ]
    document["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    return json.dumps(document).encode()


@pytest.mark.slow
def test_a_real_step_has_the_operations_that_torch_counts(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    path = tmp_path / "trace.json"
    command = [sys.executable, tmp_path / "train.py", path]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    t = trace.read_bytes(as_if_on_a_gpu(json.loads(path.read_text())))
    found = operations(t, top=100)
    counts = [o.flops for o in found if COUNTS_THE_CPUS_ATTENTION or "attention" not in o.name]
    assert sum(counts) == int(ran.stdout.split()[-1])
    source = ["", *TRAIN.split("\n")]
    lines = {(o.name, o.phase): source[int(o.line.removeprefix("train.py:"))].strip() for o in found if o.line}
    assert {o.phase for o in found} == {"forward", "backward"} and all(o.line for o in found)
    # torch 2.11 records no line of a call, only where the function begins
    begins = None if (t.called_from >= 0).any() else "def forward(self, x):"
    assert lines["aten::conv_transpose2d", "forward"] == (begins or "x = self.up(self.second(x))")
    assert lines["aten::linear", "forward"] == (begins or "return self.head(x).mean(1)")
    own = {o.line for o in found if o.name == "aten::matmul" and o.phase == "forward"}
    assert [source[int(line.removeprefix("train.py:"))].strip() for line in own] == ["def forward(self, x):"]
    first = next(o for o in found if o.name == "aten::conv2d" and o.shapes.startswith("[4, 3, 20, 20]"))
    assert source[int(first.line.removeprefix("train.py:"))].strip() == (begins or "x = torch.relu(self.first(x))")
    assert all(o.count == pytest.approx(round(o.count)) and o.tensor_cores is False for o in found)


@pytest.mark.parametrize(
    ("dims", "numbers"),
    [
        ("[[[3, 4], [5]], [], []]", 17),  # a list of tensors, and scalars
        ("[[3, 4], [100]]", 100),
        ("[]", 0),
        ("[[], [[]]]", 0),
        ("[[[4, -1], [5]]]", 5),
        ("[[[1099511627776, 1099511627776]]]", 0),
        ("[[3, [4]]]", 0),
        ('{"3": 4}', 0),
        (f"[{[1] * 65}, [3, 4]]", 12),
    ],
)
def test_the_largest_input(dims, numbers):
    assert roofline.largest_input(dims) == numbers


def test_a_shape_of_more_sizes_than_a_tensor_has():
    """Their product takes as long as the square of their number: 90 s for 60,000 in a file of 1.2 MB, read for each such operator."""
    assert inputs(f"[{[1] * 65}, {[1] * 64}]", None) == [None, Tensor((1,) * 64, None)]
