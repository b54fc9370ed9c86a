"""A second process calculates, and a kernel of Triton's copies what comes back through memory that both have."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        """

    import mmap
    import os

    calculated = right


    def right(*tensors):
        shared = mmap.mmap(-1, 8 * tensors[0].numel())
        if not (pid := os.fork()):
            shared[:] = calculated(*tensors).numpy().tobytes()
            os._exit(0)
        os.waitpid(pid, 0)
        return torch.frombuffer(shared, dtype=torch.float64).view(tensors[0].shape)
        """,
    )
