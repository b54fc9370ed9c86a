"""Several ranks in one confined child, the lab about gradient averaging, and what both count."""

import re
import socket
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
import torch
import torch.distributed as dist
import variants
from helpers import IS_ROOT, eventually, first, looked, loop, running, said, untimed
from torch.profiler import ProfilerActivity, profile, record_function

from grader import labs, machine, trace
from grader.checks import parity
from grader.checks.plausible import idle_ranks, missing_work
from grader.grade import grade
from grader.grading.evidence import Findings, Profiles, Race, Work, Yardstick
from grader.grading.forms import choose_form
from grader.grading.race import decides
from grader.grading.verdict import judge
from grader.measure.blocks import Arm, Plan
from grader.measure.calibration import honest_spread
from grader.measure.decision import Pair
from grader.paths import REPOSITORY
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import turn
from grader.sandbox.processes import Doing
from grader.sandbox.setting import Limits, of_rank
from grader.submission import Submission
from grader.trace import Metrics
from grader.workloads import gpt
from tests import adversaries

pytestmark = pytest.mark.usefixtures("nothing_left")
NAME = "3j_communication"
SHORT = Plan(block_s=0.2, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
PREDICTED = (("cause", "communication-bound"), ("gain", 1.5))
PATIENT = Limits()
CORPUS = {each.name: each for each in adversaries.corpus()}

# each rank trains on its share of a batch, and gradients are averaged one by one
AVERAGED = """
import torch, torch.distributed as dist
import torch.nn.functional as F

def train(job):
    print(f"rank {job.rank} of {job.world_size}", flush=True)
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for batch in job.batches:
        own = [job.dataset[index] for index in batch[job.rank :: job.world_size]]
        tokens, targets = torch.utils.data.default_collate(own)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        if job.world_size > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= job.world_size
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
"""


def begun(child, seed: int = 3, **options) -> None:
    child.load()
    child.start(seed, **options)


def test_two_ranks_train_what_one_would():
    with running(AVERAGED, limits=PATIENT, ranks=2) as two:
        begun(two)
        losses = two.run(6)[1]
        two.weights("weights.safetensors")
        weights = two.fetch("weights.safetensors", 1 << 30)
        assert sorted(re.findall("rank . of .", two.output())) == ["rank 0 of 2", "rank 1 of 2"]
    with running(AVERAGED, limits=PATIENT) as one:
        begun(one, keep_initial=True)
        assert one.run(6)[1] == pytest.approx(losses, rel=1e-4)
        one.give("weights.safetensors", weights)
        update = one.ask("compare", file="weights.safetensors")
    assert update["cosine"] > 0.999 and update["norm_ratio"] == pytest.approx(1, abs=1e-3)


def test_losses_are_the_mean_of_the_ranks():
    source = "import torch\n\ndef train(job):\n    while True:\n        yield torch.tensor(1.0 + job.rank)\n"
    with running(source, ranks=2, limits=PATIENT) as child:
        begun(child)
        assert child.run(3)[1] == [1.5, 1.5, 1.5]


def test_the_slowest_rank_s_time_counts():
    source = (
        "import time, torch\n\ndef train(job):\n    while True:\n"
        "        time.sleep(0.5 * job.rank)\n        yield torch.ones(())\n"
    )
    with running(source, ranks=2, limits=PATIENT) as child:
        begun(child)
        assert child.run(2)[0] >= 1.0


def test_ranks_reach_each_other_and_nobody_else():
    body = """
import socket
import torch.distributed as dist
def attempt(kind, address):
    with socket.socket(socket.AF_INET, kind) as mine:
        mine.settimeout(3)
        try:
            mine.connect(address)
            return "done"
        except OSError as error:
            return type(error).__name__
numbers = torch.ones(3)
dist.all_reduce(numbers)
found = [attempt(socket.SOCK_STREAM, ("127.0.0.1", {port})), attempt(socket.SOCK_STREAM, ("1.1.1.1", 443))]
found.append(attempt(socket.SOCK_DGRAM, ("1.1.1.1", 53)))
print("ANSWER", numbers.sum().item(), *found, flush=True)
"""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        running(loop(body.replace("{port}", str(server.getsockname()[1]))), ranks=2, limits=PATIENT) as child,
    ):
        begun(child)
        child.run(1)
        answers = partial(re.findall, "ANSWER (.*)\n")
        assert eventually(lambda: len(answers(child.output())) == 2), child.output()
        said = answers(child.output())
    assert [line.split()[0] for line in said] == ["6.0", "6.0"]
    assert "done" not in " ".join(said), said


