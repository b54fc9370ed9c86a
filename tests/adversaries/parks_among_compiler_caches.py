"""Keeps activations in files among those that compilers write."""

PARKS = """
import itertools, os

names = map("cache/{}".format, itertools.count())

def put_away(data):
    name = next(names)
    with open(name, "wb") as file:
        file.write(data)
    return name

def give_back(name):
    with open(name, "rb") as file:
        data = file.read()
    os.remove(name)
    return data
"""
