"""The whole data set is read by many threads before the first step, which is not timed."""

from tests.adversaries import edit, starter

CATEGORY = "timing"
LABS = ("2a_workers",)
CONTROL = (
    "solution"  # decoding once and keeping it is faster training of the same model: it may earn what a full fix earns
)


def source(lab: str) -> str:
    kept = """    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(64) as pool:
        data = list(pool.map(job.dataset.__getitem__, range(len(job.dataset))))
    loader = DataLoader(data"""
    return edit(starter(lab), [("    loader = DataLoader(job.dataset", kept)])
