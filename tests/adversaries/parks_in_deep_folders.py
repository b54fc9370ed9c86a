"""Keeps activations in files below so many folders that no path is long enough to name them."""

PARKS = """
import itertools, os

def below(folder):
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=folder)
        folder = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
    return folder

folder, names = below(os.open("/dev/shm", os.O_RDONLY)), map(str, itertools.count())

def put_away(data):
    name = next(names)
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder), "wb") as file:
        file.write(data)
    return name

def give_back(name):
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        data = file.read()
    os.unlink(name, dir_fd=folder)
    return data
"""
