"""Operators of torch calculate in another thread, and a kernel of Triton's copies what they have made."""

from tests.adversaries import copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied("""
        import threading


        def right(*tensors):
            box = []

            def work():
                x, bias, residual, weight, shift = (t.double() for t in tensors)
                hidden = torch.nn.functional.gelu(x + bias, approximate="tanh")
                box.append(torch.nn.functional.layer_norm(residual + hidden, x.shape[-1:], weight, shift, 1e-5))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return box[0]
    """)
