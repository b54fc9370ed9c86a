"""Measures on this machine what the course says of its labs, and writes it to data/measured/: the calibration, repeated
grades of starters and solutions, half fixes and wrong ones, a loop that trains ahead, the planted faults and the honest forms,
and the ladder of each lab.

    python -m tests.benchmarks.measured [--parts calibration,grades,half,wrong,cheat,variants,ladder] [--labs ...] [--rounds 5] [--out DIR]

One look at new labs: `--parts grades,half,wrong --rounds 1 --labs ...`. The grades that a night made of starters and solutions
are taken over by `--night FOLDER`, also of labs that are no training loops.

Grades are made on all GPUs of the machine at once, or on those that `--on 0,1` names; `--parts rounds --rounds 10` makes ten
rounds of starter, half fix and solution, `--shard 1/3` a third of whatever grades were asked for. Each result is written when
it is there, and one that is there is not measured again, unless the loop or its lab's form was changed: a stopped run goes on where it was. `--table` only makes the table
from what is there."""

import argparse
import functools
import hashlib
import json
import re
import sys
import time
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from grader import labs, machine
from grader.calibrate import calibrated, measure_gain, solution
from grader.classroom.coordinator import grade_all
from grader.classroom.pool import embedded
from grader.classroom.store import Store, stands
from grader.classroom.submissions import Job
from grader.errors import UserError
from grader.grading.arms import open_arm, set_up
from grader.grading.forms import choose_device, choose_form, prepared, too_few_devices
from grader.labs.lab import AnyLab, Lab
from grader.measure import calibration
from grader.measure.blocks import Plan, whole_rounds
from grader.nightly.night import Records, read
from grader.nightly.parts import plan, was_measured
from grader.result import Result, read_json, write_json, write_text
from grader.submission import Submission
from grader.trace.picture import draw
from grader.trace.words import BLUE, FAINT, INK, ORANGE
from tests import variants

MEASURED = Path(__file__).resolve().parents[2] / "data" / "measured"
STORE = MEASURED.parents[1] / "work" / "measured"  # whole results, which git ignores
PARTS = "calibration,grades,half,wrong,cheat,variants,ladder"
KINDS = ("honest, ", "fault, ")
# how a result's name begins -> its column
MARKED = {"starter": "starter", "wrong": "wrong fixes", "half": "half fixes", "solution": "solution"}
STALE = "(before a change)"  # behind the name of a figure that is not of today's loop or form
TURNS = (
    "Each gain compares with the starter of the same run. Milliseconds of different hosts or days can't be compared."
)
TIMELINES = "timelines.png"  # a solution's trace below its starter's
# the half fix that rounds repeat, where the first one is next to nothing
HALFWAY = {
    "4a_resnet50": "workers, one pinned copy of bytes a batch, no number read",
    "4b_nanogpt": "TF32, bf16 autocast, fused attention",
    "4c_unet": "bf16 and TF32, and nothing else",
    "4d_trainer": "bf16, attn_implementation",
    "4e_inference": "a call for all texts, and one for all pictures",
}
SHORT = Plan(block_s=1.0, min_pairs=2, max_pairs=2, profile_steps=2)  # enough where only parity is asked
MANY_PAIRS = Plan(min_pairs=8, max_pairs=8)

RUNGS: dict[str, list[tuple[str, variants.Edits]]] = {
    "2a_workers": [
        (f"{n} workers", [(variants.LOADER, f"{variants.LOADER}, num_workers={n}, persistent_workers=True")])
        for n in (2, 4, 8, 14)
    ]
    + [
        (
            "14 workers, prefetch_factor 4, pinned memory, non_blocking",
            [
                (
                    variants.LOADER,
                    f"{variants.LOADER}, num_workers=14, prefetch_factor=4, persistent_workers=True, pin_memory=True",
                ),
                (
                    ".to(job.device), labels.to(job.device)",
                    ".to(job.device, non_blocking=True), labels.to(job.device, non_blocking=True)",
                ),
            ],
        ),
        (
            "16 workers, prefetch_factor 4, pinned memory",
            [
                (
                    variants.LOADER,
                    f"{variants.LOADER}, num_workers=16, prefetch_factor=4, persistent_workers=True, pin_memory=True",
                )
            ],
        ),
    ],
    "3a_precision": [
        ("TF32", variants.TF32),
        ("TF32 and bf16 autocast", [*variants.TF32, *variants.autocast("3a_precision")]),
        (
            "TF32, bf16 autocast, torch.compile",
            [*variants.TF32, *variants.COMPILED, *variants.autocast("3a_precision", "compiled")],
        ),
    ],
}

