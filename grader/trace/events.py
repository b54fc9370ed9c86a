"""The kinds of events in a trace of torch.profiler. Imports no numpy, see `decode`."""

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
# What other accelerators call theirs: Meta's MTIA, Intel's Gaudi, and what Kineto names "runtime" or "driver" (Intel's XPU, a
# "privateuse1" backend).
CODES["mtia_ccp_events"], CODES["mtia_workloadd"], CODES["hpu_op"] = KERNEL, RUNTIME, RUNTIME


def code_of(category: str | None) -> int:
    """The code of any category."""
    if category in CODES:
        return CODES[category]
    if category is not None and category.endswith(("_runtime", "_driver")):
        return RUNTIME if category.endswith("_runtime") else DRIVER
    return OTHER


# Events of a device that are neither kernels nor copies: MTIA's.
NO_WORK = re.compile(r"event_(record|wait)$")
DMA = re.compile(r"dma_request$")

STEP = re.compile(r"ProfilerStep#\d+")
# What PyTorch itself marks with `record_function`, and `grader run` for want of it.
MARK = re.compile(
    rf"{STEP.pattern}$|Python GC$|Optimizer\.(step|zero_grad)#|enumerate\(Data|DistributedDataParallel\.forward$"
)
# Host calls that put work on the GPU: CUDA's and HIP's, then Intel's (Unified Runtime, Level Zero, SYCL), Ascend's, MTIA's, Cambricon's, Gaudi's.
KERNEL_LAUNCH = re.compile(
    r"[a-zA-Z]+Launch(Cooperative)?Kernel"  # of any vendor
    r"|(ur|pi)Enqueue(Cooperative)?KernelLaunch|zeCommandListAppendLaunch(Cooperative)?Kernel|sycl\w*submit"
    r"|(AscendCL@)?(aclrtLaunchKernel|aclopExecute)|Node@launch|runFunction - job_prep|cnInvokeKernel|synLaunch"
)
GRAPH_LAUNCH = re.compile(r"[a-z]+GraphLaunch|urCommandBufferEnqueue|urEnqueueCommandBuffer|zeCommandQueueExecute")
COPY_LAUNCH = re.compile(
    r"[a-z]+Memcpy|(ur|pi)Enqueue(USM|Mem|Mem\w+)?Memcpy|(ur|pi)EnqueueMem(Buffer|Image)(Copy|Read|Write)"
    r"|zeCommandListAppend(Memory|Image)Copy|(AscendCL@)?aclrtMemcpy|enqueueCommand memcpy"
)
# Some leave no GPU event in sound traces, so none is missed.
MEMSET_LAUNCH = re.compile(
    r"(cuda|cu|hip)Memset|(ur|pi)Enqueue(USM|Mem\w*)Fill|zeCommandListAppendMemoryFill|(AscendCL@)?aclrtMemset"
)
# Their kernels may begin before the one before them ends: branches of a graph, programmatic dependent launch.
OVERLAPPING_LAUNCH = re.compile(rf"{GRAPH_LAUNCH.pattern}|(cuda|cu)LaunchKernelEx")
LAUNCHES = re.compile("|".join(p.pattern for p in (KERNEL_LAUNCH, GRAPH_LAUNCH, COPY_LAUNCH, MEMSET_LAUNCH)))
# Between these two a call is noted in a graph, and runs nothing.
CAPTURE_BEGIN = re.compile(r"(cuda|cu|hip)StreamBeginCapture")
CAPTURE_END = re.compile(r"(cuda|cu|hip)StreamEndCapture")
CAPTURE_ASKED = re.compile(r"(cuda|cu|hip)Stream(GetCaptureInfo|IsCapturing)")
# Host calls that return once the GPU has finished something.
SYNC_CALL = re.compile(
    r"[a-z]+(Stream|Device|Event|Ctx|Context|Queue)Sync(hronize)?"
    r"|(ur|pi)(EventWait|EventsWait|QueueFinish)|ze\w*(Host)?Synchronize|(AscendCL@)?aclrtSynchronize|synchronize(Stream|Event)?$"
)
# That take and give back memory; PyTorch's own allocator makes them rare.
ALLOCATION = re.compile(
    r"(cuda|hip)(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister)|Mem(Create|Map|Unmap|Release|SetAccess))"
    r"|cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|HostAlloc)|(AscendCL@)?aclrt(Malloc|Free)"
)
SYNC_DEVICE = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
