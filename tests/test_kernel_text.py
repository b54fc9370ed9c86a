"""Kernels from texts that anybody may have written, and records of calls that are made up: what the grader launches again."""

import importlib
import json

import pytest
import safetensors.torch
import torch

from grader.sandbox.contract import ContractError
from grader.sandbox.launches import Launches

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from grader.sandbox import kernel_text, relaunch  # noqa: E402

tl = triton.language
NAMES = {"tl": tl, "triton": triton, "math": kernel_text.math, "number": 3, "other": None}
BODY = "def chain(x, out, n, BLOCK: tl.constexpr):\n    {}\n"
RIGHT = [
    "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)",
    "'''A text.'''\n    y = tl.math.exp(tl.load(x)).to(tl.float32).to(x.dtype.element_ty)\n    tl.store(out, y * number)",
    "for i in range(0, n, BLOCK):\n        tl.static_assert(BLOCK > 0, f'{BLOCK}')\n        out += tl.cdiv(n, BLOCK) + triton.cdiv(n, 2)",
    "y = math.sqrt(2 / math.pi) if BLOCK > 1 else -1.0\n    sizes = [y for _ in tl.static_range(2)]\n    y += sizes[0]",
    "print(x.handle.data)\n    if n:\n        print('here')",
    "y, z = triton.language.split(tl.load(x))\n    while n > 1:\n        n //= 2\n        continue\n    assert n",
]
ESCAPES = [
    "import os",
    "__import__('os')",
    "open('/tmp/x')",
    "exec('1')",
    "getattr(tl, 'core')",
    "np.mean(x)",
    "y = x.handle.data.mean()",
    "y = tl.load(x).__class__",
    "tl.core.inspect.os.system('true')",
    "tl.core.warn('x')",
    "tl.core._aggregate(1)",
    "tl.extra.pkgutil.get_data('os', 'x')",
    "triton.runtime.driver.active",
    "triton.compile(x)",
    "'{0.__class__}'.format(x)",
    "y = (lambda: 1)()",
    "def inner():\n        return 1",
    "class A:\n        pass",
    "try:\n        pass\n    except Exception:\n        pass",
    "with tl.load(x) as y:\n        pass",
    "global n",
    "yield x",
    "other.fn(x)",
    "tl.load(x, _semantic=None)",
    "number.real",
    "del x",
    "y = {n: 1}",
    "print(x)\n    print2(x)",
    "f'{x.handle}'",
    "m = getattr(tl, 'core')\n    getattr = 1",
    "m = [getattr for getattr in (getattr,)]",
    "m = [hasattr for hasattr in (tl,)]",
    "__builtins__ = 1",
]


def kernel(text: str, folder, names=NAMES):
    return kernel_text.kernel_of(text, 10, names, [], folder / "kernel.py")


@pytest.mark.parametrize("body", RIGHT)
def test_triton_s_language_is_taken(body, tmp_path):
    assert kernel(BODY.format(body), tmp_path).arg_names == ["x", "out", "n", "BLOCK"]


@pytest.mark.parametrize("body", ESCAPES)
def test_what_reaches_beyond_the_language_is_not(body, tmp_path):
    with pytest.raises(ContractError, match=r"^The kernel `chain` uses |^A kernel uses "):
        kernel(BODY.format(body), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "@print\ndef chain(x):\n    pass\n",
        "def chain(x) -> print('ran'):\n    pass\n",
        "def chain(x: print('ran')):\n    pass\n",
        "def chain(x: 'torch.Tensor', n: int = 3):\n    pass\n",
    ],
)
def test_nothing_runs_where_a_kernel_is_made(text, tmp_path, capsys):
    assert kernel(text, tmp_path).__name__ == "chain"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "def chain(x=print('ran')):\n    pass\n",
        "def chain(*, x=[print('ran')]):\n    pass\n",
        "print('ran')\n",
        "def chain(x):\n    pass\nprint('ran')\n",
        "class chain:\n    print('ran')\n",
        "async def chain(x):\n    print('ran')\n",
        "def chain(",
    ],
)
def test_what_calculates_where_it_is_made_is_no_kernel(text, tmp_path, capsys):
    with pytest.raises(ContractError):
        kernel(text, tmp_path)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("home, name", [("os", "system"), ("triton.runtime.jit", "JITFunction"), ("triton", "compile"), ("numpy", ""), ("triton.language.core", "inspect"), ("builtins", "eval"), ("triton.language.evil", "")])  # fmt: skip
def test_names_that_are_none_of_the_language(home, name):
    with pytest.raises((ContractError, ImportError)):
        kernel_text.found(home, name)


def test_what_the_interpreter_adds_is_hidden(tmp_path, monkeypatch):
    """Python finds the iterable of a comprehension outside of it: here that would be the interpreter's numpy."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    seen = []
    body = "m = [np for np in (np,)]\n    number(m[0])"
    names = NAMES | {"number": seen.append, "__builtins__": kernel_text.math}
    made = kernel("def chain(x):\n    " + body, tmp_path, names)
    assert made.fn.__globals__["__builtins__"] is kernel_text.BUILTINS
    made.rewrite()(1)
    assert seen == [None]


FORMS = """
import math
import triton
import triton.language as tl
from triton.language import load, sum as total
from triton.language.extra import libdevice

SLOPE = tl.constexpr(1.5957691216057308)