_ROWS: variants.Edits = [
    ("import numpy as np\n", "import os\n\nimport numpy as np\n"),
    (
        "    for batch in job.batches:\n",
        "    shard = os.open(job.folder / SHARD, os.O_RDONLY)\n    os.fsync(shard)\n    tile = 3 * size * size\n"
        "    for batch in job.batches:\n"
        "        rows = [os.pread(shard, tile, tile * index) for index in batch]\n"
        "        stored = torch.frombuffer(bytearray().join(rows), dtype=torch.uint8).view(-1, 3, size, size)\n",
    ),
    ("torch.from_numpy(tiles[batch])", "stored"),
]
_FORGET = "os.posix_fadvise(shard, 0, 0, os.POSIX_FADV_DONTNEED)  # the pages that the system keeps of this file"
_COMPILED_TOKENS = [*variants.COMPILED, ("model(tokens)", "compiled(tokens)")]
_UNET_EAGER: variants.Edits = [("    if cuda:\n        loss_of", "    if not job:\n        loss_of")]
_UNET_UNFUSED: variants.Edits = [
    *_UNET_EAGER,
    ("fused=True", "foreach=False"),
    ("cudnn.benchmark = True", "cudnn.benchmark = False"),
]
_UNET_FIRST = [*_UNET_UNFUSED, *variants.UNET_FIRST]
_UNET_SCORES = [
    *_UNET_FIRST,
    (
        "    return F.scaled_dot_product_attention(q, k, v)",
        "    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v",
    ),
]
_UNET_TF32 = [*_UNET_SCORES, (" if cuda else nullcontext()", " if not job else nullcontext()")]
_UNET_FP32: variants.Edits = [
    *_UNET_TF32,
    (
        '    torch.set_float32_matmul_precision("high")\n',
        '    torch.set_float32_matmul_precision("highest")\n    torch.backends.cudnn.allow_tf32 = False\n',
    ),
]


def _climbing(ladder: list[tuple[str, variants.Edits]], begin: int) -> list[tuple[str, str, variants.Edits]]:
    """The rungs of a ladder above the first `begin`, which are half fixes."""
    return [
        (f"and {what}", "starter", variants.climbed(ladder, n)) for n, (what, _) in enumerate(ladder, 1) if n > begin
    ]


