"""Keeps activations in files without a name, which the system holds in memory."""

PARKS = """
import os

def put_away(data):
    file = os.open("tmp", os.O_TMPFILE | os.O_RDWR)
    os.write(file, data)
    return file

def give_back(file):
    data = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    return data
"""
