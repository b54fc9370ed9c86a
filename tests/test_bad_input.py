"""Whatever a submission does, its grade ends: with a message that says what happened, where, and what to do, with no
points for what was not measured, and with nothing left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from helpers import (
    GPT,
    IS_ROOT,
    LAB,
    LIMITS,
    MARKER,
    PLAN,
    eventually,
    first,
    grade_cells,
    inhabitants,
    loop,
    measured_score,
    running,
    slow_starter,
    submission,
    workspaces,
)

from grader import labs, machine, trace
from grader.errors import UserError
from grader.grade import grade
from grader.grading.failure import UNFIT, explain
from grader.look import peek
from grader.measure import blocks
from grader.result import FAIL, INCONCLUSIVE, Result
from grader.sandbox import folders
from grader.sandbox.child_error import ChildError
from grader.sandbox.setting import Limits
from grader.submission import MAGIC, Submission, from_cells, read_notebook, solution

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def short_burns(monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)


def failed(result: Result) -> str:
    """The message of a grade that ended early, which gives no points."""
    assert result.fatal and measured_score(result) == 0
    assert result.check("throughput").status == FAIL
    json.dumps(result.to_dict(), allow_nan=False)
    return result.fatal


# ---------------------------------------------------------------- notebooks


def notebook(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "lab.ipynb"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def code(source: object) -> dict:
    return {"cells": [{"cell_type": "code", "source": source}]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"{", "JSON is broken"),
        (b"\x00\xff\xfe PNG \x89", "JSON is broken"),
        (b"[" * 200_000, "JSON is broken"),
        (b'{"cells": ' + b"[" * 100_000, "JSON is broken"),
        (b"9" * 10_000, "JSON is broken"),
        ([], "no list of cells"),
        ("text", "no list of cells"),
        (None, "no list of cells"),
        ({}, "no list of cells"),
        ({"cells": {}}, "no list of cells"),
        ({"worksheets": [{"cells": []}]}, "has no submission"),
        (code(3), "source of a cell is not text"),
        (code({"a": "b"}), "source of a cell is not text"),
        (code(["a", 3]), "source of a cell is not text"),
        (code(None), "source of a cell is not text"),
        ({"cells": []}, "has no submission"),
        ({"cells": [{"cell_type": "code", "source": "%%time\n%%submission\nx"}]}, "must be the first line of its cell"),
        ({"cells": ["text", 3, None, {"cell_type": ["code"]}, {}]}, "has no submission"),
        (code("def train(job): yield 1"), "no cell begins with %%submission"),
        (code("# first\n%%submission\nx = 1"), "no cell begins with %%submission"),
    ],
)
def test_broken_notebook(tmp_path, content, says):
    with pytest.raises(UserError, match=says) as caught:
        read_notebook(notebook(tmp_path, content))
    assert "lab.ipynb" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("above", ["", "\n", "  \n", "\t\n\n \n"])
def test_blank_lines_above_the_magic_do_not_matter(tmp_path, above):
    found = read_notebook(notebook(tmp_path, code(f"{above}%%submission\n\n    # a comment\nx = 1")))
    assert found.source == "# submission cell 1\n\n    # a comment\nx = 1\n\n"


def test_unreadable_notebook(tmp_path):
    for path, says in ((tmp_path / "none.ipynb", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=f"cannot be read: {says}.*Give the path of a notebook"):
            read_notebook(path)
    os.mkfifo(tmp_path / "pipe.ipynb")
    with pytest.raises(UserError, match="is not a plain file"):
        read_notebook(tmp_path / "pipe.ipynb")  # and does not wait for a writer
    locked = notebook(tmp_path, {"cells": []})
    locked.chmod(0)
    # root can read it all the same: then it is a notebook like others
    with pytest.raises(UserError, match=r"cannot be read: Permission denied|has no submission"):
        read_notebook(locked)


def test_notebook_that_is_too_large(tmp_path):
    path = notebook(tmp_path, {"cells": []})
    os.truncate(path, 1 << 30)
    with pytest.raises(UserError, match=r"larger than 64 MB\. Clear its outputs"):
        read_notebook(path)
    with pytest.raises(UserError, match="has more than 1 MB of code"):
        submission("x = '" + "a" * (2 << 20) + "'")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ndef train(job:\n    yield", r"submission cell 2, line 3: syntax error: .*: 'def train\(job:'"),
        (
            "x = 1\n%timeit x",
            r"submission cell 2, line 3: .*'%timeit x'\. IPython magics, shell commands and help cannot",
        ),
        ("!ls", r"submission cell 2, line 2: .*'!ls'\. IPython magics, shell commands and help cannot"),
        ("x = 1\nx.real?", r"submission cell 2, line 3: .*'x.real\?'\. IPython magics, shell commands and help cannot"),
        (
            "x = 1\ndef train(job):\nyield",
            r"submission cell 2, line 4: .* after function definition on line 3: 'yield'",
        ),
        ("x = 1\0", "submission cell 2 cannot be read as Python|submission cell 2, line"),
        ("x = '\ud800'", "submission cell 2 cannot be read as Python"),
        ("(" * 5000, "submission cell 2"),
        (
            "x = " + "-" * 100_000 + "1",
            "submission cell 2 cannot be read as Python: (MemoryError|maximum|Parser stack overflowed)",
        ),
    ],
)
def test_cell_that_is_no_python(text, says):
    with pytest.raises(UserError, match=says):
        submission("y = 2", text)


def test_a_future_import_in_a_later_cell():
    """Each cell is good Python, and one module of both was not."""
    both = from_cells(
        [
            "%%submission\nx: int = 1",
            "%%submission\nfrom __future__ import annotations; y: Later = 2\nz = 3",
        ]
    )
    names: dict[str, object] = {}
    exec(compile(both.source, "module", "exec"), names)
    assert (names["x"], names["y"], names["z"]) == (1, 2, 3)
    lines = both.source.split("\n")
    assert [lines[first - 1] for first in both.starts] == ["x: int = 1", "pass; y: Later = 2"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-7", "unknown"])
def test_a_cell_that_names_an_encoding(encoding):
    """A notebook's text has none any more, and what is judged must be what runs."""
    cell = (
        f"# -*- coding: {encoding} -*-\nimport torch\n\ndef train(job):\n    yield torch.tensor(float(len('+AGE-ü')))\n"
    )
    with running(from_cells([f"{MAGIC}\n{cell}"]).source) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [6.0]


