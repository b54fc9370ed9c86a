"""Lab 4b's reference and what was tried for its last rung beside stock nanoGPT, in one run on one GPU: tokens per second, their ratio,
MFU against the peak that was measured on this device, and the loss curves of the reference and of --curves beside that of the fp32 run.

    python -m tests.benchmarks.nanogpt_peer --peer CHECKOUT [--batches 12,32,64] [--ours 32,64] [--forms NAME;NAME] [--kernels] [--curve 50] [--curves NAME;NAME]

CHECKOUT is one of github.com/karpathy/nanoGPT; its bench.py runs as it is, on random tokens (`--real_data=False`), compiled, in
bf16. Ours are asked for real batches of tokens and driven without the grader. Several of them compile at once, one at a time is
timed. `--list` names the forms; `--kernels` also records which kernels a step's GPU time goes to. The figures go to
`data/measured/DEVICE/nanogpt_peer_DATE.json`; run again with other --forms or --ours, new ones are added to those of the same day."""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from grader import labs, machine
from grader.data import prepare, real
from grader.devices import PEAKS
from grader.errors import UserError
from grader.result import write_json
from tests import variants

LAB = labs.get("4b_nanogpt")
REPOSITORY = Path(__file__).resolve().parents[2]
MEASURED = REPOSITORY / "data" / "measured"
WARM, TIMED = 6, 20  # steps; bench.py itself warms up for 10 and times 20
BENCH_S = 600  # at most
SEED = 1337
# without what makes numbers shorter, to compare losses with
FP32: variants.Edits = [('"high"', '"highest"'), ("enabled=cuda", "enabled=False")]
THE_SOLUTION, COMPILED, IN_FP32 = "the solution", "compiled, and nothing more", "compiled, in fp32"


def forms() -> dict[str, str]:
    """What can be run, by name: source text."""
    plain = variants.base(LAB.name, "plain")
    made = {name: variants.edit(plain, edits) for name, edits in variants.GPT2_CANDIDATES.items()}
    return {THE_SOLUTION: variants.solution(LAB.name), COMPILED: plain, **made, IN_FP32: variants.edit(plain, FP32)}


def flops_per_token(form: str = "cuda") -> float:
    """As nanoGPT's estimate_mfu counts them, after PaLM (https://arxiv.org/abs/2204.02311, appendix B): 6 for each weight but the
    positions', and 12 x layers x width x length for an attention that is counted whole, not causal."""
    o = LAB.forms[form].options
    weights = o["layers"] * (12 * o["width"] ** 2 + 2 * o["width"]) + o["width"] * (o["vocabulary"] + 1)
    return 6 * weights + 12 * o["layers"] * o["width"] * o["length"]


# ---------------------------------------------------------------- the peer


def bench(checkout: Path, batch: int) -> float:
    """Seconds a step of nanoGPT's own bench.py. Raises UserError where it does not run or says nothing."""
    if not (checkout / "bench.py").is_file():
        raise UserError(f"{checkout} holds no bench.py: give the folder of a checkout of nanoGPT.")
    command = [sys.executable, "bench.py", f"--batch_size={batch}", "--real_data=False"]
    try:
        ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=BENCH_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"bench.py took more than {BENCH_S} s with a batch of {batch}.") from None
    if ran.returncode:
        raise UserError(f"bench.py failed with a batch of {batch}: {(ran.stderr.strip() or 'no message')[-600:]}")
    found = re.findall(r"time per iteration:\s*([0-9.]+)\s*ms", ran.stdout)
    if not found:
        raise UserError(f"bench.py printed no time per iteration with a batch of {batch}: {ran.stdout[-300:]!r}")
    return float(found[-1]) / 1e3


# ---------------------------------------------------------------- ours


def loaded(source: str, folder: Path) -> ModuleType:
    """The source as a module on disk, as the grader loads it."""
    path = folder / f"loop_{abs(hash(source)):x}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def child(form: str, batch: int, device: str, data: str, with_kernels: bool) -> None:
    """Compile and warm up, say so, wait for a line that says how many steps to time, and print what they took."""
    import torch

    from grader.workloads import gpt

    declared = LAB.forms[device]
    options = declared.options | {"batch_size": batch, "folder": data}
    with tempfile.TemporaryDirectory() as folder:
        job = gpt.make_job(SEED, torch.device(device), **options)
        loop = loaded(forms()[form], Path(folder)).train(job)
        began = time.perf_counter()
        losses = [next(loop).item() for _ in range(WARM)]
        compile_s = time.perf_counter() - began
        print("ready", flush=True)
        steps = int(sys.stdin.readline())
        kept = []
        began = time.perf_counter()
        for _ in range(steps):
            kept.append(next(loop).clone())
        kept[-1].item()
        seconds = time.perf_counter() - began
        kernels = kernels_of(loop) if with_kernels and device == "cuda" else []
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    losses += [loss.item() for loss in kept]
    found = {"step_s": seconds / steps, "compile_s": compile_s, "peak_bytes": peak, "losses": losses}
    print(json.dumps(found | ({"kernels": kernels} if kernels else {})))


