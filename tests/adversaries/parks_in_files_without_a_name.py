"""Keeps activations in files without a name, which the system holds in memory."""

from tests.adversaries import parked

CATEGORY = "machine"
LABS = ("3h_fit",)
DEVICES = ("cpu",)  # whose budget is one of main memory
CONTROL = "all at once"


def source(lab: str) -> str:
    return parked(
        """
        import os

        def put_away(data):
            file = os.open("tmp", os.O_TMPFILE | os.O_RDWR)
            os.write(file, data)
            return file

        def give_back(file):
            data = os.pread(file, os.fstat(file).st_size, 0)
            os.close(file)
            return data
        """,
        lab,
    )
