"""Finds the harness among the garbage collector's objects and replaces its evaluation and weights."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import gc

        harness = next(o for o in gc.get_objects() if type(o).__name__ == 'Harness')
        weights, calls = harness.weights, []

        def old_weights(file):
            calls.append(file)
            if len(calls) == 1:
                weights(file)
            else:
                with open('exchange/first.safetensors', 'rb') as old, open(f'exchange/{file}', 'wb') as new:
                    new.write(old.read())

        harness.weights = old_weights
        """,
        lab,
    )
