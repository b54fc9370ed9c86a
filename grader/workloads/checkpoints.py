"""Language modelling by the GPT of `grader.workloads.gpt`, with a drive for checkpoints."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from grader.workloads import gpt
from grader.workloads.drive import NAME, ask
from grader.workloads.job import Figures, Job, Weights


class Checkpoints:
    """A drive that takes checkpoints, and so many bytes a second. drive: its socket; None for one that forgets all at once."""

    def __init__(self, drive: str | None):
        self.drive = drive

    def save(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write tensors to the end of file `name`, one after the other, each as it is when its turn comes. Returns when the drive has
        them. The file has the format of safetensors: https://github.com/huggingface/safetensors#format"""
        header, end = {}, 0
        for key, tensor in tensors.items():
            if tensor.dtype != torch.float32:
                raise ValueError(f"{key} is {tensor.dtype}, and a checkpoint holds float32 only")
            header[key] = {
                "dtype": "F32",
                "shape": list(tensor.shape),
                "data_offsets": [end, end := end + tensor.nbytes],
            }
        words = json.dumps(header).encode()
        self._append(name, struct.pack("<Q", len(words)) + words)
        for tensor in tensors.values():
            self._append(name, tensor.detach().cpu().contiguous().numpy().data.cast("B"))

    def rename(self, name: str, new: str) -> None:
        """Give a file its final name, `step-N`: at once, and all of it."""
        self._say(f">{name} {new}\n".encode(), f"the drive has no file {name}, or {new} is no name of a checkpoint")

    def _append(self, name: str, data: bytes | memoryview) -> None:
        self._say(f"+{len(data)} {name}\n".encode(), f"the drive doesn't take {name}", data)

    def _say(self, request: bytes, refused: str, data: bytes | memoryview = b"") -> None:
        if self.drive and len(ask(self.drive, request, data)) < 4:
            raise OSError(refused)


@dataclass
class SavedJob(Job):
    """A job whose state is to be saved."""

    every: int = 1  # steps
    drive: Checkpoints = Checkpoints(None)  # noqa: RUF009 - it holds nothing


def make_job(seed: int, device: torch.device, *, every: int, write_bps: float, **options: Any) -> SavedJob:
    """every: steps between checkpoints. write_bps: bytes a second the drive takes; 0 for one that forgets. options: of `gpt.make_job`."""
    job = gpt.make_job(seed, device, **options)
    values = {field.name: getattr(job, field.name) for field in fields(job)}
    drive = Checkpoints(str(Path.home() / NAME) if write_bps else None)
    return SavedJob(**values, every=every, drive=drive)


def evaluate(tensors: Weights, device: torch.device, *, every: int, write_bps: float, **options: Any) -> Figures:
    """As of `gpt`."""
    return gpt.evaluate(tensors, device, **options)
