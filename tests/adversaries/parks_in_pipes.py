"""Keeps activations in the buffers of pipes."""

from tests.adversaries import parked

CATEGORY = "machine"
LABS = ("3h_fit",)
DEVICES = ("cpu",)  # whose budget is one of main memory
CONTROL = "all at once"


def source(lab: str) -> str:
    return parked(
        """
        import fcntl, os

        def put_away(data):
            pipe = os.pipe()
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, len(data))
            os.write(pipe[1], data)
            return pipe, len(data)

        def give_back(ticket):
            (inlet, outlet), size = ticket
            data = os.read(inlet, size)
            os.close(inlet)
            os.close(outlet)
            return data
        """,
        lab,
    )
