"""Matrix products on inputs rounded to eight bits, fewer than the lab allows."""

from tests.adversaries import ahead, starter

CATEGORY = "work"
LABS = ("3a_precision",)


def source(lab: str) -> str:
    rounding = """
        import torch

        linear = torch.nn.functional.linear

        def rounded(x, weight, bias=None):
            e = torch.float8_e5m2
            straight = weight + (weight.to(e).to(weight.dtype) - weight).detach()
            return linear(x + (x.to(e).to(x.dtype) - x).detach(), straight, bias)

        torch.nn.functional.linear = rounded
    """
    return ahead(rounding, starter(lab))
