"""The data set reads every second image only and copies it for its neighbour."""

from tests.adversaries import edit, starter

CATEGORY = "work"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    cheap = """
    class Half(torch.utils.data.Dataset):
        def __len__(self):
            return len(job.dataset)

        def __getitem__(self, index):
            image, _ = kept[0] if kept and len(kept) % 2 else job.dataset[index]
            kept.insert(0, (image, 0))
            return image, int(job.dataset.labels[index])

    kept = []
"""
    return edit(starter(lab), [("    loader = DataLoader(job.dataset", cheap + "    loader = DataLoader(Half()")])
