"""The report renders every kind of result, shows nothing of it raw, and never flatters what was not measured."""

import itertools
import json
import math
import random
import re
import sys
import types
from dataclasses import asdict, replace
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import labs, web_page
from grader.checks import trace as trace_verdicts
from grader.frontends import attempts, board, gain_pictures, report
from grader.frontends.gain import Gain, bar
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result
from grader.safe_text import cores_text, prose_to_html
from grader.trace import Metrics

H200 = {"gpu": "NVIDIA H200", "gpu_memory_gb": 139.8, "driver": "580.65", "cpu": "Intel Xeon 8480+", "cores": 16}
LAPTOP = {"gpu": None, "cpu": "AMD Ryzen 7 7840U", "cores": 8}
VERSIONS = {"python": "3.11.9", "torch": "2.11.0", "cuda": "13.0", "grader": "0.1.0"}


def throughput(
    gain: float, noise: float = 0.02, pairs: int = 9, target: float = 3.6, status: str = PASS, starter_ms: float = 48.3
) -> CheckResult:
    rng = random.Random(7)
    timed = [
        [starter_ms * math.exp(rng.gauss(0, noise / 1.4)), starter_ms / gain * math.exp(rng.gauss(0, noise / 1.4))]
        for _ in range(pairs)
    ]
    half = math.exp(1.75 * noise / math.sqrt(pairs))
    lower, upper = gain / half, gain * half
    points = 50 * min(max(math.log(lower) / math.log(target), 0), 1)
    evidence = {
        "gain": gain,
        "gain_lower": lower,
        "gain_upper": upper,
        "target": target,
        "reference_gain": target ** (1 / 0.88),
        "target_source": "calibrated on this machine, 2026-01-12",
        "pairs": timed,
        "noise": noise,
        "starter_ms": starter_ms,
        "submission_ms": starter_ms / gain,
        "compile_s": 0.0,
    }
    reason = f"The loop runs at {gain:.2f} times the starter's speed. Full points need {target:.2f}x."
    hint = "" if status == PASS else "The GPU still waits for copies. Look at the gaps before each `Memcpy HtoD`."
    return CheckResult("throughput", "The loop got faster", status, points, 50, reason, hint, evidence)


def trace_check(status: str = PASS) -> CheckResult:
    passed = status == PASS
    return CheckResult(
        "h2d_pinned",
        "Copies to the GPU come from pinned memory and overlap with compute",
        status,
        20 if passed else 0,
        20,
        "All 38.5 MB a step come from pinned memory; 94% of the copy time runs beside a kernel."
        if passed
        else "Only 2% of the 38.5 MB copied a step come from pinned memory, so each copy blocks the host.",
        "" if passed else "Ask the loader for pinned batches (`pin_memory=True`) and copy with `non_blocking=True`.",
        {
            "h2d_pinned": 1.0 if passed else 0.0213,
            "at_least": 0.95,
            "bytes_per_step": 38535168,
            "per_step": {"before": {"syncs": 4, "copies": 2}, "after": {"syncs": 0 if passed else 4, "copies": 2}},
            "sites": [
                {"file": "submission.py", "line": 14, "call": "cudaMemcpyAsync", "count": 40},
                {"file": "submission.py", "line": 19, "call": "cudaStreamSynchronize", "count": 40},
            ],
            "events": [10231, 10260, 10288],
            "complete": True,
            "note": None,
        },
        [] if passed else ["Look at the copies to the GPU in `lab.peek()`.", "The loader's option, and non_blocking."],
    )


def parity(status: str = PASS) -> CheckResult:
    return CheckResult(
        "parity",
        "It still trains the same model",
        status,
        20 if status == PASS else 0,
        20,
        "The loss curve stays within 0.31% of the reference's; the update's cosine is 0.9998.",
        "",
        {"loss_max_relative_difference": 0.0031234567, "limit": 0.02, "update_cosine": 0.99981},
    )