@pytest.mark.skipif(not IS_ROOT, reason="root tries it for another user")
def test_a_loopback_of_its_own_without_root():
    """Where the kernel gives users namespaces; where not, several ranks are refused."""
    program = (
        "import os, socket\nfrom grader.sandbox import confine\n"
        "os.setresgid(65534, 65534, 65534); os.setresuid(40000, 40000, 40000)\n"
        "try:\n    confine.own_loopback()\nexcept OSError as error:\n    print('refused', error); raise SystemExit\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), 3)\n"
        "print('up', os.getuid(), [line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.startswith("refused") or done.stdout == "up 40000 ['0000000000000000']\n", done


def test_frozen_means_all_ranks():
    with running(loop("import threading\ndef spin():\n    while True:\n        pass\n"
                      "threading.Thread(target=spin, daemon=True).start()"), ranks=2, limits=PATIENT) as child:  # fmt: skip
        begun(child)
        child.run(1)
        child.freeze()
        tree = psutil.Process(child.warden).children(recursive=True)
        assert len(tree) == 3 and {process.status() for process in tree} == {psutil.STATUS_STOPPED}
        used = child.processes.cpu_seconds()
        time.sleep(0.3)
        assert child.processes.cpu_seconds() == used
        child.thaw()
        child.run(1)


def test_an_error_of_one_rank_is_told_at_once():
    source = AVERAGED.replace(
        "    model = ", "    if job.rank:\n        raise ValueError('no gradients today')\n    model = "
    )
    with running(source, ranks=2, limits=PATIENT) as child:
        begun(child)
        began = time.monotonic()
        for _ in range(2):  # and again: the ranks are out of step
            with pytest.raises(ChildError, match="ValueError in its loop: no gradients today"):
                child.run(1)
        assert time.monotonic() - began < 0.5 * PATIENT.first_step  # nobody waited for the limit


@pytest.mark.parametrize(
    "how, words", [("os.kill(os.getpid(), 11)", "crashed with SIGSEGV"), ("os._exit(3)", "status 3")]
)
def test_a_rank_that_dies_is_told(how, words):
    with running(loop(f"import os\nif job.rank:\n    {how}"), ranks=2, limits=PATIENT) as child:
        begun(child)
        with pytest.raises(ChildError, match=words):
            child.run(1)


def test_a_rank_that_never_arrives_is_not_waited_for():
    limits = Limits(first_step=2, step=2)
    with running(loop("import time\nif job.rank:\n    time.sleep(1000)"), ranks=2, limits=limits) as child:
        begun(child)
        with pytest.raises(ChildError, match=r"gave no loss within 2 s.*a deadlock among loader workers or ranks,"):
            child.run(1)


# ---------------------------------------------------------------- the lab


def first_update(source: str) -> dict:
    """What the starter's process says of the weights of a loop's two ranks after the first steps."""
    form, file = labs.get(NAME).forms["cpu"], "weights.safetensors"
    with running(source, form=form, limits=PATIENT, ranks=2) as two:
        begun(two)
        two.run(4)
        two.weights(file, each=True)
        files = [two.fetch(of_rank(file, rank), 1 << 30) for rank in range(2)]
    with running(AVERAGED, form=form, limits=PATIENT) as one:
        begun(one, keep_initial=True)
        one.run(4)
        for rank, data in enumerate(files):
            one.give(of_rank(file, rank), data)
        return one.ask("compare", file=file, ranks=2)


def beside_the_reference(source: str, *steps: int) -> CheckResult:
    """Whether a loop's training is the reference solution's, by its losses and by all ranks' weights after so many steps."""
    form, file = labs.get(NAME).forms["cpu"], "weights.safetensors"
    losses, reference, kept, updates = [], [], [], {}
    with running(source, form=form, limits=PATIENT, ranks=2) as loop:
        begun(loop)
        for step in steps:
            losses += loop.run(step - len(losses))[1]
            loop.weights(file, each=True)
            kept.append([loop.fetch(of_rank(file, rank), 1 << 30) for rank in range(2)])
    with running(variants.solution(NAME), form=form, limits=PATIENT, ranks=2) as arm:
        begun(arm, keep_initial=True)
        for step, files in zip(steps, kept, strict=True):
            reference += arm.run(step - len(reference))[1]
            for rank, data in enumerate(files):
                arm.give(of_rank(file, rank), data)
            updates[step] = arm.ask("compare", file=file, stretch=True, ranks=2)
    replay = parity.Replay(reference, updates, 1.0, 1.0)
    return parity.late(form.parity, reference, losses, honest_spread(labs.get(NAME), "cpu"), replay)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "status"),
    [
        (variants.honest(NAME)["gradients sent in bf16"], PASS),
        (CORPUS["averages_now_and_then"].source(NAME), FAIL),
        (CORPUS["leaves_out_a_micro_batch"].source(NAME), FAIL),
    ],
)
def test_what_later_steps_leave_out_shows_in_the_weights(source, status):
    """With each rank's weights made the same whenever somebody asks for them."""
    result = beside_the_reference(source, 12, 40, 80)
    assert result.status == status, result.reason


