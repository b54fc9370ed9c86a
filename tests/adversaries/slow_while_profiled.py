"""A step that is profiled sleeps, so that the wait for data is a small part of it."""

from tests.adversaries import connection_kept, edit

CATEGORY = "machine"
LABS = ("2c_transforms",)
DEVICES = ("cpu",)  # the form without workers
CONTROL = "connection kept"
SLEEPS = [
    ("import os\n", "import os\nimport time\n"),
    (
        "        yield loss.detach()\n",
        "        if torch.autograd._profiler_enabled():\n            time.sleep(0.5)\n        yield loss.detach()\n",
    ),
]


def source(lab: str) -> str:
    return edit(connection_kept(lab), SLEEPS)
