"""Another process connects and asks, and hands the connection on: the training process receives the files and decodes them."""

from tests.adversaries import read_by

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)
CONTROL = "threads"


def source(lab: str) -> str:
    text = """
        import os, queue, socket, struct

        ends, free, (lines, tell) = [socket.socketpair() for _ in range(48)], queue.SimpleQueue(), os.pipe()
        for n in range(len(ends)):
            free.put(n)
        if os.fork() == 0:
            try:
                for line in os.fdopen(lines, "rb"):
                    n, name = line.split(b" ", 1)
                    with socket.socket(socket.AF_UNIX) as one:
                        one.connect(job.dataset.drive)
                        one.sendall(name)
                        socket.send_fds(ends[int(n)][1], [b"x"], [one.fileno()])
            finally:
                os._exit(0)

        def read(drive, file):
            n = free.get()
            os.write(tell, b"%d %s\\n" % (n, os.fsencode(file)))
            descriptor = socket.recv_fds(ends[n][0], 1, 1)[1][0]
            free.put(n)
            with os.fdopen(descriptor, "rb") as answers:
                return answers.read(struct.unpack("!I", answers.read(4))[0])
        """
    return read_by(text, lab)
