"""The loss is a tensor subclass that does the step's work only when it is read."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, arguments=(), options=None):
                return torch.ones(())


        def train(job):
            while True:
                yield torch.ones(()).as_subclass(Lazy)
        """,
        lab,
    )
