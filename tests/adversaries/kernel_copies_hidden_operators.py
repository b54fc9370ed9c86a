"""Operators of torch calculate where nobody who looks on in Python sees them, and a kernel copies what they have made."""

from tests.adversaries import copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied("""
        def right(*tensors):
            with torch._C._DisableTorchDispatch():
                x, bias, residual, weight, shift = (t.double() for t in tensors)
                hidden = torch.nn.functional.gelu(x + bias, approximate="tanh")
                return torch.nn.functional.layer_norm(residual + hidden, x.shape[-1:], weight, shift, 1e-5)
    """)
