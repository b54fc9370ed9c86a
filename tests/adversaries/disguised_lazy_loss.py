"""A lazy tensor subclass that says that its class is torch.Tensor."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        class Lazy(torch.Tensor):
            __class__ = torch.Tensor

            def clone(self):
                return torch.full((), 2.3)


        def train(job):
            while True:
                yield torch.ones(()).as_subclass(Lazy)
        """,
        lab,
    )
