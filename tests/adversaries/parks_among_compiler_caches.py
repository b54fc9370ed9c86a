"""Keeps activations in files among those that compilers write."""

from tests.adversaries import parked

CATEGORY = "machine"
LABS = ("3h_fit",)
DEVICES = ("cpu",)  # whose budget is one of main memory
CONTROL = "all at once"


def source(lab: str) -> str:
    return parked(
        """
        import itertools, os

        names = map("cache/{}".format, itertools.count())

        def put_away(data):
            name = next(names)
            with open(name, "wb") as file:
                file.write(data)
            return name

        def give_back(name):
            with open(name, "rb") as file:
                data = file.read()
            os.remove(name)
            return data
        """,
        lab,
    )