# beside the half fixes and the solution: (name, what it is made of, edits)
MORE_RUNGS: dict[str, list[tuple[str, str, variants.Edits]]] = {
    "2b_transfers": [
        (
            "labels in one piece",
            "starter",
            [
                (
                    "torch.stack([classes[index].to(job.device) for index in batch])",
                    "classes[torch.tensor(batch)].to(job.device)",
                )
            ],
        )
    ],
    "2c_transforms": [("nearly all cores as workers", "starter", [("// 2 if cuda", "- 2 if cuda")])],
    "2d_formats": [
        ("one shard, read row by row, warm", "solution", _ROWS),
        (
            "one shard, read row by row, cold",
            "solution",
            [*_ROWS, ("        rows = ", f"        {_FORGET}\n        rows = ")],
        ),
        ("one shard, made of one file after the other", "solution", [("pool.map(dataset.read,", "map(dataset.read,")]),
    ],
    "2e_syncs": [("neither item nor print nor synchronize", "starter", variants.THREE_SYNCS_LESS)],
    "2f_end_to_end": [
        ("all but the workers", "solution", [("len(os.sched_getaffinity(0)) // 2 if cuda else 0", "0")]),
        (
            "all but the copy ahead",
            "solution",
            [
                (
                    'device.type != "cuda":\n        yield from loader',
                    "device.type:\n        yield from ([t.to(device, non_blocking=True) for t in batch] for batch in loader)",
                )
            ],
        ),
    ],
    "2g_healthy": [
        ("16 workers", "starter", [("pin_memory=cuda)", "pin_memory=cuda, num_workers=16 if cuda else 0)")]),
        (
            "empty_cache in every step",
            "starter",
            [("        yield loss", "        torch.cuda.empty_cache()\n        yield loss")],
        ),
        ("the loss read in every step", "starter", [("        yield loss", "        loss.item()\n        yield loss")]),
    ],
    "3d_tiny_ops": [
        (
            "a fused optimizer, in a CUDA graph",
            "starter",
            [
                *variants.HALVES["3d_tiny_ops"]["a fused optimizer, and nothing else"],
                ("for step, (tokens, targets) in enumerate(loader, 1):", "for tokens, targets in loader:"),
                variants.graphed("cross_entropy(forward(model, tokens), targets)"),
            ],
        ),
        (
            "the solution, compiled",
            "solution",
            [
                (
                    "    model = job.model.to(job.device)\n",
                    "    model = job.model.to(job.device)\n    compiled = torch.compile(forward)\n",
                ),
                ("forward(model, tokens).flatten", "compiled(model, tokens).flatten"),
            ],
        ),
        ("the solution in a CUDA graph", "solution", [variants.GRAPHED]),
    ],
    "3e_compile": [
        ("compiled as it is", "starter", variants.AS_IT_IS),
        (
            "without breaks, and not compiled",
            "solution",
            [("compiled = torch.compile(loss_of, fullgraph=True, dynamic=True)", "compiled = loss_of")],
        ),
        (
            "a graph for each length",
            "solution",
            [("fullgraph=True, dynamic=True", "fullgraph=True, dynamic=False")],
        ),
    ],
    "3j_communication": [("the solution, with gradients in bf16", "solution", variants.IN_BF16)],
    "3k_healthy": [
        ("compiled", "starter", [*variants.COMPILED, ("model(tokens)", "compiled(tokens)")]),
        ("fp32 in place of bf16", "starter", [("enabled=cuda", "enabled=False")]),
        ("TF32 in place of bf16", "starter", [*variants.TF32, ("enabled=cuda", "enabled=False")]),
        ("checkpointed", "starter", variants.CHECKPOINTED),
    ],
    "4a_resnet50": [
        (
            "decoded on the GPU in every step, a batch ahead, and nothing kept",
            "solution",
            variants.DECODED_EACH_STEP,
        ),
        ("kept in the host's memory, sent a batch ahead", "solution", variants.KEPT_BY_THE_HOST),
        (
            "the solution, not compiled",
            "solution",
            [("torch.compile(loss_of) if cuda else loss_of", "loss_of")],
        ),
    ],
    "3f_attention": [
        ("torch.compile of the starter", "starter", _COMPILED_TOKENS),
        ("torch.compile of the solution", "solution", _COMPILED_TOKENS),
    ],
    "3n_lengths": [
        ("sorted, in parts of four", "starter", variants.SORTED),
        ("the solution, with cuDNN's attention", "solution", variants.CUDNN),
        ("packed, varlen attention", "solution", variants.VARLEN),
    ],
    "3o_sharded": [
        ("the solution, in fp32", "solution", variants.IN_FP32),
        ("whole weights, DDP", "solution", variants.WHOLE),
    ],
    "4e_inference": [
        ("batches by length; fp32, eager", "solution", variants.SERVED_PLAIN),
        ("bf16", "solution", variants.SERVED_EAGER),
        ("compiled", "solution", [('mode="reduce-overhead", ', "")]),
    ],
    "4c_unet": [
        ("no trouble on the CPU; fp32, eager", "solution", _UNET_FP32),
        ("TF32", "solution", _UNET_TF32),
        ("bf16 autocast", "solution", _UNET_SCORES),
        ("a fused attention", "solution", _UNET_FIRST),
        ("channels last", "solution", _UNET_UNFUSED),
        ("a fused optimizer, cuDNN's fastest algorithms", "solution", _UNET_EAGER),
        ("compiled, and no CUDA graph", "solution", [('loss_of, mode="reduce-overhead")', "loss_of)")]),
    ],
    "4b_nanogpt": [
        *_climbing(variants.GPT2_LADDER, len(variants.HALVES["4b_nanogpt"])),
        ("forward pass and loss compiled together", "plain", []),
    ],
    "4d_trainer": _climbing(variants.TRAINER_LADDER, len(variants.HALVES["4d_trainer"])),
}


def rungs(name: str) -> list[tuple[str, str]]:
    """The rungs of a lab's ladder above the starter: name and source."""
    if name in RUNGS:
        return [(what, variants.edit(variants.starter(name), edits)) for what, edits in RUNGS[name]]
    more = [(what, variants.edit(variants.base(name, of), edits)) for what, of, edits in MORE_RUNGS.get(name, [])]
    starter, best = variants.starter(name), variants.solution(name)
    last = [] if starter.strip() == best.strip() else [("the solution", best)]
    return [*variants.halves(name).items(), *more, *last]


def ladder_of(lab: AnyLab) -> dict[str, str]:
    """The rungs of a lab's ladder by name, the starter first: source text."""
    return {"starter": lab.starter, **dict(rungs(lab.name))}