def test_a_future_import_behind_letters_of_more_than_a_byte():
    found = from_cells(['%%submission\n"für später"; from __future__ import annotations; y: Later = 2'])
    assert found.source.split("\n")[2] == "pass; y: Later = 2"


@pytest.mark.parametrize(
    ("imports", "left"),
    [
        ("from __future__ import (\n    annotations,\n    division,\n); x = 1", ["", "", "", "pass; x = 1"]),
        ("from __future__ import annotations, \\\n    division", ["", "pass"]),
        ("from __future__ import annotations; from __future__ import division; x = 1", ["pass; x = 1"]),
    ],
)
def test_future_imports_in_other_forms(imports, left):
    found = from_cells([f"{MAGIC}\nx = 0", f"{MAGIC}\n{imports}"])
    compile(found.source, "module", "exec")
    assert found.source.split("\n") == [
        "from __future__ import annotations, division", "# submission cell 1", "x = 0", "", "# submission cell 2", *left, "", "",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_whatever_ends_a_line(end):
    """Python takes all three; the parts of a module have to as well, at home as in class."""
    cells = [
        ["# mine", 'lab.predict(cause="input-bound", gain=2)'],
        ["", "%%submission", "# mine", "from __future__ import annotations", "x = 1"],
    ]
    found = from_cells([end.join(lines) for lines in cells])
    assert found.source == "from __future__ import annotations\n# submission cell 1\n# mine\npass\nx = 1\n\n"
    assert dict(found.prediction) == {"cause": "input-bound", "gain": 2}


@pytest.mark.parametrize(
    ("cells", "counts"),
    [
        (['lab.predict(cause="a", gain=2)', 'lab.predict(cause="b", gain=3)'], {"cause": "a", "gain": 2}),
        (['lab.predict(cause="a")', 'lab.predict(cause="b", gain=3)'], {"cause": "b", "gain": 3}),
        (['lab.predict(cause="b", gain=3)', "model.predict(gain=7)"], {"cause": "b", "gain": 3}),
        (['lab.predict(cause="a")', "..."], {"cause": "a"}),
        (['lab.predict(cause="a", device="cpu")', 'lab.predict(cause="b", gain=3)'], {"cause": "b", "gain": 3}),
        (['lab.predict(cause="b", gain=3, device="cpu")'], {"cause": "b", "gain": 3, "device": "cpu"}),
        (['lab.predict(cause="b", gain=3, device=["cpu"])'], {"cause": "b", "gain": 3}),
    ],
)
def test_the_first_complete_prediction_counts(cells, counts):
    """As `lab.predict` locks it in a notebook."""
    found = from_cells(["%%submission\nx = 1", *cells])
    assert dict(found.prediction or ()) == counts


# ---------------------------------------------------------------- the contract

YIELDS = "submission cell 1, line 6"


@pytest.mark.parametrize(
    ("source", "says", "where"),
    [
        ("x = 1", r"defines no function `train\(job\)`", ""),
        ("train = 3", "`train` must be a function, but it is an int", ""),
        ("\ndef train(job):\n    return 1", "not a generator. It must `yield loss.detach", "submission cell 1, line 3"),
        ("class train:\n    def __init__(self, job): pass", "is not a generator.*it returned a train", ""),
        ("import torch\ndef train(job):\n    if 0: yield", "stopped after 0 steps. It must go on", ""),
        ("import torch\ndef train(job):\n    for i in range(1): yield torch.ones(())", "stopped after 1 step. It", ""),
        ("import torch\ndef train(job):\n    for i in range(7): yield torch.ones(())", "stopped after 7 steps", ""),
        (loop("\n\nyield 1.5"), "Step 1 yielded a float. Yield the loss as a tensor: `yield loss.detach", YIELDS),
        (loop("\n\nyield 1"), "Step 1 yielded an int", YIELDS),
        (loop("\n\nyield [torch.ones(())]"), "Step 1 yielded a list", YIELDS),
        (loop("\n\nyield"), "Step 1 yielded None", YIELDS),
        (loop("\n\nyield torch.nn.Parameter(torch.ones(()))"), "Step 1 yielded a Parameter", YIELDS),
        (loop("\n\nyield torch.ones(1)"), r"Step 1 yielded a tensor of shape \(1,\).*Yield one number", YIELDS),
        (loop("\n\nyield torch.ones((), dtype=torch.int64)"), "type torch.int64. Yield one number", YIELDS),
        (loop("\n\nyield torch.ones((), device='meta')"), "Step 1 yielded a tensor on the device meta", YIELDS),
        (loop("\n\nyield torch.ones((), dtype=torch.float64) / 0"), "Step 1 yielded the loss inf, so training div", ""),
        (loop("for _ in range(3): yield torch.ones(())\nyield torch.tensor(float('nan'))"), "Step 4 .* loss nan", ""),
    ],
)
def test_broken_contract(source, says, where):
    message = failed(grade_cells(source))
    assert re.search(says, message), message
    assert where in message


RETURNS_ONE = """
import functools, torch
{loop}

def counted(train):
    {wraps}
    def wrapper(job):
        return train(job)
    return wrapper

@counted
def train(job):
    yield from steps(job)
"""


@pytest.mark.parametrize("wraps", ["@functools.wraps(train)", ""])
def test_a_function_that_returns_a_generator_is_one(wraps):
    """As a decorated train(job) does; it was told that it is not a generator."""
    source = RETURNS_ONE.format(loop=LAB.starter.replace("def train(job):", "def steps(job):"), wraps=wraps)
    with running(source) as child:
        child.load()
        child.start(1)
        assert len(child.run(2)[1]) == 2


LOOPS = {
    "a lambda": "train = lambda job: steps(job)",
    "an object with __iter__": """
class Trainer:
    def __init__(self, job):
        self.job = job

    def __iter__(self):
        yield from steps(self.job)

train = Trainer
""",
    "a decorator that makes the loop": """
import functools

def looped(setup):
    @functools.wraps(setup)
    def train(job):
        setup(job)
        yield from steps(job)
    return train

@looped
def train(job):
    job.ready = True
""",
    "a partial, wrapped": """
import functools
bound = functools.partial(steps)

@functools.wraps(bound)
def train(job):
    return bound(job)
""",
    "a method": """
class Trainer:
    def train(self, job):
        yield from steps(job)

train = Trainer().train
""",
    "a script that reads its command line": """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=1)
options = parser.parse_args()

def train(job):
    yield from steps(job)
""",
}


@pytest.mark.parametrize("form", LOOPS)
def test_loops_of_other_forms(form):
    """Each was refused, as no generator or by what the process was started with."""
    with running(LAB.starter.replace("def train(job):", "def steps(job):") + "\n" + LOOPS[form]) as child:
        child.load()
        child.start(1)
        assert len(child.run(2)[1]) == 2


def test_a_function_that_hands_nothing_over_is_not_called():
    """It may train for hours."""
    with (
        running("def train(job):\n    while True:\n        pass\n") as child,
        pytest.raises(ChildError, match="not a generator"),
    ):
        child.load()


# ---------------------------------------------------------------- errors in the learner's code


def test_error_in_a_step():
    helper = "def check(step):\n    if step == 7:\n        raise ValueError('seven is too much')\n"
    source = LAB.starter.replace(
        "for tokens, targets in loader:", "for step, (tokens, targets) in enumerate(loader, 1):"
    )
    result = grade_cells(helper, source.replace("yield loss", "check(step)\n        yield loss"))
    message = failed(result)
    assert "raised ValueError in its loop: seven is too much" in message
    assert "submission cell 1, line 4" in message
    # both of the learner's frames, by their places in the notebook, and no others
    assert re.findall(r"  (.*), in (\w+)\n", result.output) == [
        ("submission cell 2, line 18", "train"),
        ("submission cell 1, line 4", "check"),
    ]
    assert "check(step)" in result.output and "child.py" not in result.output


def test_traceback_stands_beside_what_was_printed():
    result = grade_cells(loop("print('hello')\n1 / 0"))
    assert "ZeroDivisionError" in failed(result)
    assert "hello" in result.output and "1 / 0" in result.output
    seen = peek(submission(loop("print('hello')\n1 / 0")), LAB, device="cpu", limits=LIMITS)
    assert "ZeroDivisionError" in seen.message and "hello" in seen.output and "1 / 0" in seen.output


def test_places_in_what_others_say():
    """torch.compile puts the traceback of what it compiled into its message, as its places in a file that nobody has."""
    message = failed(grade_cells("x = 1", loop("raise ValueError(f'in File \"{__file__}\", line 2, in x')")))
    assert "in submission cell 1, line 2, in x (submission cell 2, line 6)" in message


def test_an_error_in_a_thread():
    """It ends the thread only, and what the thread printed has the learner's frames alone, with their places."""
    feed = "import threading\ndef feed():\n    return nothing\nthread = threading.Thread(target=feed)"
    result = grade_cells(feed, loop("thread.start()\nthread.join()\n1 / 0"))
    assert "ZeroDivisionError" in failed(result)
    assert "A thread ended with an error:\n  submission cell 1, line 4, in feed\n    return nothing" in result.output
    assert "NameError: name 'nothing' is not defined" in result.output
    assert "grader-" not in result.output and "threading.py" not in result.output


@pytest.mark.parametrize("inner", ["yield 1.0", "yield from iter_of()"])
def test_the_place_of_a_yield_that_another_generator_passes_on(inner):
    text = f"import torch\ndef iter_of():\n    yield 1.0\n@torch.enable_grad()\ndef train(job):\n    gen = iter_of(); next(gen); {inner}"
    line = 4 if "from" in inner else 7
    message = failed(grade_cells(text))
    assert message.endswith(f"Yield the loss as a tensor: `yield loss.detach()` (submission cell 1, line {line}).")


def test_error_at_import():
    message = failed(grade_cells("import torch\nimport no_such_package"))
    assert "raised ModuleNotFoundError while it was imported: No module named 'no_such_package'" in message
    assert "submission cell 1, line 3" in message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such.inside", "`no_such` is not installed here, and a file beside the notebook is not part"),
        ("import torch.no_such", "The `torch` that is installed here has no module of this name."),
        ("await something", "SyntaxError while it was imported: 'await' outside function (submission cell 1, line 2)."),
        ("display(1)", "`display` belongs to notebooks"),
        ("get_ipython().run_line_magic('time', '1')", "`get_ipython` belongs to notebooks"),
        ("rate = job.lr", "The job is what your function is called with"),
        (
            "import sys\nsys.exit()",
            "SystemExit while it was imported (submission cell 1, line 3). Leave out what ends the",
        ),
        ("assert 1 > 2", "AssertionError while it was imported (submission cell 1, line 2)."),
        ("input()", "Nobody can type anything while a submission runs."),
        ("breakpoint()\nx = 1", "while a submission runs. Leave the debugger out."),
        ("open('/etc/notes.txt', 'w')", "It can read no files of yours, and write only there."),
        ("import torch\ntorch.save(1, '/etc/best.pt')", "It can read no files of yours, and write only there."),
        ("import torch\ntorch.save(1, 'out/best.pt')", "It can read no files of yours, and write only there."),
        ("open('tiles.npy')", "It can read no files of yours"),
        (
            "def helper():\n    optimizer.step()\ndef train(job):\n    optimizer = 1\n    yield helper()\nhelper()",
            "`optimizer` is only known inside the function that sets it. Hand it over as an argument.",
        ),
        (
            "import torch\ntorch.ones(1).cuda()",
            'This machine has no GPU that the loop may use. Say `job.device`, not "cuda"',
        ),
        ("import torch\ntorch.ones(1) + torch.ones(1, device='meta')", "Move both to `job.device`."),
        ("import torch\ntorch.empty(1 << 50)", "needs more memory than it may have. Keep less of it at a time."),
        ("import urllib.request as u\nu.urlopen('https://example.com')", "A submission has no network."),
        (
            "def train(job):\n    yield next(iter([]))\nlist(train(0))",
            "(submission cell 1, line 3). `next()` found nothing more.",
        ),
        ("import torch\ntorch.ones(()).backward()", "The loss hangs on no weight. Look for `.detach()`"),
        (
            "import torch\nx = torch.ones((), requires_grad=True).exp()\nx.backward()\nx.backward()",
            "(submission cell 1, line 5). Call `backward()` once for each forward pass",
        ),
        (
            "import torch\nx = torch.ones((), requires_grad=True).exp()\ny = x.exp()\nx += 1\ny.backward()",
            "Write `x = x + y` in place of `x += y`",
        ),
        ("import pickle\npickle.dumps(lambda: 1)", "Define it at the top of a %%submission cell"),
        ("import pickle\ndef f():\n    pickle.dumps(lambda: 1)\nf()", "Define it at the top of a %%submission cell"),
        ("import copy, threading\ncopy.deepcopy(threading.Lock())", "leave locks, generators and open files out"),
        ("def train(): yield", "0 positional arguments but 1 was given. It is called with one argument, the job."),
        ("def main(job): yield", "Define it in a cell that begins with %%submission."),
    ],
)
def test_what_an_error_means_here(source, says):
    given = submission(source)
    with running(given.source) as child, pytest.raises(ChildError) as caught:
        child.load()
        child.start(1)
    said = explain(caught.value, given)
    assert says in said, said


