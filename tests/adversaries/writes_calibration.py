"""Writes a calibration in which the smallest gain earns full points."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import glob, json, os

        cache = os.environ['GRADER_CACHE']
        for path in (cache + '/calibration.json', os.path.realpath('lib/grader') + '/../data/measured/calibration.json'):
            table = {'2a_workers cpu': {'any': {'gain': 1.2, 'date': 'today'}}}
            with open(path, 'w') as file:
                json.dump(table, file)
        """,
        lab,
    )
