"""The starter on all cores: PyTorch gets as many threads as there are, where the starter has one and a CPU stands for a GPU."""

from tests.adversaries import edit, starter

CATEGORY = "machine"
LABS = ("2j_checkpoint", "3f_attention", "3n_lengths", "4c_unet", "4f_your_repository")
DEVICES = ("cpu",)


def source(lab: str) -> str:
    threads = "def train(job):\n    import os\n\n    torch.set_num_threads(len(os.sched_getaffinity(0)))\n"
    return edit(starter(lab), [("def train(job):\n", threads)])
