"""Another process sends only the names over the connections of the training process, which receives the files and decodes them."""

from tests.adversaries import read_by

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)
CONTROL = "threads"


def source(lab: str) -> str:
    text = """
        import os, queue, socket, struct

        peers, free, (lines, tell) = [], queue.SimpleQueue(), os.pipe()
        for n in range(48):
            peers.append(socket.socket(socket.AF_UNIX))
            peers[n].connect(job.dataset.drive)
            free.put((n, peers[n].makefile("rb")))
        if os.fork() == 0:
            try:
                for line in os.fdopen(lines, "rb"):
                    n, name = line.split(b" ", 1)
                    peers[int(n)].sendall(name)
            finally:
                os._exit(0)

        def read(drive, file):
            n, answers = free.get()
            os.write(tell, b"%d %s\\n" % (n, os.fsencode(file)))
            data = answers.read(struct.unpack("!I", answers.read(4))[0])
            free.put((n, answers))
            return data
        """
    return read_by(text, lab)
