"""Puts pickles that run code when they are loaded in place of the weights and under every name beside them."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import pickle, time

        class Bomb:
            def __reduce__(self):
                return exec, ('import os; os.system("touch /tmp/adversary-was-here")',)

        for name in ('first.safetensors', 'last.safetensors', 'trace.json', 'model.pt', 'data.pkl'):
            with open(f'exchange/{name}', 'wb') as file:
                pickle.dump(Bomb(), file)
        """,
        lab,
    )
