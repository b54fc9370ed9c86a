"""Puts modules named like those of the grader and its libraries where they are looked for first."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        for name in ('json', 'safetensors', 'msgspec', 'grader', 'PIL'):
            for folder in ('.', 'lib', '/tmp'):
                try:
                    with open(f'{folder}/{name}.py', 'w') as file:
                        file.write('print("attack: shadowed")')
                except OSError as error:
                    print('attack raised', error)
        """,
        lab,
    )
