"""Waiting for the GPU is switched off: a reply would come before the work is done."""

from tests.adversaries import ahead, starter

CATEGORY = "timing"


def source(lab: str) -> str:
    synchronize = """
        import torch

        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.Stream.synchronize = lambda self: None
        torch.cuda.current_stream = lambda device=None: type("Stream", (), {"synchronize": lambda self: None})()
    """
    return ahead(synchronize, starter(lab))
