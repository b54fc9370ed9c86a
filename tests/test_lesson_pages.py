"""How the lessons read: an early result, folded plumbing, drawings, questions with folded answers, terms in the glossary."""

import re
import xml.etree.ElementTree as ElementTree

import nbformat
import pytest

from grader.course import outline

LESSONS = outline.lessons()
WORDS, LINES = 100, 15  # before the first output that is a result
QUESTIONS = "Five questions"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
TERM = re.compile(r"(?:\]\(|href=\")((?:\.\./)*)(?:notebooks/)?glossary\.ipynb#([^)\s\"]+)")
# Okabe and Ito's, some of them darker for words, and what is neutral
COLOURS = {"#a84a00", "#00775a", "#8a6000", "#4b5563", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#1b1f23", "#000", "#fff", "#6b7280", "#9ca3af", "#d1d5db", "#e5e7eb", "#f3f4f6", "none"}  # fmt: skip

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: f"{path.parent.name}/{path.stem}")


def cells(path):
    return nbformat.read(path, as_version=4).cells


def sections(path) -> dict[str, str]:
    """The markdown below each `##` heading."""
    text = "\n".join(cell.source for cell in cells(path) if cell.cell_type == "markdown")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def read_words(markdown: str) -> int:
    """The words of it that a reader sees without unfolding anything."""
    markdown = re.sub(r"<details.*?</details>|<!--.*?-->", "", markdown, flags=re.DOTALL)
    markdown = re.sub(r"\]\([^)]*\)", "]", IMAGE.sub("", markdown))
    return len(re.findall(r"\w[\w'’.,-]*", re.sub(r"<[^>]+>", "", markdown)))


def hidden(cell) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


@each_lesson
def test_the_first_result_comes_early(path):
    words = lines = 0
    for cell in cells(path):
        if cell.cell_type == "markdown":
            words += read_words(cell.source)
        elif not hidden(cell):
            lines += sum(bool(line.strip()) for line in cell.source.splitlines())
        if cell.get("outputs") and cell.id != "here":
            break
    assert words <= WORDS and lines <= LINES, f"{words} words and {lines} lines of code before the first output"


@each_lesson
def test_plumbing_is_folded(path):
    """Both where JupyterLab and where the site look; and imports always."""
    for cell in cells(path):
        if cell.cell_type == "code":
            assert hidden(cell) == ("hide-input" in cell.metadata.get("tags", [])), cell.id
    assert hidden(next(cell for cell in cells(path) if cell.id == "here")), "the imports are plumbing"


@each_lesson
def test_each_prediction_has_the_guess_that_many_make(path):
    code = "\n".join(cell.source for cell in cells(path) if cell.cell_type == "code")
    for name in re.findall(r"^(my_\w+) = None\b", code, re.MULTILINE):
        calls = re.findall(rf"lesson\.compare\(\s*{name}\b.*?\n(?=\S|$)", code + "\n", re.DOTALL)
        assert any("many=" in call for call in calls), f"lesson.compare({name}, ..., many=...)"


@each_lesson
def test_questions_and_answers_are_folded(path):
    below = sections(path)
    assert below[QUESTIONS].count("<details><summary>") == below[QUESTIONS].count("</details>") == 5
    tries = re.findall(
        r"^\d+\. ", re.sub(r"<details>.*?</details>", "", below["Try it yourself"], flags=re.DOTALL), re.M
    )
    assert below["Try it yourself"].count("<details><summary>") == len(tries) > 0, "one folded answer each"
    heads = re.findall(r"<summary>.*?</summary>", "\n".join(cell.source for cell in cells(path)), re.DOTALL)
    assert not [head for head in heads if "`" in head], "Markdown isn't read there: <code>"


@each_lesson
def test_a_drawing_of_the_idea_comes_before_the_first_chart(path):
    for cell in cells(path):
        if cell.cell_type == "markdown" and IMAGE.search(cell.source):
            return
        charts = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        assert not charts, f"{cell.id} draws a chart before any drawing"
    raise AssertionError("no drawing: ![what it shows](../figures/NAME.svg)")


def pages():
    return [*LESSONS, outline.GLOSSARY, outline.NOTEBOOKS / "00_start_here.ipynb"]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_images_are_there_and_say_what_they_show(path):
    for cell in cells(path):
        if cell.cell_type == "markdown":
            for alternative, target in IMAGE.findall(cell.source):
                assert len(alternative.split()) >= 8, f"say in words what {target} shows"
                assert (path.parent / target).is_file(), target


def test_every_drawing_is_used():
    used = {
        (path.parent / target).resolve()
        for path in pages()
        for cell in cells(path)
        if cell.cell_type == "markdown"
        for _, target in IMAGE.findall(cell.source)
    }
    assert {path.resolve() for path in outline.FIGURES.iterdir()} <= used


@pytest.mark.parametrize("path", sorted(outline.FIGURES.glob("*")), ids=lambda path: path.name)
def test_drawings_read_in_dark_mode_and_without_colours_that_are_alike(path):
    assert path.suffix == ".svg"
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and {"width", "height", "viewBox"} <= root.attrib.keys()
    first = root[0]
    assert first.tag.endswith("rect") and first.get("fill") == "#fff", "a white ground comes first"
    _, _, *size = root.attrib["viewBox"].split()
    assert [first.get("width"), first.get("height")] == size, "the ground covers all of it"
    assert not re.search(r"<(script|image|foreignObject|style)|href=", text), "a drawing loads and runs nothing"
    used = {colour.lower() for colour in re.findall(r'(?:fill|stroke)="([^"]+)"', text)}
    assert not used - COLOURS, "Okabe and Ito's colours, black, white and grey"
    for element in root.iter():
        if size := element.get("font-size"):
            assert float(size) >= 12, "large enough to read"


# ---- the glossary


def terms() -> list[str]:
    text = "\n".join(cell.source for cell in cells(outline.GLOSSARY))
    return re.findall(r"^### (.+)$", text, re.MULTILINE)


def test_the_glossary_is_in_order_and_says_something_of_each_term():
    found = terms()
    assert found == sorted(found, key=str.lower) and len({term.lower() for term in found}) == len(found)
    for term in found:
        assert re.fullmatch(r"[\w.' -]+", term), f"{term}: letters, digits and spaces make an anchor"
    for cell in cells(outline.GLOSSARY)[1:]:
        for words in re.split(r"^### .+$", cell.source, flags=re.MULTILINE)[1:]:
            assert 4 <= len(words.split()) <= 50, words


def linked(folder):
    return sorted(folder.rglob("*.ipynb"))


@pytest.mark.parametrize("path", [*linked(outline.NOTEBOOKS), *linked(outline.NOTEBOOKS.parent / "solutions")], ids=lambda path: path.stem)  # fmt: skip
def test_links_to_the_glossary_find_their_term(path):
    anchors = {term.replace(" ", "-") for term in terms()}  # as JupyterLab makes them
    for cell in cells(path):
        if cell.cell_type == "markdown":
            for up, anchor in TERM.findall(cell.source):
                assert anchor in anchors, f"{anchor}: no such heading in notebooks/glossary.ipynb"
                if "solutions" not in path.parts:
                    assert (path.parent / up / "glossary.ipynb").is_file()
