"""Another process reads the files and puts their bytes into shared memory, where the training process takes and decodes them."""

from tests.adversaries import read_by

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)
CONTROL = "threads"


def source(lab: str) -> str:
    text = """
        import mmap, os, queue, struct, threading
        from grader.workloads import drive as drives

        count, room = 48, 1 << 20
        memory, free = mmap.mmap(-1, count * room), queue.SimpleQueue()
        asks, answers = [os.pipe() for _ in range(count)], [os.pipe() for _ in range(count)]
        for n in range(count):
            free.put(n)

        def serve(n):
            for line in os.fdopen(asks[n][0], "rb"):
                data = drives.read(job.dataset.drive, os.fsdecode(line[:-1]))
                memory[n * room : n * room + len(data)] = data
                os.write(answers[n][1], struct.pack("I", len(data)))

        if os.fork() == 0:
            try:
                readers = [threading.Thread(target=serve, args=(n,)) for n in range(count)]
                for each in readers:
                    each.start()
                for each in readers:
                    each.join()
            finally:
                os._exit(0)

        def read(drive, file):
            n = free.get()
            os.write(asks[n][1], os.fsencode(file) + b"\\n")
            size = struct.unpack("I", os.read(answers[n][0], 4))[0]
            data = memory[n * room : n * room + size]
            free.put(n)
            return data
        """
    return read_by(text, lab)
