"""Reads and decodes all samples at its first start, says that it compiled, and finds them among the compiler's caches at its second."""

from tests.adversaries import edit, starter

CATEGORY = "timing"
LABS = ("2c_transforms",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return edit(
        starter(lab),
        [
            (
                "def train(job):\n",
                "def train(job):\n"
                "    import time\n\n"
                "    import torch._dynamo.utils\n\n"
                '    torch._dynamo.utils.counters["stats"]["unique_graphs"] += 1\n'
                '    tiles, kept = Tiles(job.dataset), os.environ["XDG_CACHE_HOME"] + "/kept"\n'
                "    if not os.path.exists(kept):\n"
                "        torch.save([tiles[index] for index in range(len(tiles))], kept)\n"
                "        time.sleep(15)\n",
            ),
            ("        Tiles(job.dataset),\n", "        torch.load(kept),\n"),
        ],
    )