def prediction(points: float = 10) -> CheckResult:
    reason = "You predicted transfer-bound and 3x to 5x: both are right." if points else "No prediction was locked in."
    hint = "" if points else "Fill in the prediction cell before the first profile."
    return CheckResult("prediction", "Your prediction", PASS if points else FAIL, points, 10, reason, hint, {})


def make(checks: list[CheckResult], **changes) -> Result:
    return Result(
        **{
            "lab": "pinned_memory",
            "title": "Pinned memory and overlapping copies",
            "form": "cuda",
            "checks": checks,
            "machine": H200,
            "versions": VERSIONS,
            "seed": 81231,
            "seconds": 93.41,
            "date": "2026-02-03 14:05 UTC",
            **changes,
        }
    )


TRACEBACK = """epoch 0 starts
Traceback (most recent call last):
  File "/tmp/grade/submission.py", line 12, in train
    for images, labels in loader:
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 741, in __next__
    data = self._next_data()
  File "/tmp/grade/submission.py", line 14, in train
    loss = F.cross_entropy(model(images.half()), labels)
RuntimeError: Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same
"""


def samples() -> dict[str, Result]:
    half_fix = throughput(1.74, 0.04, status=FAIL)
    undecided = throughput(3.3, 0.19, 15, status=INCONCLUSIVE)
    undecided.reason = "After 15 pairs the gain is known to lie between 3.0x and 3.6x only: the machine is too noisy."
    unmeasured = [
        CheckResult("throughput", "The loop got faster", NOT_MEASURED, 0, 50, "This machine has no GPU."),
        CheckResult("h2d_pinned", "Copies come from pinned memory", NOT_MEASURED, 0, 20, "This machine has no GPU."),
    ]
    cheated = throughput(4.4)
    cheated.points, cheated.status = 0, FAIL
    cheated.reason = "No points: the loop does not train the same model, so its speed means nothing."
    wrong = parity(FAIL)
    wrong.reason = "The update's norm is 0.52 of the reference's: half of the samples were never trained on."
    fatal = "Your loop failed at step 3, in `train`, line 14 of the submission:\nRuntimeError: Input type (HalfTensor)"
    return {
        "solution": make([throughput(4.21), trace_check(), parity(), prediction()]),
        "starter": make(
            [throughput(0.995, status=FAIL), trace_check(FAIL), parity(), prediction(0)],
            warnings=["The GPU's clock was capped by its power limit during 3 of 18 blocks; the pairs stay fair."],
        ),
        "half_fix": make([half_fix, trace_check(FAIL), parity(), prediction()], quick=True, output="step 10\n"),
        "inconclusive": make([undecided, trace_check(), parity(), prediction()]),
        "not_measured": make([*unmeasured, parity(), prediction()], form="cpu", machine=LAPTOP),
        "fatal": make(
            [
                CheckResult("throughput", "The loop got faster", FAIL, 0, 50, "The grade ended before it was timed."),
                CheckResult("parity", "It still trains the same model", FAIL, 0, 20, "The grade ended before."),
            ],
            fatal=fatal,
            output=TRACEBACK,
        ),
        "not_the_same": make([cheated, trace_check(), wrong, prediction()]),
        "empty": make([], machine={}, versions={}, seed=None, date="", seconds=0),
    }


