"""The lessons: their form, and that they run from top to bottom in small on the CPU, without a warning."""

import base64
import io
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from PIL import Image, ImageChops

from grader import machine
from grader.course import execute, outline
from grader.frontends import lessons

LESSONS = outline.lessons()
QUICK = {"2_rules"}  # `make test-all` runs the others as well
ENDING = ["When it does not hold", "In three lines", "Five questions", "Try it yourself", "Next"]
LARGEST = 700_000  # bytes, outputs included

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"{path.parent.name}/{path.stem}")


def texts(notebook) -> list[str]:
    """All that the code cells show as text."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            found += [output.get("text", ""), *(shown.get(kind, "") for kind in ("text/plain", "text/html"))]
    return found


def check_outputs(notebook) -> None:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", f"{cell.id} wrote to stderr: {output.text}"
    for text in texts(notebook):
        assert not re.search(r"Warning\b", text), text


def test_there_are_lessons():
    assert LESSONS


@each_lesson
def test_form(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert text == nbformat.writes(notebook).rstrip("\n") + "\n", "write it with grader.course.execute.write"
    assert len(text.encode()) < LARGEST
    assert notebook.metadata.kernelspec.name == "python3"
    assert "papermill" not in notebook.metadata
    assert not any({"papermill", "execution"} & cell.metadata.keys() for cell in notebook.cells)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for i in ids:
        assert re.fullmatch("[a-z][a-z0-9-]{2,30}", i) and not re.fullmatch("[0-9a-f]{8}", i), i
    title, parameters, here = notebook.cells[:3]
    assert title.cell_type == "markdown" and re.match(r"# .+\?\n", title.source), "the title is the question"
    assert parameters.id == "parameters" and parameters.source.startswith("quick = False")
    knobs = parameters.source.partition("\n")[2]
    assert "quick" not in knobs, "papermill sets quick after this cell: what depends on it belongs below"
    assert [c.id for c in notebook.cells if "parameters" in c.metadata.get("tags", [])] == ["parameters"]
    assert here.id == "here" and "lesson.here()" in here.source


@each_lesson
def test_order(path):
    """Predictions before what they are about, and the closing sections, once each, in their order."""
    cells = nbformat.read(path, as_version=4).cells
    headings = [line.strip("# ") for c in cells if c.cell_type == "markdown" for line in c.source.splitlines() if line.startswith("## ")]  # fmt: skip
    assert headings[-len(ENDING) :] == ENDING, headings
    code = "\n".join(c.source for c in cells if c.cell_type == "code")
    guessed = [m.group(1) for m in re.finditer(r"^(my_\w+) = None\b", code, re.MULTILINE)]
    assert guessed, "a lesson asks for a prediction: my_guess = None"
    for name in guessed:
        compared = re.search(rf"lesson\.compare\(\s*{name}\b", code)
        assert compared and compared.start() > code.index(f"{name} = None"), f"{name} is never compared"


@each_lesson
def test_outputs_as_committed(path):
    """None, or those of one run of the whole notebook."""
    notebook = nbformat.read(path, as_version=4)
    check_outputs(notebook)
    counts = [c.execution_count for c in notebook.cells if c.cell_type == "code"]
    assert counts in ([None] * len(counts), list(range(1, len(counts) + 1)))


@each_lesson
def test_links(path):
    """What a lesson links to within the course is there."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"(`+).+?\1", "", cell.source, flags=re.DOTALL)  # `kernel[grid](x)` is code
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
                assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=f"{p.parent.name}/{p.stem}")
        for p in LESSONS
    ],
)
def test_runs_quickly_on_the_cpu(path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that wait for each other crawl where other tests run beside
    executed = execute.execute(path, quick=True)
    check_outputs(executed)
    assert len(nbformat.writes(executed).encode()) < LARGEST
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")


# ---- what they share


def test_compare(capsys):
    from grader.frontends import lesson

    def said(*values, **named):
        lesson.compare(*values, **named)
        return capsys.readouterr().out

    assert said(None, 1234.5, "images/s") == "measured: 1,234 images/s\n"
    alone = said(617, 1234, "images/s")
    assert alone == "your guess: 617 images/s    measured: 1,234 images/s    (guess / measured = 0.5)\n"
    assert said("bwd", "fwd").split() == ["your", "guess:", "bwd", "measured:", "fwd"]
    assert "calculated: 4 ms    (guess / calculated = 0.5)" in said(2, 4, "ms", how="calculated")
    nobody = said(None, 9.8, "us", many=1.0, because="Python's own calls take that long.")
    assert nobody.splitlines() == [
        "many guess: 1 us    measured: 9.8 us    (guess / measured = 0.102)",
        "why many guess that: Python's own calls take that long.",
    ]
    both = said(4.9, 9.8, "us", many=1)
    assert both == "your guess: 4.9 us    many guess: 1 us    measured: 9.8 us    (your guess / measured = 0.5)\n"
    assert said(0, 3, "copies", many=0).endswith("measured: 3 copies\n"), "a guess of 0 is one, without a ratio"
    assert said(None, "never", many=7) == "many guess: 7    measured: never\n"


def test_seconds_per_step():
    from grader.frontends import lesson

    calls = []
    times = lesson.seconds_per_step(lambda: calls.append(1), steps=4, warmup=2, repeats=3)
    assert times.shape == (3,) and (times >= 0).all() and len(calls) == 2 + 3 * 4


@pytest.mark.parametrize("low, high", [(3_600, 6_900), (1, 40), (0.0001, 0.02), (300, 5_200), (1, 1e6)])
def test_numbers_of_a_logarithmic_axis_do_not_touch(low, high):
    """Those from 3,500 to 7,000 lay on each other."""
    import matplotlib.pyplot as plt

    from grader.frontends import lesson

    figure, (axes, _) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    axes.plot([low, high], [1, 2], "o")
    axes.margins(0.15)
    axes.set_xscale("log")
    lesson.plain_log(axes.xaxis)
    figure.tight_layout()
    figure.draw_without_rendering()
    left, right = axes.get_xlim()
    boxes = [
        label.get_window_extent()
        for x, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if left <= x <= right
    ]
    plt.close(figure)
    assert len(boxes) > 1 and all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


@pytest.mark.slow
def test_folders_of_killed_kernels_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path))
    code = "from grader.frontends import lesson; import os; (lesson.scratch_folder() / 'file').touch(); {end}"

    def run(end):
        subprocess.run([sys.executable, "-c", code.format(end=end)], check=True)
        return list(tmp_path.glob("lesson-*"))

    assert len(run("os._exit(0)")) == 1  # killed: nothing is tidied up
    (left,) = tmp_path.glob("lesson-*")
    host, pid, _ = left.name.removeprefix("lesson-").split("-")
    assert left.is_dir() and pid.isdigit()
    mine, elsewhere = tmp_path / f"lesson-{host}-{os.getpid()}-lives", tmp_path / f"lesson-another.host-{pid}-lives"
    for folder in (mine, elsewhere):
        folder.mkdir()
    assert set(run("pass")) == {mine, elsewhere}, (
        "those of a process that runs, and of another machine's, are left alone"
    )


@pytest.mark.skipif(machine.has_gpu(), reason="this machine may have counters")
def test_no_counters_without_a_gpu(capsys):
    from grader.frontends import lesson

    with lesson.Counters() as counters:
        pass
    assert counters.values == {} and capsys.readouterr().out.startswith("no hardware counters here: ")


# ---- making the outputs


def small(folder: Path, name: str, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(s, id=f"cell-{n}") for n, s in enumerate(sources)]
    cells[0].metadata.tags = ["parameters"]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    execute.write(notebook, folder / name)
    return folder / name


@pytest.mark.slow
def test_a_chart_is_kept_in_fewer_bytes_and_a_photograph_as_it_is(tmp_path):
    draw = (
        "import numpy as np\nfrom matplotlib import pyplot as plt\nfrom grader.frontends import lesson",
        "lesson.bars({'one': 1, 'another': 2}, 'ms', 'A step')\nplt.show()",
        "plt.imshow(np.random.default_rng(0).random((60, 60, 3)))\nplt.show()",
    )
    path = small(tmp_path, "1_a.ipynb", "quick = False", *draw)
    whole = tmp_path / "executed.ipynb"
    execute.run(path, whole, {}, tmp_path)
    executed = nbformat.read(whole, as_version=4)
    kept = execute.clean(nbformat.read(whole, as_version=4), nbformat.read(path, as_version=4))
    for cell, smaller in ((2, True), (3, False)):
        before, after = (notebook.cells[cell].outputs[0].data["image/png"] for notebook in (executed, kept))
        assert (len(after) < 0.6 * len(before)) == smaller and (after == before) != smaller
        one, other = (Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png in (before, after))
        assert ImageChops.difference(one, other).getbbox() is None


def test_outputs_are_kept_and_nothing_else_changes(tmp_path):
    path = small(tmp_path, "1_a.ipynb", "quick = False", "for i in range(3):\n    print(i, flush=True)", "quick")
    before = nbformat.read(path, as_version=4)
    assert lessons.main([str(path)]) == 0
    after = nbformat.read(path, as_version=4)
    assert [o.text for o in after.cells[1].outputs] == ["0\n1\n2\n"]
    assert after.cells[2].outputs[0].data == {"text/plain": "False"}
    first = path.read_bytes()
    assert lessons.main([str(path)]) == 0
    assert path.read_bytes() == first, "the same outputs make the same file"
    for cell in after.cells:
        cell.outputs, cell.execution_count = [], None
    assert after == before
    assert [p.name for p in tmp_path.iterdir()] == ["1_a.ipynb"]


def test_widgets_are_left_out(tmp_path):
    source = "from IPython.display import display\nimport ipywidgets\nprint('beside')\ndisplay(ipywidgets.IntSlider())"
    path = small(tmp_path, "1_a.ipynb", "quick = False", source)
    assert lessons.main([str(path)]) == 0
    after = nbformat.read(path, as_version=4)
    assert [o.output_type for o in after.cells[1].outputs] == ["stream"] and "widgets" not in after.metadata


def test_quick_keeps_nothing_and_a_copy_can_be_made(tmp_path):
    path = small(tmp_path, "1_a.ipynb", "quick = False", "quick")
    before = path.read_bytes()
    assert lessons.main(["--quick", "--to", str(tmp_path / "out"), str(path)]) == 0
    assert path.read_bytes() == before
    copy = nbformat.read(tmp_path / "out" / tmp_path.name / "1_a.ipynb", as_version=4)
    assert len(copy.cells) == 2, "the injected cell is not kept"
    assert copy.cells[1].outputs[0].data == {"text/plain": "True"}


def test_one_that_fails_stops_nothing(tmp_path, capsys):
    bad = small(tmp_path, "1_bad.ipynb", "quick = False", "1 / 0")
    good = small(tmp_path, "2_good.ipynb", "quick = False", "6 * 7")
    before = bad.read_bytes()
    assert lessons.main([str(bad), str(good)]) == 1
    assert bad.read_bytes() == before
    assert nbformat.read(good, as_version=4).cells[1].outputs[0].data == {"text/plain": "42"}
    said = capsys.readouterr().out
    assert "cell 2 (1 / 0): ZeroDivisionError" in said and "1 of 2 lessons executed" in said


def test_no_such_notebook(tmp_path, capsys):
    assert lessons.main([str(tmp_path / "3_none.ipynb")]) == 2
    assert "no such notebook" in capsys.readouterr().err