def test_errors_that_only_compiling_finds():
    for source in ("x = 1\nreturn x", "x = 1\nbreak", "x = 1\nfrom __future__ import division"):
        message = failed(grade_cells(source))
        assert "SyntaxError" in message and "submission cell 1, line 3" in message


def test_name_from_further_down():
    message = failed(grade_cells(f"wide = rate\nrate = 3\n{loop('pass')}"))
    assert "submission cell 1, line 2" in message and "`rate` is defined further down" in message


def test_name_from_another_cell():
    cells = ["rate = 3", "%%submission\n" + loop("x = rate")]
    message = failed(grade(from_cells(cells), LAB, device="cpu", limits=LIMITS))
    assert "NameError" in message and "submission cell 1, line 6" in message
    assert "`rate` is defined in a cell that is not part of the submission" in message
    assert "Move the definition into one" in message


def test_unknown_name():
    message = failed(grade_cells(loop("x = zork")))
    assert (
        "name 'zork' is not defined (submission cell 1, line 6). Is it misspelt, or is its import missing?" in message
    )
    assert "Only cells that begin with %%submission are part of the submission" in message


@pytest.mark.parametrize(
    ("body", "meant"),
    [("optimiser = 3\noptimizer", "optimiser"), ("jobs", "job"), ("trian(job)", "train"), ("toch", "torch")],
)
def test_misspelt_name(body, meant):
    message = failed(grade_cells(loop(body)))
    assert message.endswith(f"Did you mean `{meant}`?")


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()", "RecursionError('deep')"])
def test_exceptions_that_are_none_of_the_usual(error):
    message = failed(grade_cells(loop(f"raise {error}")))
    assert error.partition("(")[0] in message and "submission cell 1, line 6" in message


