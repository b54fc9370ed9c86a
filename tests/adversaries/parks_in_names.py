"""Keeps activations in the names of one file: each is a link to it, and the file is empty."""

PARKS = """
import base64, itertools, os

folders, EACH = map("/dev/shm/{}".format, itertools.count()), 183

def put_away(data):
    folder = next(folders)
    os.mkdir(folder)
    with open(folder + "/file", "wb"):
        pass
    for n in range(0, len(data), EACH):
        os.link(folder + "/file", folder + "/%08x" % n + base64.urlsafe_b64encode(data[n : n + EACH]).decode())
    return folder

def give_back(folder):
    names = sorted(name for name in os.listdir(folder) if name != "file")
    for name in (*names, "file"):
        os.unlink(folder + "/" + name)
    os.rmdir(folder)
    return b"".join(base64.urlsafe_b64decode(name[8:]) for name in names)
"""
