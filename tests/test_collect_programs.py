"""Hand-ins that other programs than JupyterLab saved."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from test_collect import LABS, OTHER, collect, made, placed, released
from test_collect_systems import WHERE

from grader.classroom.submissions import read_class
from tests import odd_class


def nbformat_3(nb: Any) -> None:
    """IPython 2: sheets of cells, code under another name, headings that are cells."""
    cells = []
    for each in nb.pop("cells"):
        text = odd_class.text(each)
        if each["cell_type"] == "code":
            new = {"cell_type": "code", "language": "python", "input": text.splitlines(keepends=True), "outputs": []}
        elif text.startswith("# "):
            new = {"cell_type": "heading", "level": 1, "source": text.removeprefix("# ")}
        else:
            new = {"cell_type": "markdown", "source": text}
        cells.append({**new, "metadata": {}})
    nb.update(metadata={"name": "lab"}, nbformat=3, nbformat_minor=0, worksheets=[{"cells": cells, "metadata": {}}])


def nbformat_2(nb: Any) -> None:
    nbformat_3(nb)
    nb["nbformat"] = 2
    for each in nb["worksheets"][0]["cells"]:
        each.pop("metadata")


def nbformat_4(minor: int) -> Callable[[Any], None]:
    def edit(nb: Any) -> None:
        odd_class.strip(nb)
        nb["nbformat_minor"] = minor

    return edit


def colab(nb: Any) -> None:
    """Opened from GitHub it gets a badge."""
    odd_class.strip(nb)
    badge = '<a href="https://colab.research.google.com/github/x/y" target="_parent"><img src="https://colab.research.google.com/z.svg"/></a>'
    nb["cells"].insert(0, {"cell_type": "markdown", "metadata": {}, "source": [badge]})
    nb["metadata"] = {"colab": {"provenance": []}, "widgets": {"application/vnd.jupyter.widget-state+json": {"a": {}}}}
    for at, each in enumerate(nb["cells"]):
        each["metadata"] = {"id": f"aB{at}", "colab": {"base_uri": "https://localhost:8080/"}, "cellView": "form"}
        if each["cell_type"] == "code":
            each["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["\x1b[31mred\x1b[0m\n"]}]


def deepnote(nb: Any) -> None:
    """Signs what it exports."""
    odd_class.strip(nb)
    for at, each in enumerate(nb["cells"]):
        each["metadata"] = {"cell_id": f"{at}", "deepnote_cell_type": "code", "source_hash": "x"}
    link = "<a style='text-decoration:none;' href='https://deepnote.com?utm_source=created-in-deepnote-cell' target=\"_blank\">\n"
    signed = (
        link
        + "<img alt='Created in deepnote.com' src='data:image/svg+xml;base64,PD9' > </img>\nCreated in <span>Deepnote</span></a>"
    )
    metadata = {"created_in_deepnote_cell": True, "deepnote_cell_type": "markdown"}
    nb["cells"].append({"cell_type": "markdown", "source": signed, "metadata": metadata})
    nb["metadata"] = {"deepnote": {}, "deepnote_notebook_id": "x"}


def vs_code(nb: Any) -> None:
    nb["metadata"] = {"language_info": {"name": "python"}}
    for at, each in enumerate(nb["cells"]):
        each["metadata"] = {"vscode": {"languageId": "python"}}
        each["id"] = f"{at:08x}"
    nb["cells"].append(
        {"cell_type": "code", "execution_count": None, "id": "f", "metadata": {}, "outputs": [], "source": []}
    )


def kaggle(nb: Any) -> None:
    odd_class.strip(nb)
    nb["metadata"] = {"kaggle": {"accelerator": "gpu", "dataSources": []}}
    for each in nb["cells"]:
        each["metadata"] = {
            "_uuid": "8f2",
            "_cell_guid": "b10",
            "trusted": True,
            "execution": {"iopub.status.busy": "x"},
        }


def datalore(nb: Any) -> None:
    odd_class.strip(nb)
    nb["metadata"] = {"datalore": {"computation_mode": "JUPYTER", "version": 4}}
    for each in nb["cells"]:
        kind = "MD" if each["cell_type"] == "markdown" else "CODE"
        each["metadata"] = {"datalore": {"node_id": "x", "type": kind, "hide_input_from_viewers": True}}


def databricks(nb: Any) -> None:
    """Texts are code there."""
    odd_class.strip(nb)
    for each in nb["cells"]:
        if each["cell_type"] == "markdown":
            each.update(cell_type="code", source=f"%md\n{odd_class.text(each)}", outputs=[], execution_count=0)
        each["metadata"] = {"application/vnd.databricks.v1+cell": {"title": "", "nuid": "x"}}


PROGRAMS = {
    "nbformat 2": nbformat_2,
    "nbformat 3": nbformat_3,
    **{f"nbformat 4.{minor}": nbformat_4(minor) for minor in range(6)},
    "Colab": colab,
    "Databricks": databricks,
    "Deepnote": deepnote,
    "VS Code": vs_code,
    "Kaggle": kaggle,
    "Datalore": datalore,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_notebook_of_another_program_is_the_same_submission(tmp_path, capsys, program):
    lab = odd_class.LAB
    hand_ins = {
        "Plain": [odd_class.explain],
        "Odd": [odd_class.explain, PROGRAMS[program]],
        "Idle": [PROGRAMS[program]],
    }
    files = {}
    for at, (who, edits) in enumerate(hand_ins.items()):
        nb = odd_class.notebook_of(lab, solved=True)
        for edit in edits:
            edit(nb)
        files[f"{who}_{at}{WHERE}/Untitled.ipynb"] = json.dumps(nb).encode()
    status, _, err = collect(tmp_path, made(tmp_path / "m.zip", files), capsys=capsys)
    assert status == 0, err
    idle, odd, plain = read_class(LABS, tmp_path / "submitted")
    assert idle.submission and odd.submission and plain.submission
    assert idle.submission.source == odd.submission.source == plain.submission.source
    assert [one.explained for one in (idle, odd, plain)] == ["", "", ""]
    assert not odd.other_release


def test_a_notebook_as_it_was_released_is_known_in_each_form(tmp_path, capsys):
    own = f"Ann_1{WHERE}/x.ipynb"
    collect(tmp_path, made(tmp_path / "1.zip", {own: released(OTHER, says="own")}), capsys=capsys)
    for at, edit in enumerate(PROGRAMS.values()):
        nb = odd_class.notebook_of(OTHER)
        edit(nb)
        again = made(tmp_path / f"{at}.zip", {own: json.dumps(nb).encode()}, (2026, 11, 22, 9, 0, 0))
        _, _, err = collect(tmp_path, again, capsys=capsys)
        assert "as it was released" in err and "own" in placed(tmp_path, "Ann", OTHER).read_text(), list(PROGRAMS)[at]
