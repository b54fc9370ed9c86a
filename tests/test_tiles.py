"""What the archive of tiles counts, and what its reads leave in a trace."""

import multiprocessing
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import variants

from grader import labs
from grader.checks import trace as trace_check
from grader.data.tiles import DATABASE
from grader.look import peek, profile
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult
from grader.submission import Submission
from grader.trace import Metrics
from grader.workloads.counting import count
from grader.workloads.tiles import OPENED, Archive
from tests.adversaries import hides_the_wait, slow_while_profiled

NAME = "2c_transforms"
BATCH = labs.get(NAME).forms["cpu"].options["batch_size"]
# the starter with the solution's table: fast enough to be graded for the rest
FASTER = variants.HALVES[NAME]["a table for all samples, in numpy"]
PAST_CONNECT = [
    ("import contextlib\n", "import contextlib\nimport sqlite3\n"),
    ("self.archive.connect()", "sqlite3.connect(self.archive.path)"),
]
TWO_WORKERS = [("len(os.sched_getaffinity(0)) // 2 if cuda else 0", "2")]
# whatever the loop is given that could hold a counter
SWITCHED_OFF = [
    (
        "    loader = DataLoader(",
        "    counters, job.counters = job.counters, {}\n"
        "    for each in [*vars(job.dataset).values(), *counters.values()]:\n"
        "        if hasattr(each, 'value'):\n            each.value = -(10**9)\n"
        "    counters.clear()\n    loader = DataLoader(",
    )
]
LOADER = variants.starter(NAME)[
    variants.starter(NAME).index("    loader = DataLoader") : variants.starter(NAME).index("        images = images.to")
]


def without_a_loader(before: str, within: str) -> list[tuple[str, str]]:
    """The starter's loop, which makes its batches itself. before, within: lines in front of that, and around it."""
    indent = "            " if within else "        "
    return [
        ("DataLoader, Dataset\n", "Dataset, default_collate\nfrom torch.profiler import record_function\n"),
        (
            LOADER,
            "    tiles = Tiles(job.dataset)\n    for batch in job.batches:\n"
            f"{before}{within}{indent}images, labels = default_collate([tiles[i] for i in batch])\n",
        ),
    ]


def judged(source: str, name: str, look: Callable[..., Any] = peek) -> tuple[CheckResult, Metrics]:
    """The check alone, as if the throughput had earned all its points, and the metrics. look: `profile` times the loop, too."""
    lab = labs.get(NAME)
    seen = look(Submission(source), lab, device="cpu")
    assert not seen.message, seen.message
    check = next(check for check in lab.trace if check.name == name)
    return trace_check.judge(check, seen.metrics, [], 1.0), seen.metrics


def open_two(archive: Archive) -> None:
    archive.connect().close()
    sqlite3.connect(archive.path).close()


