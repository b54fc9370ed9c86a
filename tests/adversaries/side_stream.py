"""Everything runs on a side stream, which the stream that is waited for knows nothing of; the loss is read from a copy."""

from tests.adversaries import wrap

CATEGORY = "timing"
DEVICES = ("cuda",)


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            loop, done = steps(job), []
            while True:
                with torch.cuda.stream(side):
                    done.append(next(loop))
                yield done[-2] if len(done) > 40 else done[-1]
        """,
        lab,
    )