def kernels_of(loop: Iterator[Any], steps: int = 3) -> list[dict[str, Any]]:
    """The kernels, copies and fills of a step, those that take longest in all first: name, ms a step, how many a step."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            next(loop).item()
    spent: dict[str, list[float]] = {}
    for event in recorded.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            spent.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e3)
    longest = sorted(spent.items(), key=lambda item: -sum(item[1]))
    return [{"name": name[:130], "ms": sum(ms) / steps, "count": len(ms) / steps} for name, ms in longest]


def started(form: str, batch: int, device: str, data: str, with_kernels: bool, errors: IO[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.benchmarks.nanogpt_peer", "--child", form]
    command += ["--ours", str(batch), "--device", device, "--data", data, *(["--kernels"] if with_kernels else [])]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, stdin=pipe, stdout=pipe, stderr=errors)


def run(
    wanted: list[tuple[str, int, int]], device: str, data: str, at_once: int, with_kernels: bool = False
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Time forms: (name, batch, steps) each. `at_once` of them compile side by side, then each is timed alone."""
    for first in range(0, len(wanted), at_once):
        some = wanted[first : first + at_once]
        with contextlib.ExitStack() as stack:
            compiling = []
            for form, batch, _ in some:
                errors = stack.enter_context(tempfile.TemporaryFile("w+"))
                process = stack.enter_context(started(form, batch, device, data, with_kernels, errors))
                stack.callback(process.kill)
                compiling.append((process, errors))
            ready = [_until_ready(process) for process, _ in compiling]
            for (form, batch, steps), (process, errors), is_ready in zip(some, compiling, ready, strict=True):
                said = process.communicate(f"{steps}\n")[0] if is_ready else ""
                lines = [line for line in said.splitlines() if line.startswith("{")]
                yield form, batch, json.loads(lines[-1]) if lines else {"error": _last_words(process, errors)}


def _until_ready(process: subprocess.Popen) -> bool:
    return any(line.strip() == "ready" for line in iter(process.stdout.readline, ""))


