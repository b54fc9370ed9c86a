"""The kinds of events in a trace of torch.profiler. Imports no numpy, see `decode`."""

from __future__ import annotations

import re

# Categories of Kineto that have a meaning here; an event of any other is OTHER.
CATEGORIES = (
    "other",
    "cpu_op",
    "user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    "gpu_user_annotation",
    "overhead",
)
# Their codes in `Trace.category`, in this order.
OTHER, CPU_OP, ANNOTATION, PYTHON, RUNTIME, DRIVER, KERNEL, MEMCPY, MEMSET, SYNC, GPU_ANNOTATION, OVERHEAD = range(12)
SPAN = 255  # of the whole recording: no event
CODES = {name: code for code, name in enumerate(CATEGORIES)}
CODES["Kernel"] = KERNEL  # spelling of releases before 1.12
CODES["Memcpy"], CODES["Memset"], CODES["Runtime"], CODES["Operator"] = MEMCPY, MEMSET, RUNTIME, CPU_OP
CODES["Trace"] = SPAN

STEP = re.compile(r"ProfilerStep#\d+")
# Host calls that put work on the GPU.
KERNEL_LAUNCH = re.compile(r"(cuda|cu|hip|hipExt|hipModule|hipExtModule)Launch(Cooperative)?Kernel")
GRAPH_LAUNCH = re.compile(r"(cuda|cu|hip)GraphLaunch")
COPY_LAUNCH = re.compile(r"(cuda|cu|hip)Memcpy")
MEMSET_LAUNCH = re.compile(r"(cuda|cu|hip)Memset")  # some leave no GPU event in sound traces, so none is missed
