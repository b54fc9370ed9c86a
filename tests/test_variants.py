"""The variants of each lab: what a new one lacks is said by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import variants

from grader import labs
from grader.errors import UserError


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
