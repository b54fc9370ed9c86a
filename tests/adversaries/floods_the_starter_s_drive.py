"""Has the starter's drive look for long chains of links, so many that it is busy with them in the starter's turns."""

from tests.adversaries import DRIVES, LINKS, ahead, once

CATEGORY = "machine"
LABS = ("2a_workers",)
DEVICES = ("cpu",)

FLOOD = """
import socket, threading, time

def flood(line, paths, count=48):
    peers = []
    while True:
        for path in paths * (len(peers) < count):
            for _ in range(count):
                one = socket.socket(socket.AF_UNIX)
                one.settimeout(0.2)
                try:
                    one.connect(path)
                    one.setblocking(False)
                    peers.append(one)
                except OSError as error:
                    print(path, error, flush=True)
                    break
        for one in list(peers):
            try:
                while True:
                    one.send(line)
            except BlockingIOError:
                pass
            except OSError:
                peers.remove(one)
        time.sleep(0.2)
"""


def source(lab: str) -> str:
    text = """
        line = (long_way(str(job.dataset.files[0])) + "\\n" + str(job.dataset.files[0]) + "\\n").encode() * 50
        threading.Thread(target=flood, args=(line, drives()), daemon=True).start()
        """
    return ahead(DRIVES + LINKS + FLOOD, once(text, lab))
