"""Opens every gradebook it finds and gives itself full marks."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import glob, sqlite3

        for path in glob.glob('/root/**/gradebook.db', recursive=True) + ['/tmp/gradebook.db', '../gradebook.db']:
            base = sqlite3.connect(path)
            base.execute('UPDATE grade SET auto_score = 100')
            base.commit()
        """,
        lab,
    )