@triton.jit
def gelu(h):
    return h * tl.sigmoid(SLOPE * (h + 0.044715 * h * h * h))


def made(factor):
    @triton.jit
    def inner(x, out, n: tl.int32, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.static_assert(BLOCK > 0, f"{BLOCK} is no size")
        h = load(x + i, mask=i < n, other=0.0).to(tl.float32)
        y = gelu(h) * factor + libdevice.tanh(h) + math.pi
        for k in tl.static_range(2):
            y += k
        y = y * tl.math.rsqrt(total(y * y, axis=0) / n + 1e-5)
        tl.store(out + i, y, mask=i < n)

    return inner


chain = made(tl.constexpr(2.0))
"""


def test_a_gpu_gets_the_same_program(tmp_path, monkeypatch):
    """Compiling needs no GPU: as it was written, and of the texts and names that were written down."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "forms_of_kernels.py").write_text(FORMS)
    forms = importlib.import_module("forms_of_kernels")
    x, out = torch.ones(8), torch.ones(8)
    done = Launches([x])
    done.launch(lambda *args, **kwargs: None, forms.chain, x, out, 8, grid=(1,), BLOCK=8)
    done.write(out, tmp_path / "call")
    again = relaunch.Relaunch(tmp_path / "call", torch.device("cpu"), tmp_path)
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    target = GPUTarget("cuda", 90, 32)
    as_it_was, made_again = (
        triton.compile(ASTSource(each, types, {(3,): 8}), target=target).asm["ptx"]
        for each in (forms.chain, next(each for each in again.kernels.values() if each.__name__ == "inner"))
    )
    assert as_it_was == made_again and ".entry inner" in made_again


# ---- records


def copies(x, out):
    middle = torch.zeros_like(x[:, 1:])
    middle.copy_(x[:, :-1])
    wide = torch.full((3, 6), 7.0, dtype=torch.float64)
    wide[:, :3] = middle.t().contiguous().t()
    out.fill_(1)[0] = wide[1, :3].to(torch.bfloat16)
    return torch.ones(2, dtype=torch.int16).new_full((1,), 5), wide.clone()


def test_a_record_is_made_again_on_other_inputs(tmp_path):
    def inputs(seed):
        both = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed))
        return both[seed % 2], torch.empty(5, 3, dtype=torch.bfloat16)  # where they lie differs, as in timed calls

    first, second = inputs(0), inputs(1)
    done = Launches(first)
    with done:
        _, result = copies(*first)
    assert not done.operators
    done.write(result, tmp_path / "call")
    again = relaunch.Relaunch(tmp_path / "call", torch.device("cpu"), tmp_path)
    for given in (first, second):
        out = given[1].clone()
        _, wanted = copies(given[0], out)
        given[1].zero_()
        assert torch.equal(again(*given), wanted) and torch.equal(given[1], out)


def test_a_table_that_was_there_before_is_kept(tmp_path):
    table, x = torch.arange(6.0), torch.ones(6)
    done = Launches([x])
    with done:
        result = torch.empty(6).copy_(table)
    done.write(result, tmp_path / "call")
    again = relaunch.Relaunch(tmp_path / "call", torch.device("cpu"), tmp_path)
    assert torch.equal(again(x + 1), table)


CALL = {
    "kernels": [],
    "storages": [{"input": 0, "before": 0, "bytes": 16, "device": "cpu"}, {"bytes": 8, "device": "cpu"}],
    "steps": [["copy", [1, "float32", 0, [2], [1]], [0, "float32", 0, [2], [1]]]],
    "result": [1, "float32", 0, [2], [1]],
}
OUTSIDE = "larger than its memory"
RECORDS = {
    "no JSON": ("{", "cannot be read"),
    "no call": ("[]", "cannot be read"),
    "beyond its memory": ({"result": [1, "float32", 0, [3], [1]]}, OUTSIDE),
    "beyond an input": ({"result": [0, "float32", 8, [3], [1]]}, OUTSIDE),
    "before its memory": ({"result": [0, "float32", -4, [1], [1]]}, OUTSIDE),
    "backwards": ({"result": [0, "float32", 0, [2], [-1]]}, OUTSIDE),
    "an unknown step": ({"steps": [["save", 1, 2]]}, "has a step"),
    "a kernel that is none": ({"kernels": [{"text": "import os", "line": 1, "names": {}, "unspecialised": []}]}, "no function"),
    "a kernel without its names": (
        {"kernels": [{"text": "def f(x):\n    os.system('true')", "line": 1, "names": {"os": {"module": "os"}}, "unspecialised": []}]},
        "uses `os`",
    ),
    "a text in place of a tensor": ({"result": "x"}, "cannot be read"),
    "a type that is none": ({"result": [1, "load", 0, [2], [1]]}, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", RECORDS)
def test_records_that_are_made_up(what, tmp_path):
    changed, words = RECORDS[what]
    call = changed if isinstance(changed, str) else json.dumps(CALL | changed)
    safetensors.torch.save_file({}, tmp_path / "call", {"call": call})
    x = torch.ones(4)
    with pytest.raises(ContractError, match=words):
        relaunch.Relaunch(tmp_path / "call", torch.device("cpu"), tmp_path)(x)


def test_a_file_that_is_no_record(tmp_path):
    (tmp_path / "call").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(ContractError, match="cannot be read"):
        relaunch.Relaunch(tmp_path / "call", torch.device("cpu"), tmp_path)