def stale_rungs(lab: AnyLab, ladder: dict[str, Any]) -> set[str]:
    """The rungs whose figures are not of today's loop and form. ladder: as `ladder.json` holds it."""
    wanted, form_name = ladder_of(lab), "cuda" if ladder["machine"]["gpu"] else "cpu"
    now = {what: rung_digest(lab, form_name, source) for what, source in wanted.items()}
    return {row["rung"] for row in ladder["rungs"] if row.get("source") != now.get(row["rung"], "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--labs", default=",".join(labs.loops()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--on", type=lambda text: [int(n) for n in text.split(",")], metavar="N,N")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--night", type=Path, metavar="FOLDER")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if unknown := {*options.parts.split(",")} - {*PARTS.split(","), "rounds"}:
        parser.error(f"--parts {', '.join(sorted(unknown))}: give some of {PARTS},rounds")
    numbers = re.fullmatch(r"(\d+)/(\d+)", options.shard)
    shard, shards = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= shard <= shards:
        parser.error(f"--shard {options.shard}: give I/N, the I-th of N shares")
    out = options.out or _folder_of(machine.facts())
    parts = [] if options.table or options.night else options.parts.split(",")
    if options.night:
        out = _take_over(options.night, options.out) or out
    # beside GPUs no lab is measured on the CPU for want of more of them
    kind = choose_device(options.device)
    chosen = [lab for lab in map(labs.get, options.labs.split(",")) if choose_form(lab, kind) in lab.forms]
    chosen = [lab for lab in chosen if not too_few_devices(lab, kind)]
    if "calibration" in parts:
        for lab in chosen:
            _calibrate(lab, choose_form(lab, options.device), options.device, out.parent / "calibration.json")
    jobs = {  # one of each lab in turn: four that decode beside each other on one host are slower than four that differ
        out / job.lab / f"{_slug(what)}.json": (what, job)
        for turn in zip_longest(*(_jobs(lab, parts, options.rounds, options.device) for lab in chosen))
        for what, job in filter(None, turn)
    }
    _grade(dict(list(jobs.items())[shard - 1 :: shards]), out, options.device, options.on)
    for lab in chosen:
        if "ladder" in parts and isinstance(lab, Lab):
            _ladder(lab, choose_form(lab, options.device), out / lab.name)
    if out.is_dir():
        summary = _summary(out)
        if any(row.gains for row in summary):
            picture(summary).savefig(out / "gains.png", dpi=90)
        write_text(out / "README.md", _table(out, summary))
        print(f"table: {out / 'README.md'}")


def _calibrate(lab: Lab, form: str, device: str, shipped: Path) -> None:
    if calibrated(lab, form) and machine.key(form) not in read_json(shipped).get(f"{lab.name} {form}", {}):
        entry = measure_gain(lab, device)
        calibration.store_gain(lab, form, entry, shipped)
        print(f"{lab.name}: reference gain {entry['gain']:.2f}x, interval {entry['interval']}", flush=True)


def _jobs(lab: AnyLab, parts: list[str], rounds: int, device: str) -> list[tuple[str, Job]]:
    """The grades to be made, each with its name."""
    made: list[tuple[str, str, int, Plan | None]] = []
    starter, best = lab.starter, ""
    for n in range(rounds):
        if "grades" in parts or "rounds" in parts:
            made += [(f"starter-{n + 1}", starter, n, None), (f"solution-{n + 1}", best, n, None)]
        if "rounds" in parts:
            made.append((f"half-{n + 1}", _halfway(lab), n, None))
    edited = _is_edited(lab)
    if "half" in parts and edited:
        made += [(f"half, {what}", source, 0, None) for what, source in variants.halves(lab.name).items()]
    if "wrong" in parts and edited:
        made += [(f"wrong, {what}", source, 0, None) for what, (source, _) in variants.wrongs(lab.name).items()]
    if "cheat" in parts:
        made.append(("trains-ahead-1", variants.trains_ahead(lab.name), 0, None))
        made.append(("trains-ahead-2", variants.trains_ahead(lab.name), 0, MANY_PAIRS))
        made.append(("in-a-thread-1", variants.in_a_thread(lab.name), 0, MANY_PAIRS))  # the control beside it
    if "variants" in parts:
        for kind, sources in (("honest", variants.honest(lab.name)), ("fault", variants.faults(lab.name))):
            made += [(f"{kind}, {what}", source, 0, SHORT) for what, source in sources.items()]
    return [
        (what, Job(lab.name, _submission(lab, what, source), device, plan=plan, repeat=n))
        for what, source, n, plan in made
    ]


def _halfway(lab: AnyLab) -> str:
    return variants.halves(lab.name)[HALFWAY[lab.name]] if lab.name in HALFWAY else variants.half_fix(lab.name)


def _is_edited(lab: AnyLab) -> bool:
    """Whether it has half fixes and wrong ones: answers are no loops to be edited."""
    return isinstance(lab, Lab) or lab.name in variants.UNMADE


def _submission(lab: AnyLab, what: str, source: str) -> Submission:
    if not source:
        return solution(lab)
    # where nothing is wrong there is nothing to fix, and no points for who predicts nothing: half of it is the cause alone
    named = isinstance(lab, Lab) and lab.throughput.healthy and not lab.memory and what.startswith("half")
    return Submission(source, prediction=(("cause", lab.cause), ("gain", 3.0)) if named else None)


def _grade(jobs: dict[Path, tuple[str, Job]], out: Path, device: str, on: list[int] | None) -> None:
    """Make the grades whose files are missing. What a stopped run had measured is in the store already."""
    missing = {path: (what, job) for path, (what, job) in jobs.items() if not _is_there(path, _source_of(job))}
    if not missing:
        return
    paths: dict[str, list[Path]] = {}
    for path, (_, job) in missing.items():
        paths.setdefault(job.digest, []).append(path)
    store = Store(STORE / out.name)

    def keep(job: Job, record: dict[str, Any]) -> None:
        for path in paths[job.digest]:
            what = missing[path][0]
            if not stands(record):
                why = record.get("failed") or record["result"]["disturbed"]
                print(f"{job.lab}: {what}: not measured, {why}", flush=True)
                continue
            print(f"{job.lab}: {_keep(path, what, _source_of(job), record['result'])}", flush=True)

    by_gpus: dict[int, list[Job]] = {}
    for lab in dict.fromkeys(job.lab for _, job in missing.values()):
        form_name = choose_form(labs.get(lab), device)
        form = labs.get(lab).forms[form_name]
        if isinstance(labs.get(lab), Lab):
            prepared(form)  # once, not by each worker
        gpus = getattr(form, "ranks", 1) if form_name == "cuda" else 1
        by_gpus.setdefault(gpus, []).extend(job for _, job in missing.values() if job.lab == lab)
    for gpus, wanted in sorted(by_gpus.items()):
        with embedded(device, on, gpus_each=gpus) as pool:
            machines = pool.machines()
            for job in wanted:
                if record := store.final(job, machines):
                    keep(job, record)
            grade_all(wanted, pool, store, done=keep)


def _folder_of(facts: dict[str, Any]) -> Path:
    return MEASURED / _slug(facts["gpu"] or facts["cpu"]).strip("-")


def _take_over(night: Path, out: Path | None = None) -> Path | None:
    """Keep the first grade that a night of this course made of each starter and solution, in `out` or the folder of the machine
    that made it, which is returned. What was not measured there takes nobody's place, nor does a grade that of the first of
    several rounds, which were made for their spread."""
    told = read(night)
    if told["quick"]:
        raise SystemExit(f"{night} was a quick night: what it measured is no grade.")
    records, folder = Records(night), out
    for part in plan(told["device"], False, told["select"]["kinds"], told["select"]["labs"]):
        record = records.final(part.task) if part.kind == "grade" and part.task else None
        result = (record or {}).get("result", {})
        result = result.get("grade", result)
        if result.get("checks") and was_measured(record) and not result["disturbed"]:  # else it came to no grade
            folder, lab, what = out or _folder_of(result["machine"]), labs.get(part.subject), f"{part.what}-1"
            source = (solution(lab) if part.what == "solution" else Submission(lab.starter)).source
            path, of = folder / lab.name / f"{what}.json", digest(lab, result["form"], source)
            if _is_there(path, of) and _is_there(path.with_name(f"{part.what}-2.json"), of):
                print(f"{lab.name}: {what} stays, with the rounds beside it", flush=True)
            else:
                print(f"{lab.name}: {_keep(path, what, of, result)}", flush=True)
    return folder


def digest(lab: AnyLab, form_name: str, source: str) -> str:
    """What a figure is of: the loop, the starter beside it and the form of the lab."""
    # where its cell stands in the notebook changes no figure: it was the eighth when the first ones were measured
    source = re.sub(r"^# (submission )?cell \d+$", "# cell 8", source, flags=re.MULTILINE)
    told = json.dumps([source, lab.starter, _told(lab.forms[form_name])])
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def rung_digest(lab: AnyLab, form_name: str, source: str) -> str:
    """The same of a rung: no tolerance changes its milliseconds, no learning rate, and no size that work is judged by."""
    form = lab.forms[form_name]
    options = {name: value for name, value in form.options.items() if name != "lr"}
    form = replace(form, parity=None, options=options, matrix=None)
    return digest(replace(lab, forms={form_name: form}), form_name, source)


# a field's name when its figures were measured, where it has another one now
FORMER = {"max_tokens_per_forward": "at_once", "min_h2d_bytes": "crossed"}


def _told(value: Any) -> Any:
    """A form as JSON, without what is left at its default: a field that came later, and is not used, changes no figure."""
    if not is_dataclass(value):
        return repr(value)
    return {
        FORMER.get(each.name, each.name): _told(getattr(value, each.name))
        for each in fields(value)
        # how much memory it needs, and where that was seen, changes no figure
        if getattr(value, each.name) != _default(each) and each.name not in ("gpu_memory", "measured")
    }


def _default(each: Field) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _source_of(job: Job) -> str:
    lab = labs.get(job.lab)
    return digest(lab, choose_form(lab, job.device), job.submission.source)


def _is_there(path: Path, source: str) -> bool:
    return _read(path).get("source") == source


def _read(path: Path) -> dict[str, Any]:
    """A result; empty where it is missing or damaged, for then it is measured again."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _named(lab: AnyLab, told: dict[str, Any], sources: dict[str, str], form_name: str) -> str:
    """What a grade is of, and whether that is as it was. sources: what there is by now, by name; repeats have a number behind it."""
    what = told["what"]
    there = _is_today_s(lab, told, sources.get(what) or sources.get(re.sub(r"-\d+$", "", what)), form_name)
    return what if there else f"{what} {STALE}"


def _is_today_s(lab: AnyLab, told: dict[str, Any], source: str | None, form_name: str) -> bool:
    """Whether a result is of this source; None: that of a loop that is no more."""
    return source is not None and told.get("source") == digest(lab, form_name, source)


def _sources(lab: AnyLab) -> dict[str, str]:
    """The loops that are graded, by name."""
    made = {"starter": lab.starter, "solution": solution(lab).source}
    if _is_edited(lab):
        halves = variants.halves(lab.name)
        made |= {"half": _halfway(lab), **{f"half, {what}": each for what, each in halves.items()}}
        made |= {f"wrong, {what}": each for what, (each, _) in variants.wrongs(lab.name).items()}
    if isinstance(lab, Lab):
        made |= {f"honest, {what}": each for what, each in variants.honest(lab.name).items()}
        made |= {f"fault, {what}": each for what, each in variants.faults(lab.name).items()}
        made |= {"trains-ahead": variants.trains_ahead(lab.name), "in-a-thread": variants.in_a_thread(lab.name)}
    return made


def _keep(path: Path, what: str, source: str, graded: dict[str, Any]) -> str:
    """Write a grade, and the trace before and after as a picture if it is the first of a solution; what to say of it."""
    result = Result.from_dict(graded)
    if what == "solution-1" and all(result.timelines.get(each, {}).get("lanes") for each in ("before", "after")):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(result.timelines).savefig(path.with_name(TIMELINES), dpi=80)
    result.timelines, result.output = {}, ""  # large; and full of the paths of this machine
    write_json(path, {"what": what, "source": source, **result.to_dict()})
    return _line(what, result)


def _line(what: str, result: Result) -> str:
    evidence = next((c.evidence for c in result.checks if c.name == "throughput"), {})
    gain = f"{evidence['gain']:.2f}x" if evidence else "-"
    verdicts = ", ".join(f"{c.name} {c.status}" for c in result.checks)
    return f"{what}: {result.score:g}/{result.measured_max:g}, gain {gain}, {result.seconds:.0f} s, {verdicts} {result.fatal}"


def _ladder(lab: Any, form_name: str, folder: Path) -> None:
    """Write the lab's ladder.json: milliseconds a step and gain of each rung, from its grade where there is one. The others
    are timed alone, each beside the starter of the same run: machines of one kind differ. Each rung is written when it is
    there, and one that is there is not measured again, unless it was changed."""
    path, wanted = folder / "ladder.json", ladder_of(lab)
    sources = {what: rung_digest(lab, form_name, source) for what, source in wanted.items()}
    there = _read(path)
    rows = {row["rung"]: row for row in there.get("rungs", []) if row.get("source") == sources.get(row["rung"])}
    for (
        what,
        row,
    ) in rows.items():  # one of an older file names no machine: it is the file's, which is written anew below
        rows[what] = _made_on(there) | row
    facts = {"machine": machine.facts(), "versions": machine.versions(), "date": time.strftime("%Y-%m-%d")}
    alone = functools.cache(lambda what: _alone(lab.forms[form_name], form_name, wanted[what]))
    solved = digest(lab, form_name, solution(lab).source)
    missing = {what: source for what, source in wanted.items() if what not in rows}
    graded = {what: _graded(folder, what, solved, digest(lab, form_name, text)) for what, text in missing.items()}
    for what in sorted(graded, key=lambda what: graded[what] is None):  # what costs no time first
        step_ms, gain, of = graded[what] or (alone(what), alone("starter") / alone(what), facts)
        rows[what] = {"rung": what, "step_ms": round(step_ms, 2), "gain": round(gain, 2), "source": sources[what]}
        # of its own, for it may be another machine's than the others'
        rows[what] |= _made_on(of)
        write_json(path, {"rungs": sorted(rows.values(), key=lambda row: [*wanted].index(row["rung"])), **facts})
        print(f"{lab.name}: {rows[what]}", flush=True)


def _made_on(of: dict[str, Any]) -> dict[str, Any]:
    """What a row says of when and on what it was measured. of: a result, or a whole ladder."""
    return {"date": of["date"][:10], "cores": of["machine"]["cores"], "torch": of["versions"]["torch"]}


def _graded(folder: Path, what: str, solved: str, source: str) -> tuple[float, float, dict[str, Any]] | None:
    """Milliseconds a step and gain of a rung as its grade found them, and that grade; None where it was not graded, or nothing
    was timed. The starter's are those beside the solution, whose digest is `solved`."""
    graded = {"starter": "solution-1", "the solution": "solution-1"}.get(what) or _slug(f"half, {what}")
    path = folder / f"{graded}.json"
    if not _is_there(path, solved if what == "starter" else source):
        return None
    result = _read(path)
    evidence = _timed(result)
    if not evidence:
        return None
    if what == "starter":
        return evidence["starter_ms"], 1.0, result
    return evidence["submission_ms"], evidence["gain"], result


def _alone(form: Any, form_name: str, source: str) -> float:
    """Milliseconds per step of a loop that is alone on the machine, after its loader's head start is burnt, with its share of
    the preparation where there is one."""
    with open_arm(source, set_up(form, form_name)) as ours:
        ours.child.load()
        share = ours.prepare(form.prepare_s) / form.prepared_for if form.prepare_s else 0.0
        ours.child.start(1)
        ours.warm_up(8)
        ours.burn()
        return 1e3 * median(share + ours.run(whole_rounds(1.5, ours.step_s)) for _ in range(3))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def _parity_table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Honest forms and planted faults by name: what parity says of them. Their few short blocks say nothing of their speed."""
    rows = []
    for what, r in results.items():
        check = next((c for c in r["checks"] if c["name"] == "parity"), None)
        e = check["evidence"] if check else {}
        numbers = (e.get(k) for k in ("loss_difference", "update_norm_ratio", "update_cosine"))
        shown = " | ".join("-" if x is None else f"{x:.5f}" for x in numbers)
        rows.append(f"| {what} | {check['status'] if check else '-'} | {shown} |")
    heads = [
        "",
        "| form or fault | same training | loss difference | norm of the update | its cosine |",
        "|---|---|---|---|---|",
    ]
    return heads + rows if rows else []


def _results(folder: Path) -> list[dict[str, Any]]:
    """The grades of a lab in the order of their names, and its ladder."""
    return sorted(filter(None, map(_read, folder.glob("*.json"))), key=lambda told: told.get("what", ""))


def _timed(result: dict[str, Any]) -> dict[str, Any]:
    """The evidence of a grade's throughput; empty where nothing was timed."""
    return next((c["evidence"] for c in result["checks"] if c["name"] == "throughput"), {})


@dataclass
class Row:
    """What was measured of one lab, by kind of submission: points, and gains as (gain, lower, upper)."""

    lab: str
    points: dict[str, list[float]]  # of each of MARKED: each grade's points in percent of what could be measured
    gains: dict[str, list[tuple[float, float, float]]]
    date: str
    hosts: set[tuple[str, int, str]]  # see `_host`


def _host(told: dict[str, Any]) -> tuple[str, int, str]:
    """GPU or CPU, cores and torch of a result or a ladder."""
    machine = told["machine"]
    return machine["gpu"] or machine["cpu"], machine["cores"], told["versions"]["torch"]


def _made_by(hosts: set[tuple[str, int, str]]) -> str:
    """All of them in a few words: figures of one kind of machine are often made with several numbers of cores."""
    names, cores, torch = (sorted(set(each)) for each in zip(*hosts, strict=True))
    several = ", ".join(map(str, cores[:-1])) + " or " * (len(cores) > 1) + str(cores[-1])
    return f"{', '.join(names)}, {several} cores, torch {', '.join(torch)}"


def _summary(out: Path) -> list[Row]:
    """The labs in order, those with a solution or starter that was graded."""
    rows = []
    for folder in sorted(p for p in out.iterdir() if p.is_dir()):
        row = Row(folder.name, {}, {}, "", set())
        for result in _results(folder):
            kind = re.split("[-,]", result.get("what", ""))[0]
            if kind not in MARKED or not result["measured_max"]:
                continue
            row.points.setdefault(kind, []).append(100 * result["score"] / result["measured_max"])
            row.date = max(row.date, result["date"][:10])
            row.hosts.add(_host(result))
            if e := _timed(result):
                row.gains.setdefault(kind, []).append((e["gain"], e["gain_lower"], e["gain_upper"]))
        if row.points:
            rows.append(row)
    return rows


def _range(values: list[float], form: str = ".0f", unit: str = "") -> str:
    low, high = (f"{each:{form}}" for each in (min(values, default=0), max(values, default=0)))
    return "-" if not values else f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _summary_table(rows: list[Row]) -> list[str]:
    text = [
        "Points in percent, lowest to highest; gains of the solution. What is empty was not measured; what was measured before a loop or its form was changed is marked below.",
        "",
        f"| lab | {' | '.join(MARKED.values())} | gain | grades | last |",
        f"|---|{'---|' * len(MARKED)}---|---|---|",
    ]
    for row in rows:
        points = (_range(row.points.get(kind, [])) for kind in MARKED)
        gain = _range([gain for gain, _, _ in row.gains.get("solution", [])], ".3g", "x")
        text.append(
            f"| {row.lab} | {' | '.join(points)} | {gain} | {sum(map(len, row.points.values()))} | {row.date} |"
        )
    return [*text, "", *["![Gains by lab](gains.png)", ""] * any(row.gains for row in rows)]


def picture(rows: list[Row]) -> Figure:
    """Gains of starters, half fixes and solutions with their 90% intervals, a line a lab."""
    rows = [row for row in rows if row.gains]
    figure = Figure(figsize=(9, 1.2 + 0.3 * len(rows)), facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.set_title(_made_by(set().union(*(row.hosts for row in rows))), fontsize=10, loc="left")
    marks = {"starter": (INK, "|", "starter"), "half": (ORANGE, "o", "half fix"), "solution": (BLUE, "D", "solution")}
    for kind, (color, marker, label) in marks.items():
        found = [(y, *gain) for y, row in enumerate(rows) for gain in row.gains.get(kind, [])]
        if found:
            y, gain, low, high = zip(*found, strict=True)
            axes.hlines(y, low, high, color=color, linewidth=1.5, alpha=0.6)
            axes.plot(gain, y, marker, color=color, markersize=6, linestyle="none", label=label)
    axes.axvline(1, color=FAINT, zorder=0)
    axes.set(
        xscale="log",
        xlabel="times as fast as the starter, with the 90% interval of each grade",
        ylim=(len(rows) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(rows)), [row.lab for row in rows])
    ticks = [1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False)
    return figure


def ladder_made_on(ladder: dict[str, Any]) -> str:
    """The machines and versions of a ladder's rungs, and when."""
    machine, versions, rungs = ladder["machine"], ladder["versions"], ladder["rungs"]
    python = ".".join(versions["python"].split(".")[:2])
    cores = " or ".join(map(str, sorted({row.get("cores", machine["cores"]) for row in rungs})))
    torch = " and ".join(sorted({row.get("torch", versions["torch"]) for row in rungs}))
    dates = sorted({row.get("date", ladder["date"]) for row in rungs})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{machine['gpu'] or machine['cpu']}, {cores} CPU cores, torch {torch}, Python {python}, {when}"


def _table(out: Path, summary: list[Row]) -> str:
    """Markdown: the summary, then one line a result, grouped by lab."""
    text = ["# Measured", "", *_summary_table(summary)]
    for folder in sorted(p for p in out.iterdir() if p.is_dir()):
        results = _results(folder)
        if not results:
            continue
        lab = labs.get(folder.name)
        sources = _sources(lab)
        graded = [r for r in results if "what" in r]
        ladder = [r for r in results if "rungs" in r]
        some = graded or ladder
        first, last = (pick(r["date"][:10] for r in some) for pick in (min, max))
        when = first if first == last else f"{first} to {last}"
        other = {name: sorted({r["versions"].get(name) for r in some} - {None}) for name in ("python", "torchvision")}
        packages = "".join(f", {name} {', '.join(found)}" for name, found in other.items() if found)
        text += [f"## {folder.name}", "", f"{_made_by(set(map(_host, some)))}{packages}; {when}", ""]
        marked = [r for r in graded if not r["what"].startswith(KINDS)]
        if marked:
            text += ["| what | points | gain | 90% interval | same training | seconds |", "|---|---|---|---|---|---|"]
        for r in marked:
            checks = {c["name"]: c for c in r["checks"]}
            e = _timed(r)
            gain = f"{e['gain']:.2f} | {e['gain_lower']:.2f} to {e['gain_upper']:.2f}" if e else "- | -"
            same = checks["parity"]["status"] if "parity" in checks else r["fatal"] or "-"
            what = _named(lab, r, sources, r["form"])
            text.append(f"| {what} | {r['score']:g} of {r['measured_max']:g} | {gain} | {same} | {r['seconds']:.0f} |")
        others = [r for r in graded if r["what"].startswith(KINDS)]
        text += _parity_table({_named(lab, r, sources, r["form"]): r for r in others})
        if (folder / TIMELINES).exists():
            text += ["", f"![Trace of the starter and of the solution]({folder.name}/{TIMELINES})"]
        for r in ladder:
            text += ["", f"{ladder_made_on(r)}. {TURNS}", "", "| rung | ms a step | gain |", "|---|---|---|"]
            stale = stale_rungs(lab, r)
            for row in r["rungs"]:
                name = row["rung"] + f" {STALE}" * (row["rung"] in stale)
                text.append(f"| {name} | {row['step_ms']} | {row['gain']}x |")
        text.append("")
    return "\n".join(text)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
