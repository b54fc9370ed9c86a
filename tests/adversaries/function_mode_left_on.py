"""A function mode stays switched on around the yield, so that the harness's own tensor operations are the learner's."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        from torch.overrides import TorchFunctionMode


        class Mode(TorchFunctionMode):
            def __torch_function__(self, function, types, arguments=(), options=None):
                if getattr(function, "__name__", "") in ("stack", "tolist", "clone"):
                    return torch.full((), 1.0)
                return function(*arguments, **(options or {}))


        def train(job):
            first = [loss for loss, _ in zip(steps(job), range(14))]
            yield from first
            with Mode():
                while True:
                    yield first[-1]
        """,
        lab,
    )