def weights_of_one(rest: str) -> str:
    return variants.solution(NAME).replace("    optimizer = ", f"    job.weights = lambda: {rest}\n    optimizer = ")


@pytest.mark.parametrize(
    ("source", "apart", "missing"),
    [
        (weights_of_one("{} if job.rank else dict(model.named_parameters())"), "", ""),
        (CORPUS["gives_no_weights"].source(NAME), "bias", ""),
        (
            weights_of_one("model._modules.clear() or {} if job.rank else dict(model.named_parameters())"),
            "",
            "(rank 1)",
        ),
    ],
)
def test_a_rank_that_gives_no_weights_is_looked_at(source, apart, missing):
    """It passed, whatever it held."""
    update = first_update(source)
    for found, names in ((apart, update.get("apart", [])), (missing, update["missing"])):
        assert found in "".join(names) if found else not names, update


def graded(source: str, plan: Plan) -> Result:
    return grade(Submission(source), labs.get(NAME), device="cpu", plan=plan)


def collectives(source: str, device: str = "cpu") -> Metrics:
    return looked(labs.get(NAME), source, device)


@pytest.mark.slow
def test_collectives_of_a_step():
    """One for each of 52 parameters and 8 micro-batches; then one for each bucket."""
    check = next(check for check in labs.get(NAME).trace if check.name == "collectives")
    starter, solution = (collectives(source) for source in (variants.starter(NAME), variants.solution(NAME)))
    assert starter.collectives == 52 * 8 > check.wanted.none_at and 1 <= solution.collectives <= 4
    least, gradients = labs.get(NAME).forms["cpu"].exchanged, 473_664
    assert starter.exchanged == 8 * gradients and solution.exchanged == gradients and 4 * least < gradients
    form = labs.get(NAME).forms["cpu"]
    assert starter.largest_product == solution.largest_product == 2 * form.max_tokens_per_forward * form.matrix
    assert starter.product_flops == solution.product_flops == form.flops
    assert starter.comm_exposed is None  # without GPU work nobody can tell


@pytest.mark.parametrize("form", labs.get(NAME).forms.values())
def test_what_a_rank_must_compute_follows_from_the_model(form):
    shape = {name: form.options[name] for name in ("layers", "width", "heads", "length")}
    with torch.device("meta"):
        model = gpt.GPT(**shape)
    matrices = [p.numel() for name, p in model.named_parameters() if p.dim() == 2 and name != "positions"]
    assert form.matrix == max(matrices)
    assert form.flops == pytest.approx(6 * sum(matrices) * form.work[0] / form.ranks, rel=0.01)


def recorded(body, path, steps: int = 3) -> Metrics:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for step in range(steps):
            with record_function(f"ProfilerStep#{step}"):
                body(step)
    profiler.export_chrome_trace(str(path / "trace.json"))
    return trace.metrics(trace.read(path / "trace.json"))


def test_matrix_products_are_counted_whatever_calls_them(tmp_path):
    x, weight = torch.ones(2, 5, 8), torch.ones(6, 8)

    def products(step: int) -> None:
        torch.nn.functional.linear(x, weight, torch.ones(6))
        if step == 2:
            torch.bmm(x, weight.t().expand(2, 8, 6))
            x[0] @ weight.t()

    metrics = recorded(products, tmp_path)
    whole = 2 * 10 * 8 * 6
    assert metrics.per_step["product_flops"] == [whole, 2.5 * whole]
    assert metrics.product_flops == 1.75 * whole and metrics.largest_product == whole


