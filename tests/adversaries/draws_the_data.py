"""The samples are drawn at import by the course's own generator, which nobody times, and no file is ever read."""

from tests.adversaries import edit, solution

CATEGORY = "timing"
LABS = ("2d_formats",)

DRAWN = """from grader.data import tiles as generator

COUNT = {"cpu": 2000, "cuda": 20000}["cuda" if torch.cuda.is_available() else "cpu"]


def prepare(dataset, folder):
    with open(folder / SHARD, "wb") as shard:
        shard.writelines(DRAWN)


with ThreadPoolExecutor() as pool:
    DRAWN = list(pool.map(lambda index: generator.draw(index, 3, generator.FILE_SIZE).tobytes(), range(COUNT)))
"""


def source(lab: str) -> str:
    text = solution(lab)
    begin, end = text.index("def prepare"), text.index("def train")
    return edit(text, [(text[begin:end], DRAWN + "\n\n")])
