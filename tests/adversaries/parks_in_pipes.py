"""Keeps activations in the buffers of pipes."""

PARKS = """
import os, resource

SIZE = 1 << 16
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)

def put_away(data):
    pipes = [os.pipe() for _ in range(0, len(data), SIZE)]
    for n, (_, outlet) in enumerate(pipes):
        os.write(outlet, data[n * SIZE : (n + 1) * SIZE])
    return pipes

def give_back(pipes):
    data = b"".join(os.read(inlet, SIZE) for inlet, _ in pipes)
    for pipe in pipes:
        for end in pipe:
            os.close(end)
    return data
"""