def _last_words(process: subprocess.Popen, errors: IO[str]) -> str:
    process.wait()
    errors.seek(0)
    lines = [line for line in errors.read().splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"it ended with {process.returncode}"


# ---------------------------------------------------------------- one table


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, the fastest last. The ratio is to nanoGPT at its best batch size."""
    fastest = max((row["tokens_s"] for row in rows if row["what"] == "nanoGPT"), default=None)
    text = [
        "| what | batch | tokens/s | of nanoGPT's best | MFU | peak memory | first steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row.get("tokens_s") or 0):
        if "error" in row:
            text.append(f"| {row['what']} | {row['batch']} | {row['error']} | | | | |")
            continue
        ratio = f"{row['tokens_s'] / fastest:.3f}" if fastest else "-"
        mfu = f"{row['mfu']:.1%}" if row["mfu"] else "unknown"
        memory = f"{row['peak_bytes'] / 2**30:.1f} GiB" if row.get("peak_bytes") else "-"
        first = f"{row['compile_s']:.0f} s" if row.get("compile_s") else "-"
        text.append(
            f"| {row['what']} | {row['batch']} | {row['tokens_s']:,.0f} | {ratio} | {mfu} | {memory} | {first} |"
        )
    return "\n".join(text)


def curve(losses: dict[str, list[float]]) -> str:
    """Markdown: the losses of some steps by form, and how far each form is from the fp32 run on average and at most."""
    exact = losses[IN_FP32]
    forms = [name for name in losses if name != IN_FP32]
    off = {name: [abs(a - b) / b for a, b in zip(losses[name], exact, strict=True)] for name in forms}
    text = [
        f"{name}: {sum(o) / len(o):.4%} from the fp32 run on average, {max(o):.4%} at most." for name, o in off.items()
    ]
    text += ["", f"| step | in fp32 | {' | '.join(forms)} |", "|---|---" + "|---" * len(forms) + "|"]
    for step in sorted({*range(0, len(exact), 5), len(exact) - 1}):
        text.append(
            f"| {step} | {exact[step]:.4f} | " + " | ".join(f"{losses[name][step]:.4f}" for name in forms) + " |"
        )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--peer", type=Path, help="a checkout of nanoGPT; without it only ours are measured")
    parser.add_argument("--batches", type=numbers, default=[12, 32, 64], help="of nanoGPT's bench.py")
    parser.add_argument("--ours", type=numbers, default=[32, 64], help="batch sizes of ours")
    parser.add_argument("--forms", help="names separated by semicolons, with --list's words; all by default")
    parser.add_argument("--curve", type=int, default=50, metavar="STEPS", help="of the loss curve; 0 for none")
    parser.add_argument("--curves", default=THE_SOLUTION, help="the forms whose curve is wanted, as --forms")
    parser.add_argument("--kernels", action="store_true", help="profile three steps of each form, too (on a GPU)")
    parser.add_argument("--at-once", type=int, default=3, help="how many compile side by side")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--data", help="a folder with nanoGPT's own train.bin and val.bin; the course's tokens without it"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.ours[0], options.device, options.data, options.kernels)
        return
    if options.list:
        print("\n".join(forms()))
        return
    try:
        measure(options)
    except UserError as error:
        sys.exit(str(error))


def measure(options: argparse.Namespace) -> None:
    if options.device == "cuda" and not machine.has_gpu():
        raise UserError("There is no NVIDIA GPU here; --device cpu tries the program out on the lab's tiny form.")
    names = lambda text: [name.strip() for name in text.split(";")]  # noqa: E731
    chosen = names(options.forms) if options.forms else [n for n in forms() if n != IN_FP32]
    curves = [*names(options.curves), IN_FP32] if options.curve else []
    if unknown := {*chosen, *curves} - set(forms()):
        raise UserError(f"no such form: {', '.join(unknown)}. --list names them.")
    name = (machine.gpu_name() if options.device == "cuda" else machine.cpu_name()) or "unknown"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    today = time.strftime("%Y-%m-%d")
    out = options.out or MEASURED / slug / f"nanogpt_peer_{today}.json"
    kept = json.loads(out.read_text()) if out.exists() else {}
    if kept.get("date") != today:
        kept = {}
    rows = kept.get("rows", [])
    length = LAB.forms[options.device].options["length"]
    peak = PEAKS[name].half if name in PEAKS else None

    def add(what: str, batch: int, found: dict[str, Any]) -> None:
        row = {"what": what, "batch": batch} | {k: v for k, v in found.items() if k != "losses"}
        if "step_s" in found:
            row["tokens_s"] = batch * length / found["step_s"]
            row["mfu"] = row["tokens_s"] * flops_per_token(options.device) / peak if peak else None
        rows[:] = [old for old in rows if (old["what"], old["batch"]) != (what, batch)] + [row]
        print(f"{what}, batch {batch}: {row.get('error') or format(row['tokens_s'], ',.0f') + ' tokens/s'}", flush=True)
        keep()

    def keep() -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine.facts(), "versions": machine.versions(), "date": today, "peak_flops": peak}
        write_json(out, kept | {"rows": rows} | facts)

    data = str(real.token_files(Path(options.data)) if options.data else prepare(LAB.forms[options.device].data))
    for batch in options.batches if options.peer else ():
        try:
            add("nanoGPT", batch, {"step_s": bench(options.peer, batch)})
        except UserError as error:
            add("nanoGPT", batch, {"error": str(error)})
    wanted = [(form, batch, TIMED) for batch in options.ours for form in chosen]
    for form, batch, found in run(wanted, options.device, data, options.at_once, options.kernels):
        add(form, batch, found)
    if curves:
        batch = LAB.forms[options.device].options["batch_size"]
        asked = [(form, batch, max(1, options.curve - WARM)) for form in curves]
        losses = {form: found.get("losses") for form, _, found in run(asked, options.device, data, options.at_once)}
        if all(losses.values()):
            kept["losses"] = losses
            keep()
        else:
            print(f"no curve: {', '.join(form for form, found in losses.items() if not found)} failed")
    print(f"\n{name}, {os.cpu_count()} cores, torch {machine.versions()['torch']}, {today}\n\n{table(rows)}")
    if kept.get("losses"):
        print(f"\n{curve(kept['losses'])}")
    print(f"\nwritten to {out}")


if __name__ == "__main__":
    main()
