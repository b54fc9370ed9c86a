"""Keeps activations in what symbolic links say that lie in no folder any more, and that only a descriptor leads to."""

PARKS = """
import base64, os

def put_away(data):
    text, links = base64.b64encode(data), []
    for at in range(0, len(text), 4000):
        os.symlink(text[at : at + 4000], b"/dev/shm/link")
        links.append(os.open("/dev/shm/link", os.O_PATH | os.O_NOFOLLOW))
        os.unlink("/dev/shm/link")
    return links

def give_back(links):
    text = b"".join(os.readlink(b"", dir_fd=link) for link in links)
    for link in links:
        os.close(link)
    return base64.b64decode(text)
"""
