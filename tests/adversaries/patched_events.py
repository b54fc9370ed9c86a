"""torch.cuda.Event says that everything took a microsecond."""

from tests.adversaries import ahead, starter

CATEGORY = "timing"


def source(lab: str) -> str:
    events = """
        import torch

        torch.cuda.Event.elapsed_time = lambda self, other: 0.001
        torch.cuda.Event.synchronize = lambda self: None
        torch.cuda.Event.query = lambda self: True
    """
    return ahead(events, starter(lab))
