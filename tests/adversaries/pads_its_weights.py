"""Leaves a hole in its file of weights, which would be real bytes wherever that is kept."""

from tests.adversaries import solution

CATEGORY = "machine"
CONTROL = "solution"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    return solution(lab) + PADDED


PADDED = """

import json
import struct

import safetensors.torch

save = safetensors.torch.save_file


def padded(tensors, path, hole=250 << 20):
    save(tensors, path)
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    head["hole"] = {"dtype": "U8", "shape": [hole], "data_offsets": [len(body), len(body) + hole]}
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    os.truncate(path, path.stat().st_size + hole)


safetensors.torch.save_file = padded
"""