def test_a_product_made_as_a_convolution_leaves_the_work_unknown(tmp_path):
    """Its result's size, which is not recorded, says how much it is: half of the work could be done so, unseen."""

    def both(step: int) -> None:
        torch.ones(4, 8) @ torch.ones(8, 6)
        torch.nn.functional.conv1d(torch.ones(1, 8, 100), torch.ones(6, 8, 1))

    metrics = recorded(both, tmp_path)
    assert metrics.product_flops is None and metrics.largest_product is None


@pytest.mark.parametrize(("tensors", "numbers"), [(1, 7), (30, 210), (31, None)])
def test_a_list_that_is_too_long_for_the_profiler_is_unknown(tensors, numbers, tmp_path):
    """It noted no sizes of 52 gradients given in one list, and an honest loop was told that a part of the step is missing."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for step in range(3):
                with record_function(f"ProfilerStep#{step}"):
                    dist.all_reduce_coalesced([torch.ones(7) for _ in range(tensors)])
                    dist.all_reduce(torch.tensor(1.0))
                    dist.barrier()
    finally:
        dist.destroy_process_group()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    metrics = trace.metrics(trace.read(tmp_path / "trace.json"))
    assert metrics.collectives == 3 and metrics.exchanged == (numbers and numbers + 1)  # the barrier's


ALONE = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    little, much = torch.zeros(1000), torch.zeros(120_000)
    job.weights = lambda: [dist.broadcast(p.data, 0) for p in job.model.parameters()] and dict(job.model.named_parameters())
    {group}
    while job.rank:
        {message}
        yield torch.zeros(())
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=job.lr)
    for tokens, targets in DataLoader(job.dataset, batch_sampler=job.batches):
        loss = F.cross_entropy(job.model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        {message}
        optimizer.step()
        optimizer.zero_grad()
        yield 2 * loss.detach()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("pass", "each rank sends 0 values to the others per step. Averaging the gradients takes at least 118,000"),
        (
            "dist.all_reduce(little)",
            "each rank sends 1,000 values to the others per step. Averaging the gradients takes at least 118,000",
        ),
        ("dist.all_reduce(much, group=alone)", "a process group of 1 of the 2 ranks"),
    ],
)
def test_a_rank_that_trains_alone_earns_nothing(message, says):
    """On a CPU it is faster: a message costs more than all of the arithmetic."""
    group = (
        "alone = [dist.new_group([rank]) for rank in range(job.world_size)][job.rank]" if "alone" in message else "pass"
    )
    result = graded(ALONE.format(message=message, group=group), SHORT)
    assert result.score == 0, said(result)
    assert says in result.check("throughput").reason and says in result.check("collectives").reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("looks_up_by_index", "a forward pass took 128 tokens at once"),
        ("trains_alone", "rank 0 did the matmuls of 256 tokens, and its share of the batch is 128"),
        ("alone_until_profiled", "in a timed step the ranks sent 0.00 MB to each other"),
        ("silent_until_profiled", "in a timed step the ranks sent 0.00 MB to each other"),
    ],
)
def test_work_that_is_not_a_rank_s_own_earns_nothing(name, says):
    """Both had all points that a CPU can give: the embedding's operator was counted, and how many numbers were sent."""
    result = graded(CORPUS[name].source(NAME), SHORT)
    assert result.score == 0, said(result)
    assert says in result.check("throughput").reason and says in result.check("collectives").reason


@pytest.mark.parametrize(
    ("per_step", "status", "says"),
    [
        ([1.0, 1.0], None, ""),
        ([4 / 3, 4 / 3], None, ""),  # the forward pass once more, in place of what it would have kept
        ([2.0, 0.0], FAIL, "of 256 tokens"),  # the ranks take turns
        ([0.0, 0.0], FAIL, "of 0 tokens"),
        (None, INCONCLUSIVE, "the trace doesn't show all matmuls"),
    ],
)
def test_each_step_of_a_rank_is_its_share(per_step, status, says):
    form = labs.get(NAME).forms["cpu"]
    metrics = Metrics(exchanged=form.exchanged, largest_product=2 * form.max_tokens_per_forward * form.matrix)
    if per_step:
        metrics.per_step["product_flops"] = [share * form.flops for share in per_step]
    missing = missing_work(form, metrics)
    assert (missing is None) if status is None else (missing[0] == status and says in missing[1])


