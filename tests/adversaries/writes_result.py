"""Writes a result with full points wherever results are found or might be looked for."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import glob, json, os

        full = {'score': 100, 'checks': [{'name': 'throughput', 'points': 50, 'status': 'PASS'}]}
        written = []
        places = ['.', '..', '/tmp', '/root', os.path.realpath('lib/grader/..')] + glob.glob('/tmp/*') + glob.glob('/root/*')
        for place in places:
            try:
                with open(os.path.join(place, '2a_workers.result.json'), 'w') as file:
                    json.dump(full, file)
                written.append(place)
            except OSError:
                pass
        return written
        """,
        lab,
    )
