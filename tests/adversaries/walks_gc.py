"""Finds the harness among the garbage collector's objects and replaces its evaluation and weights."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import gc

        harness = next(o for o in gc.get_objects() if type(o).__name__ == 'Harness')
        weights, first = harness.weights, []

        def old_weights(file):
            if not first:
                weights(file)
                with open(f'exchange/{file}', 'rb') as written:
                    first.append(written.read())
            else:
                with open(f'exchange/{file}', 'wb') as new:
                    new.write(first[0])

        harness.weights = old_weights
        """,
        lab,
    )
