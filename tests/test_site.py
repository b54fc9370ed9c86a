"""The web site: every page is there, every link leads somewhere, nothing is loaded from elsewhere, and a phone shows it."""

import html
import json
import re
from pathlib import Path

import pytest
from test_browser import CHROMIUM, DRIVER, browser  # noqa: F401  (a fixture)

from grader.course import outline
from grader.errors import UserError
from grader.nightly import site

needs_sphinx = pytest.mark.skipif(bool(site.missing()), reason="Sphinx is not installed: pip install '.[site]'")


@pytest.mark.parametrize("there", ["2a_workers/2a_workers.ipynb", "index.html"])
def test_the_site_replaces_nothing_else(tmp_path, there, capsys, monkeypatch):
    """`--out work` once deleted all that a learner had made there."""
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    monkeypatch.chdir(tmp_path)
    for out in (".", str(tmp_path), str(tmp_path / there)):
        assert site.main(["--out", out]) == 2
        assert "was not replaced" in capsys.readouterr().err
    assert (tmp_path / there).read_text() == "mine"


PAGES = {
    "index.md": "# Start\n\n[a page](page.md), [a term](page.md#a-term)\n\n```{toctree}\npage\n```\n",
    "page.md": "# Page\n\n## A term\n\n$\\frac{a}{b}$ and\n\n$$t \\ge \\max(a, b)$$\n",
}
BROKEN = {
    "nowhere.md": "[away](nowhere.md)",
    "no-such-term": "[a term](page.md#no-such-term)",
    "drawing.svg": "![a drawing](drawing.svg)",
    "picture.png": '<img src="picture.png">',
}


@pytest.mark.slow
@needs_sphinx
def test_what_leads_nowhere_fails(tmp_path):
    source, made = tmp_path / "source", tmp_path / "html"
    source.mkdir()
    for name, text in PAGES.items():
        (source / name).write_text(text)
    site.render(source, made)
    page = (made / "page.html").read_text(encoding="utf-8")
    assert page.count("<math") == 2 and "<mfrac>" in page, "a formula without a network"
    (source / "index.md").write_text("\n\n".join([PAGES["index.md"], *BROKEN.values()]))
    with pytest.raises(UserError) as failed:
        site.render(source, made)
    for name in BROKEN:
        assert re.search(rf"(?m)^index\.md:\d+: WARNING.*{re.escape(name)}", str(failed.value)), failed.value


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    assert site.main(["--out", str(out)]) == 0
    return out


def pages_of(built: Path) -> list[Path]:
    """Without the templates of the theme."""
    return [page for page in sorted(built.rglob("*.html")) if "_static" not in page.parts]


def names_in(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.slow
@needs_sphinx
def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(built):
    pages = {page: page.read_text(encoding="utf-8") for page in pages_of(built)}
    known = {page: names_in(page) for page in pages}
    links = 0
    for page, text in pages.items():
        assert not re.search(r"<(script|img|iframe)[^>]* src=.https?:", text), page
        assert not re.search(r"<link[^>]* href=.https?:(?!//www\.sphinx)", text), page
        for target, _, anchor in (
            found.partition("#") for found in re.findall(r'<a [^>]*href="(?!\w+:)([^"?]+)', text)
        ):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), (page, target)
            assert not anchor or anchor in known[there], (page, target, anchor)
            links += 1
        assert not re.search(r'<img [^>]*alt="([^"]*_images/|")', text), "each picture is told in words"
        for picture in re.findall(r'<img [^>]*src="(?!data:)([^"]+)', text):
            assert (page.parent / picture).exists(), (page, picture)
    assert links > 5_000 and (built / "searchindex.js").exists()


@pytest.mark.slow
@needs_sphinx
def test_every_page_has_all_that_its_notebook_shows(built):
    for path in [*outline.lessons(), outline.GLOSSARY, *(outline.NOTEBOOKS.parent / "labs").glob("*/*.ipynb")]:
        text = (built / path.relative_to(outline.NOTEBOOKS.parent)).with_suffix(".html").read_text(encoding="utf-8")
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        assert text.count('src="../../_images/') + text.count('src="../_images/') >= len(pictures), path
        assert len(re.findall(r'class="cell [^"]*docutils', text)) >= sum(
            cell["cell_type"] == "code" for cell in cells
        ), path
        assert text.count("cell_output") >= len({cell["id"] for cell in cells if cell.get("outputs")}), path
        folded = sum("hide-input" in cell["metadata"].get("tags", ()) for cell in cells)
        assert text.count("Show the code") == folded, path
    for guide in site.GUIDES:
        assert (built / f"{guide}.html").exists()


@pytest.mark.slow
@needs_sphinx
def test_the_front_page_says_how_long_everything_takes(built):
    rows = re.findall(r"<tr.*?</tr>", (built / "index.html").read_text(encoding="utf-8"), re.DOTALL)
    for stop in (stop for phase in outline.PHASES for stop in phase.stops):
        name = stop.path if isinstance(stop, outline.Lesson) else f"labs/{stop.name}/{stop.name}"
        row = next(row for row in rows if f"{name}.html" in row)
        assert re.search(rf">\s*<p>{stop.minutes}</p>", row), row
        title = stop.title if isinstance(stop, outline.Lesson) else stop.declared.title
        assert title in html.unescape(re.sub("<.*?>", "", row)).replace("’", "'"), row
    assert sum("core lab" in row for row in rows) == sum(stop.core for stop in outline.lab_stops()) > 5


@pytest.mark.slow
@needs_sphinx
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are needed")
def test_a_phone_shows_every_page_in_light_and_dark(built, browser):  # noqa: F811
    """No page is wider than the screen: what is wide scrolls by itself."""
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for page in pages_of(built):
        browser.get(page.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, page
    papers = set()
    for mode in ("light", "dark"):
        feature = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        browser.get((built / "index.html").as_uri())
        papers.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2