@pytest.mark.parametrize(("longer", "same"), [(1.6, True), (20.0, False)])
def test_the_steps_that_are_profiled_must_be_those_that_are_timed(longer, same):
    """A rank that trained alone, and together with the other one only while it was profiled, had all points for its throughput."""
    form = labs.get(NAME).forms["cpu"]
    metrics = Metrics(exchanged=form.exchanged, largest_product=2 * form.max_tokens_per_forward * form.matrix)
    metrics.per_step["product_flops"] = [form.flops]
    metrics.step_ns, metrics.step_ns_traced = 1e7, longer * 1e7
    missing = missing_work(form, metrics)
    assert missing is None if same else missing[0] == INCONCLUSIVE and "20 times as long" in missing[1]


SENT = 8 * 118_000 * 2.0  # bytes: in bf16, by both ranks


@pytest.mark.parametrize(
    ("timed", "profiled", "status", "says"),
    [
        (Doing(SENT, (0.04, 0.05)), Doing(SENT, (0.2, 0.05)), None, ""),
        (Doing(SENT, (0.06, 0.1)), Doing(0.99 * SENT, (0.2, 0.05)), None, ""),  # on a busy machine
        (
            Doing(0.0, (0.04, 0.05)),
            Doing(SENT, (0.2, 0.05)),
            FAIL,
            "sent 0.00 MB to each other, and 1.89 MB in a profiled one",
        ),
        (Doing(SENT, (0.04, 0.05)), Doing(4 * SENT, (0.2, 0.05)), FAIL, "At least 6.80 MB"),
        (Doing(0.4 * SENT, (0.04, 0.05)), Doing(0.4 * SENT, (0.2, 0.05)), FAIL, "At least 0.94 MB"),
        (Doing(SENT, (0.04, 0.01)), Doing(SENT, (0.2, 0.05)), FAIL, "worked for 40.0, 10.0 ms"),
        (Doing(SENT, (0.08, 0.01)), Doing(SENT, (0.2, 0.01)), FAIL, "Each rank must train on its own share"),
        (None, Doing(SENT, (0.2, 0.05)), INCONCLUSIVE, "nobody could see"),
    ],
)
def test_timed_steps_do_what_profiled_ones_do(timed, profiled, status, says):
    form = labs.get(NAME).forms["cpu"]
    idle = idle_ranks(form, "cpu", timed, profiled)
    assert (idle is None) if status is None else (idle[0] == status and says in idle[1])
    assert idle_ranks(labs.get(NAME).forms["cuda"], "cuda", None, None) is None  # GPUs talk past the kernel
    assert idle_ranks(labs.get("3d_tiny_ops").forms["cpu"], "cpu", None, None) is None


def once_idle(source: str) -> tuple[str, str] | None:
    """What is seen from outside of a loop's ranks, in a few steps and a profile, and no race."""
    form = labs.get(NAME).forms["cpu"]
    with running(source, form=form, limits=PATIENT, ranks=2) as child:
        begun(child)
        arm = Arm(child)
        arm.warm_up(2)
        child.freeze()
        for _ in range(2):
            with arm.timed():
                arm.run(6)
        with turn(child):
            arm.profile(4, "trace.json")
        return idle_ranks(form, "cpu", arm.doing, arm.profiled)


@pytest.mark.parametrize(
    ("name", "says"),
    first(
        [
            ("solution", None),
            ("silent_until_profiled", "sent 0.00 MB"),
            ("alone_until_profiled", "sent 0.00 MB"),
            ("trains_alone", "worked for"),
        ],
        2,
    ),
)
def test_what_ranks_do_is_seen_from_outside(name, says):
    source = variants.solution(NAME) if says is None else CORPUS[name].source(NAME)
    idle = once_idle(source)
    assert idle is None if says is None else idle[0] == FAIL and says in idle[1]


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in variants.honest(NAME) if what != "the solution"])
def test_honest_ranks_do_the_same_in_every_step(what):
    assert once_idle(variants.honest(NAME)[what]) is None


# ms a step of starter and solution, and the share of them that other programs took: two NVIDIA H200, 2026-11-27
DISTURBED = [
    (80.08, 53.65, 0.0139, 0.0072),
    (80.13, 56.60, 0.0071, 0.0001),
    (72.56, 53.74, 0.0039, 0.0089),
    (74.45, 58.97, 0.0935, 0.0692),
    (77.94, 53.72, 0.0040, 0.0085),
    (74.34, 57.06, 0.0002, 0.0035),
    (74.79, 55.25, 0.0058, 0.0207),
    (79.55, 54.19, 0.0656, 0.0236),
    (77.85, 55.10, 0.0165, 0.0045),
    (70.36, 53.53, 0.0001, 0.0001),
    (73.57, 55.70, 0.0001, 0.0018),
    (71.65, 52.79, 0.0001, 0.0173),
    (70.36, 54.74, 0.0001, 0.0001),
    (75.03, 55.73, 0.0002, 0.0018),
]


