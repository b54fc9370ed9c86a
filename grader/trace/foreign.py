"""What a file is that torch.profiler did not write, and what to do with it: one sentence each."""

import re
from pathlib import PurePath

FIRST = 1 << 18  # bytes that are looked at
RECORD = "torch.profiler writes what is read here: profile(...).export_chrome_trace('trace.json.gz')"
JAX = (
    "a trace of JAX or TensorFlow (XLA), not of torch.profiler: open it with XProf (TensorBoard's profile tab), or with "
    "Perfetto"
)
LINUX = "a trace of Linux or Android (ftrace, systrace), not of torch.profiler: open it at ui.perfetto.dev"
NSYS = "a trace of Nsight Systems turned into JSON: look at the report with nsys stats"

# What a file that is no JSON begins with.
MAGIC = (
    (rb"SQLite format 3\x00(?s:.*)CUPTI_ACTIVITY", "an SQLite export of Nsight Systems: look at it with nsys stats"),
    (rb"SQLite format 3\x00(?s:.*)(rocpd|rocprof)", "a database of rocprofv3: look at it with rocpd, or with Perfetto"),
    (rb"SQLite format 3\x00", "an SQLite database, such as Nsight Systems or rocprofv3 export"),
    (rb"NVR\x00", "a report of Nsight Compute: open it with ncu-ui"),
    (rb"(?s:.{0,4096})QuadD", "a report of Nsight Systems: look at it with nsys stats, or open it with nsys-ui"),
    (rb"\s{0,999}<", "an HTML page or XML"),
    (rb"\x80[\x02-\x05]", "a Python pickle, such as a memory snapshot: open that at pytorch.org/memory_viz"),
    (rb"PK\x03\x04", "a zip archive: unpack it first"),
    (rb"(?s:.{257})ustar", "a tar archive: unpack it first"),
    (rb"\x1f\x8b", "compressed by gzip twice: unpack it once (gunzip)"),
    (rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff|[\[{]\x00\x00\x00", "text in UTF-32: save it as UTF-8"),
    (
        rb"\xff\xfe|\xfe\xff|[\[{]\x00|\x00[\[{]",
        "text in UTF-16, as Windows' PowerShell writes it, to be saved as UTF-8",
    ),
    (
        rb"\x28\xb5\x2f\xfd",
        "compressed by zstd, which Python reads from 3.14 on: unpack it first (zstd -d), or pip install backports.zstd",
    ),
    (rb"\xfd7zXZ\x00", "compressed by xz: unpack it first (unxz)"),
    (rb"BZh\d", "compressed by bzip2: unpack it first (bunzip2)"),
    (rb"7z\xbc\xaf|Rar!", "an archive of 7z or RAR: unpack it first"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4: unpack it first (lz4 -d)"),
    (rb"version https://git-lfs", "where Git LFS puts a file, not the file itself: get it with git lfs pull"),
    (rb"# tracer:", LINUX),
    (rb"\x7fELF", "a program"),
    (rb"%PDF", "a PDF"),
    (rb"\x89PNG|\xff\xd8\xff", "a picture"),
    (rb"(?s:.{8,40})brain\.Event:", "an event file of TensorBoard: open it with TensorBoard"),
    (
        rb"[^\n\x00]{1,999};[^\n\x00]{1,999} \d{1,9}\r?\n",
        "collapsed stacks, as py-spy writes with --format raw: open them at speedscope.app",
    ),
    (rb"[^\n\x00,]{1,200},[^\n\x00]{1,999},[^\n\x00]{1,999}\n", "a table (CSV)"),
    (rb"\n(?s:.{0,2000})(/host:|/device:|hlo_|/job:)", "an XPlane file of JAX or TensorFlow: open it with XProf"),
    (rb"\n[\x00-\xff]{1,4}[\x08-\x7a]", "a protobuf, probably of Perfetto: open it at ui.perfetto.dev"),
)
SUFFIXES = {
    ".nsys-rep": "a report of Nsight Systems: look at it with nsys stats, or open it with nsys-ui",
    ".qdrep": "a report of Nsight Systems: look at it with nsys stats, or open it with nsys-ui",
    ".qdstrm": "unfinished data of Nsight Systems: QdstrmImporter makes a report of it",
    ".ncu-rep": "a report of Nsight Compute: open it with ncu-ui",
    ".pftrace": "a protobuf of Perfetto: open it at ui.perfetto.dev",
    ".perfetto-trace": "a protobuf of Perfetto: open it at ui.perfetto.dev",
    ".xplane.pb": "an XPlane file of JAX or TensorFlow: open it with XProf",
}
# JSON without traceEvents, by its keys.
DOCUMENTS = (
    (
        rb'"nodes"\s{0,9}:',
        rb'"schema"\s{0,9}:',
        "an execution trace (ExecutionTraceObserver, Chakra), which has no times of a GPU",
    ),
    (
        rb'"rocprofiler-sdk-tool"',
        rb"",
        "a JSON of rocprofv3: record again with rocprofv3 --output-format pftrace for Perfetto",
    ),
    (
        rb"speedscope",
        rb'"profiles"\s{0,9}:',
        "a profile for speedscope, as py-spy writes it: open it at speedscope.app",
    ),
    (rb'"nbformat"\s{0,9}:', rb'"cells"\s{0,9}:', "a Jupyter notebook"),
    (rb'"segments"\s{0,9}:', rb'"device_traces"\s{0,9}:', "a memory snapshot: open it at pytorch.org/memory_viz"),
    (
        rb"\A\s{0,99}\[\s{0,99}\[\s{0,99}-?\d",
        rb"",
        "a list of numbers, such as a memory timeline's (export_memory_timeline)",
    ),
    (rb'"meta"\s{0,9}:', rb'"libs"\s{0,9}:', "a profile of a browser (Firefox): open it at profiler.firefox.com"),
    (rb'"log"\s{0,9}:\s{0,9}\{', rb'"entries"\s{0,9}:', "a HAR file of a browser"),
    (
        rb'"nodes"\s{0,9}:',
        rb'"callFrame"|"timeDeltas"',
        "a profile of V8 (Node.js, Chrome): open it in Chrome's DevTools",
    ),
    (rb'"(NvtxEvent|CudaEvent|TraceProcessEvent)"', rb"", NSYS),
    (
        rb'\A\{[^\n]{0,999}"ph"[^\n]{0,999}\}\s{0,9}\n\s{0,9}\{',
        rb"",
        "JSON with an event a line: put commas between them, and [ ] around",
    ),
)
# Chrome traces, by what is in their events or beside them.
WRITERS = (
    (rb'"hlo_(op|module)"|"/device:|"/host:|"XLA Ops"|"TensorFlow Ops"|"tf_op"|"/job:|"run_id"\s{0,9}:', JAX),
    (
        rb'"cat"\s{0,9}:\s{0,9}"(checkTypes|checkSourceFile)"',
        "a trace of the TypeScript compiler (tsc --generateTrace), not of torch.profiler",
    ),
    (
        rb'"(cat|ph)"\s{0,9}:\s{0,9}"[^"]*(devtools|blink|v8|toplevel|cc,|netlog|disabled-by-default|renderer|loading|__metadata)',
        "a trace of a browser (Chrome's DevTools), not of torch.profiler: open it there, under Performance",
    ),
    (rb'"cat"\s{0,9}:\s{0,9}"py-spy"', "a profile of py-spy, not of torch.profiler: open it with Perfetto"),
    (rb"viztracer_metadata|\"FEE\"", "a trace of VizTracer, not of torch.profiler: open it with vizviewer"),
    (
        rb'"(BeginNs|DurationNs|HIP_API|HSA_API)"|"(CPU HIP API|CPU HSA API|COPY)"|hsa_activity',
        "a trace of rocprof, not of torch.profiler: open it with Perfetto",
    ),
    (
        rb'"pid"\s{0,9}:\s{0,9}"(CPU|CUDA) functions"',
        "a trace of the profiler before torch.profiler (torch.autograd.profiler), which has no launches: record again with "
        "torch.profiler.profile",
    ),
    (rb'"clang|"Total Frontend|"OptModule"', "a time trace of a compiler (clang -ftime-trace)"),
    (rb'nsys|"NVTX|CUDA API', NSYS),
    (
        rb'"name"\s{0,9}:\s{0,9}"(model_loading_\w+|model_run|session_initialization)"',
        "a profile of ONNX Runtime, not of torch.profiler: open it with Perfetto",
    ),
    (rb'"(action processing|build phase marker)"', "a profile of Bazel, not of torch.profiler: open it with Perfetto"),
    (
        rb"NEGOTIATE_(ALLREDUCE|ALLGATHER|BROADCAST)",
        "a timeline of Horovod, not of torch.profiler: open it with Perfetto",
    ),
    (rb'"cat"\s{0,9}:\s{0,9}"task::|"ray::', "a timeline of Ray, not of torch.profiler: open it with Perfetto"),
    (rb'"systemTraceEvents"', LINUX),
)


def file(first: bytes, name: str = "") -> str:
    """first: the beginning of what is no trace of torch.profiler, unpacked. name: of the file, if that is known."""
    lower = PurePath(name).name.lower().removesuffix(".gz")
    for suffix, said in SUFFIXES.items():
        if lower.endswith(suffix):
            return f"this is {said}"
    if re.match(rb"(\xef\xbb\xbf)?\s{0,999}[\[{](?!\x00)", first):
        for one, other, said in DOCUMENTS:
            if re.search(one, first) and re.search(other, first):
                return f"this is {said}, and no trace of torch.profiler. {RECORD}"
        if writer := _writer(first):
            return f"this is {writer}"
        return f"this is not a trace of torch.profiler: it has no list of traceEvents. {RECORD}"
    said = next((said for magic, said in MAGIC if re.match(magic, first)), "")
    return f"this is {said or 'no JSON'}, and no trace of torch.profiler. {RECORD}"


def events(first: bytes) -> str:
    """Of a trace whose events are none of torch.profiler's."""
    if said := _writer(first):
        return f"this is {said}"
    return f"this is a Chrome trace, but not of torch.profiler: none of its events is an operator, a kernel or a call. {RECORD}"


def _writer(first: bytes) -> str | None:
    return next((said for sign, said in WRITERS if re.search(sign, first)), None)
