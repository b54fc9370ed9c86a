"""The C library calculates number by number, and a kernel of Triton's copies what it has made."""

from tests.adversaries import copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied("""
        import ctypes

        libm = ctypes.CDLL("libm.so.6")
        libm.tanh.restype = libm.sqrt.restype = ctypes.c_double
        libm.tanh.argtypes = libm.sqrt.argtypes = [ctypes.c_double]


        def right(*tensors):
            x, bias, residual, weight, shift = (t.double().tolist() for t in tensors)
            rows = []
            for a, r in zip(x, residual):
                h = [i + j for i, j in zip(a, bias)]
                y = [k + i / 2 * (1 + libm.tanh(0.7978845608028654 * (i + 0.044715 * i**3))) for i, k in zip(h, r)]
                mean = sum(y) / len(y)
                scale = libm.sqrt(sum((i - mean) ** 2 for i in y) / len(y) + 1e-5)
                rows.append([(i - mean) / scale * w + s for i, w, s in zip(y, weight, shift)])
            return torch.tensor(rows, dtype=torch.float64)
    """)