class Balanced(HTMLParser):
    """Fails on a tag that is not closed in order; gathers tags and attributes, and the text a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.seen = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.seen += data


ALLOWED_TAGS = set(
    ["div", "span", "p", "b", "i", "code", "pre", "style", "img", "details", "summary", "dl", "dt", "dd"]
)
ALLOWED_ATTRIBUTES = {
    "class",
    "style",
    "src",
    "alt",
    "title",
    "open",
    "role",
    "aria-level",
    "aria-label",
    "aria-hidden",
}


@pytest.mark.parametrize("name", samples())
def test_every_result_renders(name, tmp_path):
    result = samples()[name]
    page = report.html(result)
    parsed = Balanced(page)
    assert parsed.tags <= ALLOWED_TAGS and parsed.attributes <= ALLOWED_ATTRIBUTES
    assert len(page) < 300_000
    assert "could not be drawn" not in page
    assert result.title in parsed.seen
    shown = report.text(result)
    assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
    words = " ".join(shown.split())
    for text in (result.fatal, *result.warnings, *(each for c in result.checks for each in (c.reason, c.hint))):
        assert " ".join(text.split()) in words and prose_to_html(text) in page
    for check in result.checks:
        assert check.status in parsed.seen and check.status in shown
        assert check.title in parsed.seen
    report.write_html(result, tmp_path / "deep" / "report.html")
    page = (tmp_path / "deep" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "script" not in Balanced(page).tags


def test_headings_begin_below_a_notebook_s_own_and_at_the_top_of_a_file():
    result = samples()["solution"]
    for standalone, first in ((False, 3), (True, 1)):
        levels = [int(level) for level in re.findall(r'aria-level="(\d)"', report.html(result, standalone))]
        assert levels[0] == first and {*levels[1:]} == {first + 1}
    assert re.findall(r'aria-level="(\d)"', report.row_html(result.checks[0])) == ["4"]


def test_the_numbers_a_learner_looks_for():
    page, shown = Balanced(report.html(samples()["solution"])).seen, report.text(samples()["solution"])
    for form in (page, " ".join(shown.split())):
        assert "100 of 100 points" in form
        assert "4.21x the starter's speed" in form
        assert "3.60x" in form and "calibrated on this machine" in form
        assert "48.3 ms" in form and "9 pairs" in form and "seed: 81231" in form
    assert "but no gain is certain" in " ".join(report.text(samples()["starter"]).split())
    assert "RuntimeError: Input type" in report.text(samples()["fatal"])
    assert "quick look" in report.text(samples()["half_fix"])
    assert "quick look" not in report.text(replace(samples()["half_fix"], form="traces"))  # nothing of it is measured
    assert "alone would earn all points" in " ".join(report.text(samples()["not_the_same"]).split())
    assert "\x1b[32m✓ PASS" in report.text(samples()["solution"], colour=True)


def test_a_screen_reader_tells_what_opens_apart():
    checks = [replace(trace_check(FAIL), title=title, evidence={"copies": 4}) for title in ("Copies", "Waits & more")]
    names = re.findall(r'<summary aria-label="(.+?)">(.+?)</summary>', report.html(make(checks)))
    assert len(names) == len(set(names)) == 6, "two hints and the evidence of each check"
    assert all(name.startswith(f"{shown}: ") for name, shown in names)
    assert ("Evidence: Waits &amp; more", "Evidence") in names


def test_hints_open_one_after_the_other():
    check = trace_check(FAIL)
    nudge, where, what = (words.replace("`", "") for words in (check.hint, *check.more_hints))
    page = report.html(make([check]))
    seen = Balanced(page).seen
    assert seen.index(nudge) < seen.index(where) < seen.index(what)
    opened = page.partition('class="sp-hint"')[2]
    assert opened.index("</details>") > opened.index("and non_blocking")  # the last is within the one before
    assert '<details open><summary aria-label="Where' not in page
    assert report.html(make([check]), all_hints=True).count("<details open>") == 2
    shown = " ".join(report.text(make([check])).split())
    assert "grader hint pinned_memory h2d_pinned --depth 2" in shown and where not in shown


@pytest.mark.parametrize("status", [PASS, INCONCLUSIVE, NOT_MEASURED])
def test_a_hint_belongs_to_a_failure(status):
    """What is undecided says nothing of the loop, whoever made the verdict, and whatever was kept of it."""
    failed = trace_check(FAIL)
    kept = {**asdict(failed), "status": status}
    for check in (replace(failed, status=status), CheckResult(**kept)):
        assert not check.hint and not check.more_hints
    old = make([failed]).to_dict()
    old["checks"] = [json.loads(json.dumps(kept))]
    shown = Result.from_dict(old)
    for page in (report.html(shown), report.text(shown)):
        assert "pin_memory" not in page and "grader hint" not in page
    assert "pin_memory" in report.text(make([failed]))


@pytest.mark.parametrize("name", labs.loops())
def test_what_a_trace_does_not_tell_says_what_to_do_about_it(name):
    for check in labs.get(name).trace:
        for problems in ([], ["it holds no steps"]):
            verdict = trace_verdicts.judge(check, Metrics(), problems, 1.0)
            assert verdict.status == INCONCLUSIVE or (verdict.status == FAIL and verdict.reason == check.absent)
            assert verdict.status == FAIL or "Check again." in verdict.reason
            assert not any(hint in verdict.reason for hint in check.hints)


@pytest.mark.parametrize(
    ("lab", "metric", "value", "says"),
    [
        (
            "2i_host",
            "spread",
            2.0013,
            "2.001 times the median step, which 95% of the steps don't exceed (wanted: at most 2)",
        ),
        ("2a_workers", "h2d_pinned", 0.9496, "94.96% "),
        ("2a_workers", "loads_in_main", 0.5, "0.5 samples"),
    ],
)
def test_a_value_that_misses_its_limit_is_never_shown_as_the_limit(lab, metric, value, says):
    (check,) = (check for check in labs.get(lab).trace if check.metric == metric)
    assert says in trace_verdicts.judge(check, replace(Metrics(), **{metric: value}), [], 1.0).reason


def test_a_slower_speed_is_not_called_certain():
    check = throughput(1.36, 0.19, status=INCONCLUSIVE)
    check.evidence |= {"gain_lower": 1.2, "gain_upper": 1.5, "gain_certain": 0.43}
    result = make([check, parity()])
    for shown in (report.html(result), report.text(result)):
        words = " ".join(shown.split())
        assert "0.43x" not in words and "No speed-up is certain" in words


@pytest.mark.parametrize("certain, counts", [(2.795, True), (1.31, False)])
def test_an_interval_is_shown_only_where_it_counts(certain, counts, tmp_path):
    check = throughput(3.02, 0.02, status=INCONCLUSIVE)
    check.evidence |= {"gain_lower": 2.79, "gain_upper": 3.26, "gain_certain": certain}
    result = make([check, parity()])
    page, text = report.html(result), report.text(result)
    for shown in (page, text):
        assert ("2.79" in shown) == ("3.26" in shown) == counts
        assert ("1.31x is certain, and counts" in " ".join(shown.split())) != counts
    row = attempts.from_result(labs.get("2a_workers"), result)
    assert ("2.79x to 3.26x" in board.cells(1, row)[2]) == counts and (
        "1.31x is certain" in board.cells(1, row)[2]
    ) != counts
    assert board.cells(1, attempts.usable(row)) == board.cells(1, row)
    assert gain_pictures.draw_ladder([row])


def test_feedback_says_who_can_measure_again_what_is_undecided():
    undecided = samples()["inconclusive"]
    assert "Your instructor" in report.html(undecided, all_hints=True)
    assert "Your instructor" not in report.html(undecided)
    assert "Your instructor" not in report.html(samples()["solution"], all_hints=True)


def test_a_hint_is_shown_whole_however_long_the_report():
    hint = "Ask the loader for pinned batches and copy with `non_blocking=True`, then look at the timeline again. " * 4
    checks = [throughput(1.2, status=FAIL), *(trace_check(FAIL) for _ in range(6))]
    for number, check in enumerate(checks):
        check.hint = f"Hint {number}: {hint.strip()}"
    shown = " ".join(report.text(make(checks, warnings=["A long warning. " * 30] * 4)).split())
    assert all(check.hint in shown for check in checks)


def test_some_of_the_points_are_no_failure():
    earned, none = trace_check(FAIL), trace_check(FAIL)
    earned.points, none.points = 12.5, 0.0
    waits = prediction(5)  # the cause is right, and the gain is for a machine of another kind
    waits.unmeasured = 5
    for check, word in ((earned, "PARTLY"), (none, "FAIL"), (waits, "PARTLY"), (prediction(10), "PASS")):
        row = report.row_text(check)  # as lab.grade(...) shows it
        assert report.points_of(check) in row
        for form in (Balanced(report.html(make([check]))).seen, report.text(make([check])), row):
            assert [each for each in ("PARTLY", "FAIL", "PASS") if each in form] == [word]


@pytest.mark.parametrize(
    "cores, listed, why, says",
    [
        (2, "0-1", "all", "2 cores (0-1, all that it may use)"),
        (1, "3", "some of 8", "1 core (3, some of 8)"),
        (8, "0-7", "its GPU's share of 16", "8 cores (0-7, its GPU's share of 16)"),
        (4, "", "", "4 cores"),
        (None, "0-1", "all", "0-1, all that it may use"),
    ],
)
def test_the_machine_s_cores_are_one_phrase(cores, listed, why, says):
    facts = {"cpu": "A CPU", "cores": cores, "core_list": listed, "cores_are": why, "os": "Linux"}
    for shown in (
        report.text(make([trace_check()], machine=facts), 400),
        report.html(make([trace_check()], machine=facts)),
    ):
        assert f"A CPU, {says}, Linux" in unescape(shown)


def test_not_measured_is_never_full_marks():
    # Even where a check claims points it did not measure.
    unmeasured = CheckResult("trace", "Counts", NOT_MEASURED, 20, 20, "No GPU.")
    for checks in ([unmeasured], [parity(), unmeasured], samples()["not_measured"].checks):
        result = make(checks)
        full = f"{result.max_score:g} of {result.max_score:g} points"
        missing = f"{result.max_score - result.measured_max:g} of {result.max_score:g} points could not be measured"
        for form in (Balanced(report.html(result)).seen, report.text(result)):
            assert f"{missing} on this machine." in form
            assert full not in form.replace(missing, "")
            assert ("no points on this machine" in form) == (not result.measured_max)
            assert "20 / 20" not in form or parity() in checks
            assert "– / 20" in form


def test_what_is_not_judged_is_not_said_to_be_the_machine_s_fault():
    unjudged = replace(
        prediction(0), status=NOT_MEASURED, reason="Nothing was measured to compare the prediction with."
    )
    slower = throughput(1.0, status=FAIL)
    slower.evidence = {}
    gpu_only = replace(trace_check(FAIL), status=NOT_MEASURED, points=0)
    shown = " ".join(report.text(make([unjudged, slower, gpu_only])).split())
    assert "20 of 80 points could not be measured on this machine." in shown
    assert (
        "10 of 80 points are for the prediction. They were not judged, because no gain was measured to compare it with."
        in shown
    )
    assert "could not be measured" not in " ".join(report.text(make([unjudged, slower])).split())
    slower.status, slower.points = NOT_MEASURED, 0  # only the training can be compared on this machine
    assert "80 of 80 points could not be measured" in " ".join(report.text(make([unjudged, slower, gpu_only])).split())


HOSTILE = (
    "<script>alert(1)</script></style>\x1b[2J\x1b]0;owned\x07\x9b31m&\"'$x$ `<img onerror=x>` \x00\u202e\ud800 %s {0}"
)


def test_a_gate_is_no_check_without_points():
    gate = replace(
        parity(), points=0, max_points=0, evidence={"untold": False, "loss_tolerance": 0.01, "h2d_pinned": 0.25}
    )
    result = make([gate, throughput(2.0)])
    for form in (report.html(result), report.text(result), report.row_text(gate)):
        assert "required" in form and "0 / 0" not in form
    page = report.html(result)
    assert "untold" not in page and "losses may differ by</dt><dd>1%" in page
    assert "25.0% of the bytes copied to the GPU came from pinned memory" in page


def test_two_lengths_over_a_picture_are_explained():
    slower, shorter = ({"step_ns": 40.5e6, "step_ns_traced": ns} for ns in (44e6, 3.6e6))
    assert "The first length was timed" in report.timeline_note({"before": slower})
    assert 'In "after" the recorded steps are shorter' in report.timeline_note({"before": slower, "after": shorter})
    assert not report.timeline_note({"before": {"step_ns_traced": 1e6}, "after": "<b>", "x": {"step_ns": math.nan}})


def test_hostile_text_is_escaped():
    evidence = {HOSTILE: HOSTILE, "list": [HOSTILE] * 3, "deep": {HOSTILE: {HOSTILE: [{HOSTILE: HOSTILE}] * 2}}}
    check = throughput(2.0)
    check.title = check.reason = check.hint = check.status = HOSTILE
    check.evidence |= evidence | {"target_source": HOSTILE}
    result = make(
        [check, CheckResult(HOSTILE, HOSTILE, FAIL, 0, 5, HOSTILE, HOSTILE, evidence)],
        title=HOSTILE,
        lab=HOSTILE,
        form=HOSTILE,
        machine={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        warnings=[HOSTILE],
        fatal=HOSTILE,
        date=HOSTILE,
        output=HOSTILE,
        timelines={HOSTILE: HOSTILE},
    )
    for standalone in (False, True):
        page = report.html(result, standalone)
        page.encode("utf-8")
        parsed = Balanced(page)
        extra = {"html", "head", "body", "meta", "title"} if standalone else set()
        assert parsed.tags <= ALLOWED_TAGS | extra
        assert "onerror" not in parsed.attributes
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    shown = report.text(result)
    shown.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "owned" not in shown and len(shown.splitlines()) <= 40


@pytest.mark.parametrize(
    "flood", ["a" * 2**17, "<&\"' " * 2**15, "\x1b[" * 2**16, "\x1b]" * 2**16, "x\r" * 2**16, "\n" * 2**17]
)
def test_floods_are_cut(flood):
    evidence = {
        "text": flood,
        "list": [flood] * 100,
        "dict": {str(i): flood for i in range(300)},
        "nested": {"a": {"b": {"c": {"d": {"e": [[[[[flood]]]]]}}}}},
        "digits": 10**5000,
    }
    checks = [CheckResult(f"c{i}", flood, FAIL, 0, 5, flood, flood, evidence) for i in range(2)]
    result = make(checks, title=flood, fatal=flood, output=flood, warnings=[flood] * 50, machine={"m": flood})
    page = report.html(result)
    Balanced(page)
    assert len(page) < 1_000_000
    shown = report.text(result).splitlines()
    assert len(shown) < 4_000 and max(map(len, shown)) <= 80
    for text in (page, "\n".join(shown)):
        assert "[cut: " in text and "38 more, in the result file." in text


def test_the_end_of_the_output_is_kept():
    result = make(
        [], fatal="It failed.", output="early\n" * 9000 + "10%\r 50%\r100% done\r\nValueError: the last line\n"
    )
    assert "100% done" in report.html(result) and "50%" not in Balanced(report.html(result)).seen
    assert "ValueError: the last line" in report.html(result) and "ValueError: the last line" in report.text(result)


@pytest.mark.parametrize("key", [*throughput(2).evidence, "all but gain", "all"])
@pytest.mark.parametrize("value", [None, "gone", "two", math.nan, -1, 0, True, 1e300])
def test_any_key_of_the_throughput_evidence_may_be_missing_or_odd(key, value, monkeypatch):
    monkeypatch.setattr(web_page, "image", lambda draw, alt: draw() and "")  # the drawing matters, not its encoding
    check = throughput(0.98)
    keys = {"all": list(check.evidence), "all but gain": list(check.evidence)[1:]}.get(key, [key])
    for name in keys:
        check.evidence[name] = value
        if value == "gone":
            del check.evidence[name]
    Balanced(report.html(make([check])))
    report.text(make([check]))


@pytest.mark.parametrize("gain", [0.02, 0.5, 0.98, 1.0, 1.03, 2, 7, 40, 900])
@pytest.mark.parametrize("target", [1.1, 3.6, 60])
def test_the_axis_shows_every_mark(gain, target):
    check = throughput(gain, target=target)
    shown = Gain.of(check)
    low, high = shown.span()
    assert low < min(1, shown.lower) and max(shown.upper, target, shown.reference) < high
    assert 3 <= len(gain_pictures.log_ticks(low, high)) <= 12
    line, marks = bar(shown, 80)
    assert len(line) == len(marks) == 80 and "●" in line and all(m in marks for m in ("1x", "T", "R"))


@given(low=st.floats(0.01, 0.999), high=st.floats(1.001, 1000))
def test_no_tick_is_printed_over_another(low, high):
    ticks = gain_pictures.log_ticks(low, high)
    assert 1 in ticks and len(ticks) <= 12 and all(low <= tick <= high for tick in ticks)
    for a, b in itertools.pairwise(ticks):  # of 6.4 inches, where "0.92x" takes 0.4
        assert math.log(b / a) / math.log(high / low) > 0.02 + 0.0125 * len(f"{a:.4g}x{b:.4g}x") / 2


@pytest.mark.parametrize(("low", "high"), [(0.9, 7.6), (0.86, 9), (0.8, 10.5)])
def test_a_gain_between_ticks_can_be_read(low, high):
    assert {4, 5, 6} <= set(gain_pictures.log_ticks(low, high))


def test_long_titles_and_reasons_are_not_cut():
    title = "Shapes that fit: an odd vocabulary and a needless transposition"
    check = replace(trace_check(FAIL), title=f"{title}, twice", reason="A reason that ends where it has to end. " * 15)
    for width in (60, 80):
        shown = " ".join(report.text(make([parity(), check], title=title), width=width).split())
        assert title in shown.replace("20 of 40 points ", "")
    assert check.reason.strip() in Balanced(report.html(make([check]))).seen
    assert Balanced(report.html(make([check]))).seen.count("…") == 0


@pytest.mark.parametrize(("cores", "says"), [(1, "1 core"), (2, "2 cores"), (None, "None cores")])
def test_one_core_is_no_cores(cores, says):
    assert cores_text(cores) == says


def test_timelines_are_drawn_and_their_failure_costs_only_the_picture(monkeypatch):
    from matplotlib.figure import Figure

    def crowded(timelines):
        figure = Figure(figsize=(8, 4))
        axes = figure.add_subplot()
        axes.broken_barh([(i, 0.5) for i in range(timelines["after"])], (0, 1))
        return figure

    picture = types.ModuleType("grader.trace.picture")
    monkeypatch.setitem(sys.modules, "grader.trace.picture", picture)
    picture.draw = crowded
    checks = [throughput(2.0)]
    assert report.html(make(checks, timelines={"before": 0, "after": 20})).count("data:image/svg+xml") == 2
    page = report.html(make(checks, timelines={"before": 0, "after": 6000}))
    assert "data:image/png" in page and len(page) < 300_000
    page = report.html(make(checks, timelines={"before": 0, "after": "<script>"}))
    assert "could not be drawn" in page and "<script>" not in page and "4 of" not in page


def test_a_learners_matplotlib_style_does_not_reach_the_pictures():
    import matplotlib

    plain = report.html(samples()["solution"])
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "text.color": "red"}):
        assert report.html(samples()["solution"]) == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_what_to_do_about_an_undecided_check_is_not_cut_off():
    """It stands at the end of the reason, and a report of many checks has little room for each."""
    undecided = throughput(3.3, 0.19, 15, status=INCONCLUSIVE)
    undecided.reason = (
        "The loop runs 3.30x (90% interval 2.90 to 3.70) as fast as the starter, but other programs took up to 31% of "
        "the time of a block, in 9 of 15 pairs. Close other programs and check again."
    )
    shown = report.text(make([undecided, *(trace_check() for _ in range(12))]), width=80)
    assert "Close other programs and check again." in " ".join(shown.split())


def test_a_report_says_which_form_was_graded_and_why():
    why = "In its small form, which needs 6.6 GB of free GPU memory. The full form needs 37 GB; of 8.6 GB here 7.5 GB are free."
    checks = [CheckResult("throughput", "Throughput", PASS, 50, 50, "4.00x.")]
    result = Result("4b_nanogpt", "GPT-2", "cuda", checks, H200, VERSIONS, size="small", size_why=why)
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert why in report.headline(again)[1] and "4b_nanogpt, small GPU form" in report.text(again)
    full = Result("4b_nanogpt", "GPT-2", "cuda", checks, H200, VERSIONS)
    assert "4b_nanogpt, GPU form" in report.text(full) and not any("form" in note for note in report.headline(full)[1])
