"""The notebook tools of the costliest operations of a loop."""

from grader import trace
from grader.frontends.notebook.base import NotebookLab
from grader.frontends.notebook.note import Below, Head, Note, Row
from grader.kinds import costs
from grader.kinds.costs import CostsLab
from grader.result import Progress
from grader.sandbox.child_error import ChildError
from grader.trace.words import plain, plain_number, short_kernel


class OperationsLab(NotebookLab):
    """The costliest operations of a loop of the course's own."""

    lab: CostsLab
    steps = (
        ("lab.profile()", "what costs the GPU most, in a loop that runs now. Without a GPU, in a recorded one"),
        ("lab.code()", "the functions that ask for that work, with their line numbers"),
        ("lab.save()", "the trace as a file, for ui.perfetto.dev: it has the lines, too"),
        ("%%submission", "the cell with your answers. Fill it in and run it"),
        ("lab.check()", "the grade"),
    )
    _seen: costs.LoopTrace | None = None
    _which = ""

    def profile(self, which: str = "") -> None:
        """The operations with most GPU time. which: "live" or "recorded"; by itself live where that can be judged."""
        wanted = which or (costs.RECORDED if costs.unmeasured() else costs.LIVE)
        if wanted not in (costs.LIVE, costs.RECORDED) or (wanted == costs.LIVE and costs.unmeasured()):
            why = costs.unmeasured() if wanted == costs.LIVE else 'There are "live" and "recorded".'
            Note("That trace is not to be had", [why]).show()
        else:
            self._work(lambda progress: self._profiled(wanted, progress))

    def _profiled(self, which: str, progress: Progress) -> Note:
        try:
            seen = costs.live(self.lab, progress) if which == costs.LIVE else costs.recorded(self.lab)
            rows = _operations(seen)
        except (ChildError, trace.TraceError) as error:
            return Note("The loop could not be recorded", [str(error), "Free memory on this machine, and try again."])
        self._seen, self._which = seen, which
        busy = seen.operations[0].gpu_ns / seen.operations[0].share / 1e6
        lines = [
            seen.about,
            f"A step takes {plain_number(1e3 * seen.step_s)} ms without the profiler. The GPU is busy for {plain_number(busy)} ms of it.",
        ]
        after = [
            "All numbers are for one step. GFLOP and MB: by the shapes, each input read and each output written once.",
            f'In your answers: "trace": "{which}".',
        ]
        return Note("What costs the GPU most", lines, [rows], after=after)

    def code(self) -> None:
        """Print the functions that ask for the GPU's work, with the numbers of their lines."""
        if self._seen is None:
            Note("No trace yet", ["Run lab.profile() first."]).show()
            return
        for place in costs.functions(self._seen.operations):
            print(place.file)
            print("".join(f"{number:>5}  {text}\n" for number, text in place.text()))

    def save(self) -> None:
        """Write the trace into this folder, for another viewer."""
        if self._seen is None:
            Note("No trace yet", ["Run lab.profile() first."]).show()
            return
        packed = self._seen.data[:2] == b"\x1f\x8b"
        self._save_trace(f"trace-{self._which}.json{'.gz' * packed}", self._seen.data).show()


def _operations(seen: costs.LoopTrace) -> list[Row | Below]:
    """The table of the operations, without what is asked."""
    rows: list[Row | Below] = [Head(("operation", "shapes", "in", "ms", "kernels", "us each", "GFLOP", "MB"))]
    for o in seen.operations:
        times = (plain_number(o.gpu_ns / 1e6), f"{o.launched:g}", plain_number(o.gpu_ns / 1e3 / o.launched))
        work = [plain_number(amount) if amount else "" for amount in ((o.flops or 0) / 1e9, (o.bytes_moved or 0) / 1e6)]
        rows.append((plain(o.name, 60), plain(o.shapes, 120), o.phase, *times, *work))
        if o.kernels:
            rows.append(Below(f"longest kernel: {short_kernel(o.kernels[0], 200)}", o.kernels[0]))
    return rows