@pytest.mark.parametrize("name", ["room", "crowded", "timeout", "x" * 1_000_000])
def test_an_exception_that_is_called_as_what_machines_do(name):
    """The grade failed, and no machine."""
    result = grade_cells(loop(f"raise type({name[:9]!r} * {len(name) // 9 or 1}, (Exception,), {{}})('it was not me')"))
    assert "raised" in result.fatal and "it was not me" in result.fatal and not result.disturbed
    assert len(result.fatal) < 1000


def test_exception_that_fights_its_own_report():
    top = """
    class Hostile(Exception):
        lineno, name = object(), 3
        def __str__(self):
            raise RuntimeError("no message")
    """
    assert "Hostile" in failed(grade_cells(loop("raise Hostile", textwrap.dedent(top))))


def test_error_in_a_loader_worker():
    source = LAB.starter.replace("job.batches)", "job.batches, num_workers=2, collate_fn=collate)")
    result = grade_cells("def collate(samples):\n    return samples[0] / 0\n", source)
    assert failed(result).startswith("The submission raised TypeError in its loop: unsupported operand type(s) for /:")
    assert result.fatal.endswith("(submission cell 1, line 3).") and "Traceback" not in result.fatal
    assert "in collate" in result.output and "grader-" not in result.output


def test_killed_loader_worker():
    source = LAB.starter.replace("job.batches)", "job.batches, num_workers=1, collate_fn=collate)")
    result = grade_cells("import os\ndef collate(samples):\n    os.kill(os.getpid(), 9)\n", source)
    assert "DataLoader worker" in failed(result) and "submission cell 2, line" in result.fatal
    assert result.fatal.endswith(
        "With `num_workers=0` the same code runs in the training process, and its error shows."
    )


