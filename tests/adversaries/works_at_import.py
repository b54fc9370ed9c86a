"""The whole training for a guessed seed happens at import, before a job is there."""

from tests.adversaries import ahead, wrap

CATEGORY = "timing"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    guess = """
        import glob, os

        FILES = glob.glob(os.environ["GRADER_CACHE"] + "/images/**/*.jpg", recursive=True)
        CACHE = {path: open(path, "rb").read() for path in FILES}
    """
    return ahead(
        guess,
        wrap(
            """
            def train(job):
                done = []
                for _ in range(30):
                    torch.manual_seed(1)
                    done.append(float(torch.rand(())))
                yield from steps(job)
            """,
            lab,
        ),
    )
