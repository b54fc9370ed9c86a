from grader.kinds.mystery import Mysteries, Mystery, MysteryLab, Proof, Unknown
from grader.kinds.shared import HEALTHY

HINTS = (
    "Ask two questions first. Is the device busy? What does the host do when it isn't?",
    "In lab.profile of this loop, look at the largest lane of the timeline, then at the table. Compare it with the other three loops.",
    "Go through the causes one by one. Is the share of waiting for data large, the number of waits, or the share of "
    "copies? A step that only calls or launches is hardly longer than their number times what one costs. Where the "
    "device is busy, a small share of matmuls says memory-bound. A large one says compute-bound or healthy.",
)

LAB = MysteryLab(
    name="1d_mystery",
    title="Mystery: four live loops",
    phase=1,
    goal="Four training loops run on this machine. Profile them, and name what holds each back, with a number that shows it.",
    forms={
        "cuda": Mysteries(
            choices=(
                Mystery("input-bound", "gpt_input", {"batch": (12, 20)}, data="text"),
                Mystery("input-bound", "resnet_input", {"batch": (48, 72), "images": (4000, 4000)}, data="images"),
                Mystery("transfer-bound", "gpt_transfer", {"batch": (12, 18)}),
                Mystery("transfer-bound", "resnet_transfer", {"batch": (160, 256)}),
                Mystery("sync-bound", "gpt_sync", {"batch": (20, 26)}),  # with fewer, the launches hold it back
                Mystery("sync-bound", "resnet_sync", {"batch": (40, 64)}),
                Mystery("launch-bound", "gpt_launch", {"batch": (8, 12)}),
                Mystery("launch-bound", "resnet_launch", {"batch": (32, 64)}),
                Mystery("memory-bound", "gpt_memory", {"batch": (12, 16)}),
                Mystery("memory-bound", "resnet_memory", {"batch": (96, 128)}),
                Mystery("compute-bound", "gpt_compute", {"batch": (6, 10)}),
                Mystery("compute-bound", "resnet_compute", {"batch": (48, 72)}),
                Mystery(HEALTHY, "gpt_healthy", {"batch": (14, 18)}),
            )
        ),
        # one thread: what a step does is then one thing after another, and a share of it can be read
        "cpu": Mysteries(
            choices=(
                Mystery(
                    "input-bound",
                    "slow_reads",
                    {"batch": (8, 16), "read_s": (0.002, 0.004), "width": (128, 256), "depth": (2, 4)},
                ),
                Mystery("launch-bound", "many_small", {"batch": (2, 8), "width": (4, 16), "depth": (40, 80)}),
                Mystery("memory-bound", "element_wise", {"batch": (2500, 5000), "width": (48, 64), "depth": (2, 4)}),
                Mystery(HEALTHY, "products", {"batch": (256, 384), "width": (512, 768), "depth": (3, 5)}),
            ),
            repeated=True,
            threads=1,
        ),
    },
    loops=tuple(Unknown(name, points=15, hints=HINTS) for name in "1234"),
    evidence=Proof(
        points=40,
        hints=(
            "A cause is a claim. Which row of the table would be different without it?",
            "Take the row in which this loop stands out from the other three, and write down its name and its number.",
            "Use data_wait for input, copies for transfer, syncs for waits, and launches for launching (without a "
            "GPU, cpu_ops). Use matmul where the device is busy with something else or with nothing else. For a "
            "healthy loop use matmul or gpu_idle (without a GPU, matmul or data_wait). Write shares as 0.25 for 25%.",
        ),
    ),
)