def test_weights_function_that_does_not_work():
    for value, says in (
        ("lambda: None", "it returned None"),
        ("lambda: {'a': 1}", "for 'a' it returned an int"),
        ("3", "is an int"),
    ):
        source = LAB.starter.replace("    for tokens", f"    job.weights = {value}\n    for tokens")
        message = failed(grade_cells(source))
        assert "job.weights" in message and says in message
    source = LAB.starter.replace("    for tokens", "    job.weights = lambda: 1 / 0\n    for tokens")
    message = failed(grade_cells(source))
    assert "ZeroDivisionError in job.weights()" in message and "submission cell 1, line 11" in message


# ---------------------------------------------------------------- time, output, disk, processes


def test_loop_that_never_yields():
    said: list[str] = []
    patience = {"limits": Limits(first_step=1), "progress": lambda share, what: said.append(what)}
    message = failed(grade_cells(loop("import time\ntime.sleep(1000)"), **patience))
    assert any("submission (the first may compile, for at most 1 s)" in what for what in said)
    assert "gave no loss within 1 s" in message and "Look for a loop that never yields" in message
    assert message.endswith("It was at submission cell 1, line 7.")


def stuck(*cells: str) -> str:
    """What is said of a loop whose first step never ends."""
    given = submission(*cells)
    with running(given.source, limits=replace(LIMITS, first_step=1)) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError) as caught:
            child.run(1)
    return explain(caught.value, given)


@pytest.mark.parametrize("wait", ["lock.acquire()", "while True: pass", "loop()"])
def test_where_it_hangs(wait):
    """In C, in Python, and in a function of another cell."""
    top = "import threading\nlock = threading.Lock()\nlock.acquire()\ndef loop():\n    while True: pass"
    place = "submission cell 1, line 6" if wait == "loop()" else "submission cell 2, line 6"
    said = stuck(top, loop(wait))
    assert "gave no loss within 1 s" in said and said.endswith(f"It was at {place}.")


@pytest.mark.parametrize(
    "body",
    [
        "signal.signal(signal.SIGUSR2, signal.SIG_IGN)",
        "faulthandler.unregister(signal.SIGUSR2)",
        "os.remove(stack)",
        "os.remove(stack); os.mkfifo(stack)",
        "os.remove(stack); os.symlink(__file__, stack)",
    ],
)
def test_a_loop_that_does_not_say_where_it_hangs(body):
    top = "import faulthandler, os, signal, time\nstack = os.path.dirname(__file__) + '/exchange/stack'"
    said = stuck(loop(f"{body}\ntime.sleep(1000)", top))
    assert "gave no loss within 1 s" in said and "It was at" not in said


@pytest.mark.parametrize("body", ["import time; time.sleep(1000)", "raise ValueError", "return"])
def test_a_right_prediction_earns_nothing_while_the_loop_does_not_run(body):
    said = (("cause", LAB.cause), ("gain", 2.0))
    one = replace(submission(loop(body)), prediction=said)
    result = grade(one, LAB, device="cpu", plan=PLAN, limits=replace(LIMITS, first_step=1))
    check = result.check("prediction")
    assert result.fatal and result.score == 0 and (check.status, check.max_points) == (FAIL, LAB.prediction.points)
    assert "did not run" in check.reason and "counts when the loop runs" in check.reason


@pytest.mark.slow
def test_steps_that_take_ever_longer_do_not_hold_the_machine():
    """A request may take twenty times what the last one lets expect, so a loop could ask for days, request by request."""
    slower = "for seconds in (0, 0.5, 1e6):\n        time.sleep(seconds)"
    source = loop("", "import time").replace("while True:", slower)
    with running(source, limits=Limits(whole=8)) as child, pytest.raises(ChildError) as caught:
        child.load()
        child.start(1)
        child.run(2)
        child.run(1, expected_s=1e6)
    assert caught.value.kind == "timeout"
    assert "its part of the grade, which may take 0.133 minutes" in caught.value.message


def test_the_second_step_may_compile_for_as_long_as_the_first():
    body = "import time\nyield torch.ones(())\ntime.sleep(2)"
    with running(loop(body), limits=Limits(first_step=60, step=1)) as child:
        child.load()
        child.start(1)
        blocks.Arm(child).warm_up(4)
        with pytest.raises(ChildError, match=r"gave no loss within 1 s.*max-autotune"):
            child.run(10**9)


def test_a_machine_that_cannot_run_the_course_s_own_loop():
    """It would fail again, and it is not the submission's fault."""
    form = replace(GPT, options=GPT.options | {"heads": 0})
    result = grade_cells(LAB.starter, lab=replace(LAB, forms={"cpu": form}))
    assert "could not run here. It raised ZeroDivisionError" in result.disturbed
    assert result.check("throughput").status == INCONCLUSIVE and result.check("throughput").reason.endswith(UNFIT)


def test_import_that_never_ends():
    message = failed(grade_cells("import time\ntime.sleep(1000)", limits=Limits(load=1)))
    assert "did not finish its import within 1 s" in message


def test_reading_standard_input_does_not_hang():
    assert "EOFError" in failed(grade_cells(loop("input('name? ')")))


def test_gigabyte_of_output():
    process = psutil.Process()
    before = process.memory_info().rss
    with running(loop("for _ in range(1024): print('x' * (1 << 20))\nprint('the end')"), limits=Limits()) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [1.0]
        assert child.run(3)[1] == [1.0] * 3  # goes on
        output = eventually(lambda: child.output().endswith("the end\n") and child.output())
        assert len(output) < 100_000 and "MB of output left out" in output
    assert process.memory_info().rss - before < 64 << 20


STAY = f"""
import os, signal, subprocess, sys, time

def stay(ignore=False, session=False, twice=False):
    if os.fork():
        return
    if session:
        os.setsid()
    if twice and os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if ignore else ():
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)

def respawn():
    '''Processes that replace themselves all the time: whoever kills one by one never comes to an end.'''
    for _ in range(20):
        if os.fork() == 0:
            while True:
                if os.fork():
                    os._exit(0)

def shell():
    subprocess.Popen(["env", "-i", "sh", "-c", "while :; do sleep 1; done", "{MARKER}"], start_new_session=True)
"""