def test_each_connection_counts_once_in_every_process(tmp_path):
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        database.execute("CREATE TABLE tiles(id INTEGER PRIMARY KEY, pixels BLOB, label INTEGER)")
    archive = Archive(str(tmp_path), 64)
    connections, own = count(OPENED), count(OPENED, forks=False)
    assert connections() == 0
    open_two(archive)
    assert connections() == own() == 2
    process = multiprocessing.get_context("fork").Process(target=open_two, args=(archive,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert connections() == 4 and own() == 2


def test_an_archive_goes_to_forks_only(tmp_path):
    """What a process that is spawned opens nobody counts."""
    sqlite3.connect(tmp_path / DATABASE).execute("CREATE TABLE tiles(id INTEGER PRIMARY KEY)")
    process = multiprocessing.get_context("spawn").Process(target=open_two, args=(Archive(str(tmp_path), 64),))
    with pytest.raises(RuntimeError, match="fork"):
        process.start()


@pytest.mark.parametrize(
    ("base", "edits", "status"),
    [
        ("starter", FASTER + PAST_CONNECT, FAIL),
        ("starter", FASTER + PAST_CONNECT + TWO_WORKERS, FAIL),
        ("starter", FASTER + SWITCHED_OFF, FAIL),
        ("starter", FASTER + SWITCHED_OFF + TWO_WORKERS, FAIL),
        ("solution", [], PASS),
        ("solution", TWO_WORKERS, PASS),
        ("solution", [("import os\n", "import os\nimport sqlite3\n"), *PAST_CONNECT[1:], *TWO_WORKERS], PASS),
    ],
    ids=[
        "past connect",
        "past connect, in workers",
        "switched off",
        "switched off, in workers",
        "kept",
        "kept by workers",
        "kept by workers, past connect",
    ],
)
def test_connections_count_however_they_are_opened(base, edits, status):
    result, metrics = judged(variants.edit(getattr(variants, base)(NAME), edits), "connections")
    assert result.status == status, result.reason
    assert (metrics.counted["connections"] >= BATCH) == (status == FAIL)


MARK = '        with record_function("data_wait"):\n'
IMPORTS = (
    "from torch.utils.data import DataLoader, Dataset\n",
    "from torch.profiler import record_function\nfrom torch.utils.data import Dataset\n",
)
FROM_THE_LOADER = "    for pixels, labels in loader:\n"
SOLUTION_IN_MEMORY = [
    IMPORTS,
    (
        FROM_THE_LOADER,
        "    everything = tiles.collate(tiles.__getitems__(range(len(tiles))))\n"
        "    for batch in job.batches:\n"
        f"{MARK}            pixels, labels = everything[0][batch], everything[1][batch]\n",
    ),
]
IN_A_THREAD = [
    ("import os\n", "import os\nimport queue\nimport threading\n"),
    IMPORTS,
    (
        FROM_THE_LOADER,
        "    ready = queue.Queue(4)\n\n"
        "    def fetch():\n"
        "        for batch in job.batches:\n"
        "            ready.put(tiles.collate(tiles.__getitems__(batch)))\n\n"
        "    threading.Thread(target=fetch, daemon=True).start()\n"
        "    while True:\n"
        f"{MARK}            pixels, labels = ready.get()\n",
    ),
]


def without_the_loader(edits: list[tuple[str, str]]) -> str:
    """The solution, whose DataLoader these edits replace."""
    source = variants.solution(NAME)
    start, end = source.index("    loader = DataLoader("), source.index("    curve = ")
    return variants.edit(source[:start] + source[end:], edits)


WAITS_LESS = (PASS, FAIL)  # where others have the processor it may still wait for more than the half that is wanted


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        (variants.edit(variants.starter(NAME), FASTER), (FAIL,)),
        (variants.edit(variants.starter(NAME), FASTER + without_a_loader("", MARK)), (FAIL,)),
        (variants.edit(variants.starter(NAME), FASTER + without_a_loader("", "")), (INCONCLUSIVE,)),
        (
            variants.edit(variants.starter(NAME), FASTER + without_a_loader(MARK + "            pass\n", "")),
            (INCONCLUSIVE,),
        ),
        (variants.solution(NAME), WAITS_LESS),
        (without_the_loader(SOLUTION_IN_MEMORY), WAITS_LESS),
        (without_the_loader(IN_A_THREAD), WAITS_LESS),
    ],
    ids=["loader", "marked", "no mark", "a mark around nothing", "solution", "in memory", "in a thread"],
)
def test_a_mark_must_hold_the_reads_of_the_training_thread(source, allowed):
    result, metrics = judged(source, "waiting")
    assert result.status in allowed, result.reason
    assert bool(metrics.unmarked_reads) == (result.status == INCONCLUSIVE)
    assert result.status != INCONCLUSIVE or 'record_function("data_wait")' in result.reason


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (hides_the_wait.source(NAME), "Outside of its waits"),
        # the starter waits nearly always, however busy the machine is
        (variants.edit(variants.starter(NAME), slow_while_profiled.SLEEPS), "times as long"),
    ],
    ids=["a mark around nothing", "profiled, it sleeps"],
)
def test_a_short_wait_is_not_what_the_loop_says_it_is(source, words):
    result, metrics = judged(source, "waiting", profile)
    assert metrics.data_wait < 0.4
    assert result.status == INCONCLUSIVE and result.points == 0 and words in result.reason


@pytest.mark.parametrize(
    "source",
    [variants.solution(NAME), without_the_loader(SOLUTION_IN_MEMORY), without_the_loader(IN_A_THREAD)],
    ids=["solution", "in memory", "in a thread"],
)
def test_an_honest_short_wait_is_believed_of_a_timed_loop(source):
    result, metrics = judged(source, "waiting", profile)
    assert result.status == PASS, result.reason
    assert metrics.data_wait_unprofiled < 0.4 and metrics.ops_outside_waits < 700
