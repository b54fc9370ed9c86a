"""Keeps activations in files that only a call which does not end has open."""

PARKS = """
import fcntl, os, threading

SIZE = 1 << 20

def put_away(data):
    pipes = []
    for at in range(0, len(data), SIZE):
        file, (inlet, outlet) = os.memfd_create("mine"), os.pipe()
        os.write(file, data[at : at + SIZE])
        fcntl.fcntl(outlet, fcntl.F_SETPIPE_SZ, 4096)
        os.write(outlet, b"x")
        sender = threading.Thread(target=os.sendfile, args=(outlet, file, 0, SIZE), daemon=True)
        sender.start()
        os.close(file)
        pipes.append((inlet, sender))
    return pipes

def give_back(pipes):
    data = []
    for inlet, sender in pipes:
        os.read(inlet, 1)
        while sender.is_alive():
            data.append(os.read(inlet, SIZE))
    return b"".join(data)
"""