@pytest.mark.parametrize(
    "body",
    [
        "stay()",
        "stay(session=True)",
        "stay(session=True, twice=True, ignore=True)",
        "shell()",
        pytest.param(
            "respawn()", marks=pytest.mark.skipif(not IS_ROOT, reason="only another user's can all be killed")
        ),
        "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); stay(session=True, twice=True)",  # a subreaper itself
    ],
)
@pytest.mark.parametrize("end", ["", "os._exit(0)"])
def test_processes_left_behind(own_temporary, body, end):
    with running(loop(f"{body}\n{end}", STAY), limits=Limits()) as child:  # they keep the machine busy
        child.load()
        child.start(1)
        if end:
            with pytest.raises(ChildError, match="ended by itself"):
                child.run(1)
        else:
            child.run(1)
            assert eventually(lambda: len(inhabitants(own_temporary)) > 1)  # they were there
    # at once, not only after a while
    assert not inhabitants(own_temporary)


def test_fork_that_returns_into_the_harness():
    """A learner's forgotten fork: two processes would answer each request."""
    with running(loop("import os; os.fork()")) as child:
        child.load()
        child.start(1)
        for _ in range(20):
            assert child.run(2)[1] == [1.0, 1.0]


def test_full_disk():
    body = "with open('big', 'wb') as file:\n    file.write(bytes(200_000_000))\nimport time\ntime.sleep(1000)"
    message = failed(grade_cells(loop(body), limits=Limits(disk_bytes=100 << 20)))
    assert "wrote 0.2 GB to its folder. At most 0.1 GB are allowed" in message


@pytest.mark.slow
def test_folders_nested_without_end():
    """Deeper than recursion goes, and than a path can be long: what lies there cannot be counted."""
    body = "import os\nfor _ in range(5000):\n    os.mkdir('d')\n    os.chdir('d')\nimport time; time.sleep(1000)"
    assert "a folder that nobody can look into" in failed(grade_cells(loop(body), limits=Limits(first_step=60)))


def test_disk_that_fills_in_quick_steps():
    body = "for i in range(8):\n    open(f'big{i}', 'wb').write(bytes(20_000_000))\n    yield torch.ones(())"
    assert "to its folder" in failed(grade_cells(loop(body), limits=Limits(disk_bytes=100 << 20)))


def test_disk_that_fills_with_files_without_a_name():
    body = "kept = []\nfor i in range(8):\n    kept.append(os.open('.', os.O_TMPFILE | os.O_RDWR))\n    os.write(kept[-1], bytes(20_000_000))\n    yield torch.ones(())"
    assert "to its folder" in failed(grade_cells(loop(body, "import os"), limits=Limits(disk_bytes=100 << 20)))


def test_shared_memory_of_others_that_goes_meanwhile(tmp_path):
    """Another grade's files vanish while ours are looked for; seen with two grades beside each other."""
    end = threading.Event()

    def come_and_go() -> None:
        while not end.is_set():
            with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix=MARKER):
                pass

    others = [threading.Thread(target=come_and_go) for _ in range(2)]
    for each in others:
        each.start()
    try:
        for n in range(100):
            folder = tmp_path / str(n)
            folder.mkdir()
            folders.clear_away(str(folder), 60_000 + n)
            assert not folder.exists()
    finally:
        end.set()
        for each in others:
            each.join()


def test_exit_in_the_middle():
    result = grade_cells(loop("print('last words', flush=True)\nimport os; os._exit(3)"))
    assert "ended by itself (exit status 3)" in failed(result)
    assert result.output.count("last words") == 1


def test_crash():
    message = failed(grade_cells(loop("import ctypes; ctypes.string_at(0)")))
    assert message.endswith("crashed with SIGSEGV (submission cell 1, line 6).")


def test_killed():
    message = failed(grade_cells(loop("import os; os.kill(os.getpid(), 9)")))
    assert "killed" in message and "ran out of memory" in message and "fewer loader workers" in message


@pytest.fixture
def memory_limit():
    """A function that puts a process under a memory limit of its own."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    group = root / f"grader-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(1 << 30))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"cannot make a memory cgroup here: {error}")
    yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_out_of_memory(memory_limit):
    """The kernel's own out-of-memory killer, in a memory cgroup."""
    with running(loop("kept = [torch.ones(1 << 22) for _ in range(1000)]"), limits=Limits()) as child:
        child.load()
        child.start(1)
        for process in psutil.Process(child.warden).children():
            memory_limit(process.pid)
        with pytest.raises(ChildError, match="was killed by the kernel, most likely because the machine ran out"):
            child.run(1)


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_cuda_out_of_memory():
    message = failed(grade_cells(loop("kept = torch.empty(1 << 45, device=job.device)"), device="cuda"))
    assert "CUDA ran out of memory in the submission" in message and "Keep fewer" in message
    assert "submission cell 1, line 6" in message


def test_cuda_out_of_memory_where_nvml_does_not_start():
    """As torch puts it where other GPUs are hidden."""
    source = loop(
        "raise RuntimeError('NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
        '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1, please report a bug to PyTorch.\')'
    )
    message = failed(grade_cells(source))
    assert "CUDA ran out of memory in the submission" in message and "Keep fewer" in message


@pytest.mark.slow
def test_a_reference_solution_that_runs_out_of_memory(monkeypatch):
    """The submission is gone by then: it is not to blame for a GPU that is too small."""
    out_of_memory = loop("raise RuntimeError('nvmlInit_v2_() INTERNAL ASSERT FAILED')")
    monkeypatch.setattr("grader.grading.replay.solution", lambda lab: Submission(out_of_memory))
    result = grade(solution(labs.get("3h_fit")), labs.get("3h_fit"), device="cpu", quick=True)
    assert not result.fatal
    assert (
        "could not run here. CUDA ran out of memory in a loop that the submission is compared with" in result.disturbed
    )
    assert result.check("throughput").status == INCONCLUSIVE


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_the_budget_is_that_of_the_submission():
    """A reference solution holds another one's weights beside its own while they are compared."""
    source = loop("kept = torch.empty(1 << 30, dtype=torch.uint8, device=job.device)")
    for trusted in (True, False):
        with running(source, device="cuda", budget=1 << 29, trusted=trusted) as child:
            child.load()
            child.start(1)
            with contextlib.nullcontext() if trusted else pytest.raises(ChildError, match=r"0\.54 GB that it may use"):
                child.run(1)


