"""The variants of each lab: what a new one lacks is said by name."""

from pathlib import Path

import pytest
import variants

from grader import labs
from grader.errors import UserError
from grader.workloads import gpt


def test_every_loop_has_its_entries():
    for name in labs.loops():
        assert all(made(name) for made in (variants.halves, variants.wrongs, variants.honest, variants.faults)), name


def lacks(what, make, lab):
    with pytest.raises(UserError) as caught:
        make(lab)
    assert str(caught.value).startswith(f"{what} is missing in tests/variants/lab_{lab}.py; CONTRIBUTING.md")
    assert (Path(__file__).parents[1] / f"tests/variants/lab_{lab}.py").is_file()


@pytest.mark.parametrize("table", ["HALVES", "WRONGS", "HONEST", "FAULTS"])
def test_a_missing_entry_names_table_and_file(monkeypatch, table):
    """As in a new lab, which declares nothing yet."""
    for each in ("HALVES", "WRONGS", "HONEST", "FAULTS", "_FORWARD"):
        monkeypatch.delitem(getattr(variants, each), "3m_fp16", raising=False)
    made = {
        "HALVES": variants.half_fix,
        "WRONGS": variants.wrongs,
        "HONEST": variants.honest,
        "FAULTS": variants.faults,
    }
    lacks(table, made[table], "3m_fp16")


def test_a_forward_pass_without_honest_forms_asks_for_its_lines(monkeypatch):
    monkeypatch.delitem(variants.HONEST, "3m_fp16")
    lacks("LOSS, or HONEST in its place,", variants.honest, "3m_fp16")


def test_a_lab_that_serves_has_faults_of_its_own(monkeypatch):
    monkeypatch.delitem(variants.FAULTS, "4e_inference")
    lacks("FAULTS", variants.faults, "4e_inference")


def test_no_module_is_left_out():
    """Under a name that is no lab's, what a module declares would be asked for in vain."""
    folder = Path(variants.__file__).parent
    assert {path.stem.removeprefix("lab_") for path in folder.glob("lab_*.py")} <= set(labs.NAMES)


SMALLER = [(name, form) for name in labs.NAMES for form in labs.get(name).smaller]


@pytest.mark.parametrize("name, form", SMALLER, ids=[f"{name}, {form.size}" for name, form in SMALLER])
def test_a_smaller_form_is_the_same_lab(name, form):
    """The same workload and data, judged the same way, with less to do."""
    full = labs.get(name).forms["cuda"]
    assert (form.workload, form.data, form.parity.steps, form.ranks) == (
        full.workload,
        full.data,
        full.parity.steps,
        full.ranks,
    )
    assert form.options.keys() >= full.options.keys() and form.options != full.options
    assert form.gpu_memory < full.gpu_memory and form.size and not form.serves
    assert bool(form.budget) == bool(full.budget) and (form.budget or 0) <= (full.budget or 0)
    if full.flops:
        assert 0.01 < form.flops / full.flops < 1
    if full.exchanged:  # a quarter of the gradients, and the largest matrix
        shrunk = form.options["width"] ** 2 / full.options["width"] ** 2
        assert form.exchanged / full.exchanged == pytest.approx(shrunk, rel=0.02)
        assert form.matrix / full.matrix == pytest.approx(shrunk)


@pytest.mark.parametrize(
    "name, form", [each for each in SMALLER if "gpt" in each[1].workload and not each[1].options.get("lengths")]
)
def test_the_arithmetic_of_a_smaller_form_is_the_model_s(name, form):
    """At least what `flops` says, which a faster step is rejected by, and not much more."""
    o = form.options
    weights = 12 * o["layers"] * o["width"] ** 2
    head = o["width"] * o.get("vocabulary", gpt.VOCABULARY)
    tokens = o["batch_size"] * o["length"] / form.ranks
    attention = 2 * o["layers"] * o["length"] * o["width"]
    if form.flops:
        assert 6 * tokens * 0.99 * weights < form.flops < 6 * tokens * 1.01 * (weights + head + attention)


def test_half_of_each_solution_can_be_made_for_a_smaller_form():
    """What is edited is the source, which does not depend on the form."""
    for name, form in SMALLER:
        lab = labs.get(name).sized(form.size)
        assert lab.starter == labs.get(name).starter and variants.halves(lab.name)
