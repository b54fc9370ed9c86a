"""Drawings, and pages that the grader writes, in a real browser: all words can be read, and nothing is wider than the window."""

from __future__ import annotations

import pytest
import readable
from test_browser import browser, pytestmark  # noqa: F401  (a fixture)

from grader.course import outline

DRAWINGS = sorted(outline.FIGURES.glob("*.svg"))


@pytest.mark.slow
def test_every_word_of_a_drawing_can_be_read(browser):  # noqa: F811
    found = {}
    for path in DRAWINGS:
        browser.get(path.as_uri())
        if bad := [*readable.poor(browser, "svg").items(), *browser.execute_script(readable.CLASHES)]:
            found[path.name] = bad
    assert not found