@pytest.mark.skipif(machine.has_gpu(), reason="needs a machine without a GPU")
def test_no_gpu():
    with pytest.raises(UserError, match=r"no NVIDIA GPU here.*Use --device auto or cpu"):
        grade_cells(LAB.starter, device="cuda")


def test_unknown_device():
    with pytest.raises(UserError, match="Unknown device 'tpu': use auto, cpu or cuda"):
        grade_cells(LAB.starter, device="tpu")


# ---------------------------------------------------------------- lies on the wire

FORGE = """
import json, os, sys, time

def reply(text):
    frame = sys._getframe()
    while "replies" not in frame.f_locals:
        frame = frame.f_back
    data = text.replace("NONCE", frame.f_locals["nonce"]).encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(frame.f_locals["replies"], data):]
    time.sleep(1000)
"""


def answer(value: str) -> str:
    return '{"nonce": "NONCE", "value": ' + value + "}\n"


def losses(text: str) -> str:
    return answer('{"losses": ' + text + ', "compiled": 0}')


FORGED = {
    '{"nonce": "0", "value": null}\n': "answers no request",
    '{"value": null}\n': "answers no request",
    "hello\n": "not a reply",
    "\n": "not a reply",
    "[1]\n": "not a reply",
    "null\n": "not a reply",
    "\udcff\udcfe\n": "not a reply",
    "[" * 100_000 + "\n": "not a reply",
    "x" * (5 << 20): "flooded the reply pipe",
    losses("[NaN]"): "not a reply",
    losses("[Infinity]"): "not a reply",
    losses("[" + "9" * 5000 + "]"): "not a reply",
    losses("[" + "9" * 400 + "]"): "not a reply",  # an int that no float holds
    losses("[1e999]"): "not a reply",  # read as infinity
    losses("[1]"): "losses of the wrong form",
    losses("[1e300]"): "losses of the wrong form",  # no fp32 loss, and too large to average
    losses("[true]"): "losses of the wrong form",
    losses('["1"]'): "losses of the wrong form",
    losses("[]"): "losses of the wrong form",
    losses("[1.0, 1.0]"): "losses of the wrong form",
    losses("{}"): "losses of the wrong form",
    answer("null"): "losses of the wrong form",
    answer('{"losses": [1.0]}'): "a reply of the wrong form",
    answer('{"losses": [1.0], "compiled": 0.5}'): "a reply of the wrong form",
    '{"nonce": "NONCE", "error": 3}\n': "raised an error in its loop",
    '{"nonce": "NONCE", "error": {"kind": {}, "line": [], "traceback": 3, "message": null}}\n': "raised an error",
    '{"nonce": "NONCE", "error": {"kind": "E", "line": 1e9, "message": "' + "m" * 99_999 + '"}}\n': "raised E",
    '{"nonce": "NONCE", "error": {"kind": "NameError", "line": -5, "name": "torch"}}\n': "raised NameError",
}


@pytest.mark.parametrize(("text", "says"), first(FORGED.items(), 6), ids=range(len(FORGED)))
def test_forged_reply(text, says):
    with running(loop(f"reply({text!r})", FORGE)) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError, match=says) as caught:
            child.run(1)
        assert len(explain(caught.value, submission("x = 1"))) < 6000


def test_a_reply_that_comes_byte_by_byte_is_waited_for_no_longer():
    """A reply may have four million bytes: with one every tenth of a second they would be there in days."""
    drip = loop("while True: reply(' ')", FORGE.replace("sleep(1000)", "sleep(0.1)"))
    with running(drip, limits=Limits(first_step=2)) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError, match="gave no loss within 2 s"):
            child.run(1)


def test_forged_reply_ends_a_grade():
    assert "losses of the wrong form" in failed(grade_cells(loop(f"reply({losses('[]')!r})", FORGE)))


def test_reply_without_a_request():
    """An answer that lies in the pipe before its request was made answers nothing."""
    source = loop(f"os.write(frame_of('replies'), {losses('[1.0]')!r}.encode())", "")
    source = source.replace("frame_of('replies')", "sys._getframe(3).f_locals['replies']")
    source = source.replace("import torch\n", "import torch, os, sys\n")
    with running(source) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError):
            child.run(1)


# ---------------------------------------------------------------- weights and traces that are none

SAVE = """
import os, sys
import safetensors.torch
import torch

save, calls = safetensors.torch.save_file, []

def forge(tensors, path):
    {forge}

def choose(tensors, path):
    calls.append(path)
    (forge if len(calls) >= {first} else save)(tensors, path)

safetensors.torch.save_file = choose
"""


def forging(forge: str, first: int = 1) -> str:
    """A submission that trains well and returns forged weights from the `first` time on it is asked."""
    body = "\n    ".join(textwrap.dedent(forge).strip().split("\n"))
    return SAVE.format(forge=body, first=first) + LAB.starter


