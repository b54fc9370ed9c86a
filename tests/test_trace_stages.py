"""Ranks that are stages of a pipeline: each waits for the one before it, so who comes late need not be slow."""

import json

import kineto
import pytest
from test_trace_anybody import CUDA, Job

from grader.trace import analyse, read_bytes
from grader.trace.job import Job as Found
from grader.trace.job import job
from grader.trace.rank import rank_of

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PASS = 20.0  # us


class Stage(Job):
    def passes(self, kind: str, source: int, came: float, end: float) -> None:
        self.ids += 1
        said = {
            "Collective name": kind,
            "Src Rank": source,
            "Dst Rank": source + 1,
            "Process Group Name": "pp",
            "Group size": 4,
        }
        self.event("cuda_runtime", "cudaLaunchKernelExC", self.now, 4, correlation=self.ids)
        at = {"device": 0, "stream": 20 if kind == "recv" else 24, "correlation": self.ids}
        sizes = {"In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "Float"}
        self.event("kernel", KERNEL, came, end - came, at["stream"], 0, **at, **said, **sizes)
        self.now += 5


def pipeline(times: list[float], batches: int = 8, steps: int = 5) -> Found:
    """times: us that each stage takes for one of the micro-batches."""
    stages = [Stage() for _ in times]
    for number in range(steps):
        begun = [stage.now for stage in stages]
        for stage in stages:
            stage.gpu = stage.now
        for _ in range(batches):
            done = 0.0
            for r, (stage, time) in enumerate(zip(stages, times, strict=True)):
                if r:
                    came = max(stage.gpu, stage.now + 10) + 1
                    end = max(came, done) + PASS
                    stage.passes("recv", r - 1, came, end)
                    stages[r - 1].passes("send", r - 1, done, end)
                    stage.gpu = end
                stage.op(length=time)
                done = stage.gpu + 1
        last = max(stage.gpu for stage in stages) + 50
        for stage, start in zip(stages, begun, strict=True):
            stage.event(*CUDA[::2], stage.now, last - stage.now)
            stage.now = last + 5
            stage.mark(f"ProfilerStep#{number}", start)
    ranks = []
    for r, stage in enumerate(stages):
        told = {"backend": "nccl", "rank": r, "world_size": len(stages)}
        text = json.dumps(kineto.document(sorted(stage.events, key=lambda e: e["ts"]), distributedInfo=told))
        ranks.append(rank_of(analyse(read_bytes(text.encode())), f"rank{r}.json"))
    return job(ranks)


def test_stages_that_take_as_long_are_no_stragglers():
    found = pipeline([1000.0] * 4)
    assert found.cause == "imbalance" and not found.stragglers and found.confidence <= 0.8
    assert "as the stages of a pipeline do" in found.text and "micro-batches" in found.what_to_try[0]


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_the_slow_stage_is_named_wherever_it_is(slow):
    found = pipeline([1600.0 if r == slow else 1000.0 for r in range(4)])
    assert found.cause == "straggler" and found.stragglers == [slow]
    assert found.why["computing"] == pytest.approx(4.8e6, rel=0.02) and "computes longer" in found.text
    assert found.what_if_ns == pytest.approx(pipeline([1000.0] * 4).step_ns, rel=0.05)
