"""The tables of variants: what a new lab lacks is said by name."""

from __future__ import annotations

import pytest
import variants

from grader import labs
from grader.errors import UserError


def test_every_loop_has_its_entries():
    for name in labs.loops():
        assert all(made(name) for made in (variants.halves, variants.wrongs, variants.honest, variants.faults)), name


@pytest.mark.parametrize("table", ["HALVES", "WRONGS", "HONEST", "FAULTS"])
def test_a_missing_entry_names_table_and_lab(monkeypatch, table):
    """As in a new lab, which is in none of the tables."""
    for each in ("HALVES", "WRONGS", "HONEST", "FAULTS", "_FORWARD"):
        monkeypatch.delitem(getattr(variants, each), "3m_fp16", raising=False)
    made = {
        "HALVES": variants.half_fix,
        "WRONGS": variants.wrongs,
        "HONEST": variants.honest,
        "FAULTS": variants.faults,
    }
    with pytest.raises(UserError, match=rf"{table} in tests/variants.py has no entry for 3m_fp16"):
        made[table]("3m_fp16")


def test_a_forward_pass_without_honest_forms_asks_for_autocast(monkeypatch):
    monkeypatch.delitem(variants.HONEST, "3m_fp16")
    with pytest.raises(UserError, match=r"autocast\(\) in tests/variants.py has no entry for 3m_fp16"):
        variants.honest("3m_fp16")


def test_a_lab_that_serves_has_faults_of_its_own(monkeypatch):
    monkeypatch.delitem(variants.FAULTS, "4e_inference")
    with pytest.raises(UserError, match=r"FAULTS in tests/variants.py has no entry for 4e_inference"):
        variants.faults("4e_inference")