NO_PLAIN_FILE = "left (no readable first.safetensors|a first.safetensors of the wrong kind)"
UNUSABLE = "weights that the submission returned cannot be read"


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        ("os.symlink('/etc/hostname', path)", NO_PLAIN_FILE),
        ("os.mkfifo(path)", NO_PLAIN_FILE),
        ("os.mkdir(path)", NO_PLAIN_FILE),
        ("pass", NO_PLAIN_FILE),
        ("open(path, 'w').truncate(5 << 30)", "left a first.safetensors of 5368.7 MB. At most 2.0 MB are read. Twice"),
        ("save(tensors, path); os.truncate(path, 3 << 20)", "left a first.safetensors of 3.1 MB. At most 2.0 MB"),
        ("save({n: t.double() for n, t in tensors.items()}, path)", "Weights must stay float32. These are not"),
        ("os.rename(path.parent, path.parent.parent / 'x'); os.symlink('/tmp', path.parent)", NO_PLAIN_FILE),
        ("open(path, 'wb')", UNUSABLE),
        ("open(path, 'wb').write(b'\\xff' * 100)", UNUSABLE),
        ("open(path, 'wb').write(b'\\x02' + bytes(7) + b'{}')", "lack these"),
        ("import pickle; pickle.dump(tensors, open(path, 'wb'))", UNUSABLE),
        ("torch.save(tensors, path)", UNUSABLE),
        ("save(tensors, path); os.truncate(path, os.path.getsize(path) - 4)", UNUSABLE),
        ("save(tensors, path); os.truncate(path, os.path.getsize(path) + 4)", UNUSABLE),
        ("del tensors['positions']; save(tensors, path)", "lack these.*: positions"),
        ("tensors['place'] = tensors.pop('positions'); save(tensors, path)", "lack these.*: positions"),
        (
            "save({n: t.flatten() for n, t in tensors.items()}, path)",
            "lack these, or have them in another sh",
        ),
        ("save({n: t.half() for n, t in tensors.items()}, path)", "Weights must stay float32. These are not"),
        ("save({n: t.to(torch.int8) for n, t in tensors.items()}, path)", "Weights must stay float32"),
        ("save({n: t.to(torch.complex64) for n, t in tensors.items()}, path)", "Weights must stay float32"),
        ("save({n: t.to(torch.float8_e4m3fn) for n, t in tensors.items()}, path)", "Weights must stay float32"),
        ("save({n: t * float('nan') for n, t in tensors.items()}, path)", "returned weights are not finite"),
        ("save({n: t * 0 + 1e38 for n, t in tensors.items()}, path)", "The weights moved"),
    ],
)
def test_forged_weights(forge, says):
    result = grade_cells(forging(forge))
    assert measured_score(result) == 0
    message = result.fatal or result.check("parity").reason
    assert re.search(says, message), message
    assert "starter could not" not in message


@pytest.mark.slow
@pytest.mark.parametrize(
    "forge",
    [
        "open(path, 'wb').write(b'no weights')",
        "save({n: t.flatten() for n, t in tensors.items()}, path)",
    ],
)
def test_forged_weights_after_the_first_steps(forge, monkeypatch):
    """They are read where there is a gain to be deserved, so it is a faster loop that forges them."""
    body = "\n    ".join(textwrap.dedent(forge).strip().split("\n"))
    message = failed(grade_cells(SAVE.format(forge=body, first=2) + slow_starter(monkeypatch)))
    assert "weights that the submission returned" in message and "starter" not in message


def test_more_weights_than_asked_for_are_no_harm():
    forge = "save(tensors | {'extra': torch.ones(3), 'counter': torch.ones((), dtype=torch.int64)}, path)"
    result = grade_cells(forging(forge))
    assert not result.fatal and result.check("parity").status == "PASS"


TRACE = """
import os
import re
import torch

def forge(self, path):
    {forge}

torch.profiler.profile.export_chrome_trace = forge
"""


def test_trace_that_is_none():
    lab = labs.get("3f_attention")  # one of its checks is read from a CPU's trace
    result = grade_cells(TRACE.format(forge="open(path, 'w').write('{no trace')") + lab.starter, lab=lab)
    check = result.check("scores")
    assert check.status == INCONCLUSIVE and "no trace of the submission" in check.reason and check.points == 0


@pytest.mark.parametrize("forge", ["os.symlink('/etc/hostname', path)", "os.mkfifo(path)", "pass"])
def test_trace_that_is_no_file(forge):
    with running(TRACE.format(forge=forge) + LAB.starter) as child:
        child.load()
        child.start(1)
        child.start_profiler()
        child.profile(1, "trace.json")
        with pytest.raises(ChildError, match=r"left (no readable|a) trace\.json"):
            child.fetch("trace.json", 1 << 20)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"traceEvents": 3}', '{"traceEvents": [{"ts": 1e999}]}'])
def test_trace_with_nothing_in_it(text):
    with pytest.raises(trace.TraceError):
        trace.metrics(trace.read_bytes(text.encode(), expect_gpu=False), step_ns=1e6)


# ---------------------------------------------------------------- the grade itself is stopped


def start_grade(tmp_path: Path, home: Path) -> subprocess.Popen:
    """`grader grade` in a process of its own, with a loop that takes long enough to be stopped in its middle."""
    source = "%%submission\n" + loop("import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(1000)")
    command = [
        sys.executable,
        "-m",
        "grader.frontends.cli",
        "grade",
        "2a_workers",
        str(notebook(tmp_path, code(source))),
    ]
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--json", str(tmp_path / "result.json")],
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # a shell's background jobs ignore Ctrl-C, and so would all that they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # submission, its fork, starter
    assert eventually(lambda: len(inhabitants(home)) >= 3, 600), process.stdout.read() if process.poll() else ""
    return process


@pytest.mark.slow
def test_ctrl_c(tmp_path, own_temporary):
    process = start_grade(tmp_path, own_temporary)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in output
    assert not inhabitants(own_temporary) and not workspaces()
    assert {path.name for path in tmp_path.iterdir()} == {"lab.ipynb"}


@pytest.mark.slow
def test_parent_killed(tmp_path, own_temporary):
    process = start_grade(tmp_path, own_temporary)
    process.kill()
    assert eventually(lambda: not inhabitants(own_temporary) and not workspaces())
    process.communicate(timeout=600)
    assert {path.name for path in tmp_path.iterdir()} == {"lab.ipynb"}