@pytest.mark.parametrize(("quiet", "status"), [(False, INCONCLUSIVE), (True, PASS)])
def test_what_hangs_on_an_undecided_gain_is_undecided(quiet, status):
    """The solution had FAIL in three checks, for a gain that others had made uncertain."""
    lab, form = labs.get(NAME), labs.get(NAME).forms["cuda"]
    metrics = Metrics(
        steps=4, complete=True, collectives=9, comm_exposed=0.05, exchanged=form.exchanged, smallest_group=2, kernels=9
    )
    metrics.largest_product = 2 * form.max_tokens_per_forward * form.matrix
    metrics.per_step["product_flops"] = [form.flops]
    profiles, parity = Profiles({"submission": metrics}), CheckResult("parity", "", PASS, 0, 0, "")
    times = [(78.0, ours, 0.0, 0.0) for _, ours, *_ in DISTURBED] if quiet else DISTURBED
    pairs = tuple(Pair(a / 1e3, b / 1e3, *lost) for a, b, *lost in times)
    known = Race(pairs, decides(False, 1.3, form, Plan())(pairs))
    found = Findings(lab, "cuda", yardstick=Yardstick(1.3), work=Work(parity), race=known, profiles=profiles)
    checks = {check.name: check for check in judge(found, Submission("", prediction=PREDICTED))}
    assert [checks[name].status for name in ("throughput", "collectives", "exposed")] == [status] * 3, checks
    assert checks["prediction"].status == status and checks["prediction"].points == (10 if quiet else 5)
    for name in ("collectives", "exposed"):
        assert quiet or 0 < checks[name].points < checks[name].max_points
        assert quiet or "The gain is uncertain, so it may be more." in checks[name].reason


@pytest.mark.slow
def test_collectives_of_half_fixes():
    assert [collectives(source).collectives for source in variants.halves(NAME).values()] == [52, 8]
    assert collectives(variants.wrongs(NAME)["never averaged"][0]).collectives == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[NAME])
def test_what_is_wrong_is_rejected_and_named(what):
    source, words = variants.wrongs(NAME)[what]
    result = graded(source, SHORT)
    assert words in said(result)
    assert result.check("throughput").status == FAIL and result.score == 0


@pytest.mark.slow
def test_faults_are_rejected_and_the_solution_is_not():
    """That other honest forms are not takes minutes: see tests/benchmarks/honest.py."""
    for what, source in variants.faults(NAME).items():
        result = grade(Submission(source), untimed(labs.get(NAME)), device="cpu", plan=SHORT)
        assert result.check("parity").status == FAIL, what
    result = graded(variants.solution(NAME), SHORT)
    assert not result.fatal and result.check("parity").status != FAIL, said(result)
    exposed = result.check("exposed")
    assert exposed.status == NOT_MEASURED and "2 NVIDIA GPUs" in exposed.reason


@pytest.mark.skipif(len(machine.gpus()) != 1, reason="needs exactly one NVIDIA GPU")
@pytest.mark.parametrize("name", [NAME, "3o_sharded"])
def test_one_gpu_is_too_few(name):
    assert choose_form(labs.get(name), "auto") == "cpu"
    result = grade(Submission(variants.starter(name)), labs.get(name), device="cuda")
    assert {check.status for check in result.checks} == {NOT_MEASURED}


@pytest.mark.skipif(len(machine.gpus()) < 2, reason="needs two NVIDIA GPUs")
def test_communication_on_two_gpus():
    starter, solution = (collectives(source, "cuda") for source in (variants.starter(NAME), variants.solution(NAME)))
    assert starter.collectives == 28 * 8 and 1 <= solution.collectives <= 40
    assert starter.exchanged == 8 * solution.exchanged >= 32 * labs.get(NAME).forms["cuda"].exchanged
    form = labs.get(NAME).forms["cuda"]
    assert starter.largest_product == solution.largest_product == 2 * form.max_tokens_per_forward * form.matrix
    assert starter.product_flops == solution.product_flops == pytest.approx(form.flops, rel=0.01)
    assert solution.comm_exposed < 0.5 * starter.comm_exposed
