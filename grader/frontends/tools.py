"""The notebook tools of the labs that are no training loops to make faster."""

from __future__ import annotations

from grader.frontends.notebook import NotebookLab
from grader.labs.lab import AnyLab

TOOLS: dict[type[AnyLab], type[NotebookLab]] = {}
