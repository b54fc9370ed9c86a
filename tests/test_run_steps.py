"""`grader run`: what is seen of jobs of all kinds, in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from grader import trace
from grader.frontends.run import summary
from grader.own import record as records
from grader.own.running import Seen
from tests.own_jobs import CLOCK, LOOK, MODEL, STEPS, script, watched, watched_all


def test_a_job_is_timed_and_recorded(tmp_path):
    """Also one that looks for torch before it imports it, as transformers and accelerate do."""
    look = "import importlib.util; importlib.util.find_spec('torch')\n"
    process, seen = watched(tmp_path, look, MODEL, STEPS)
    (look,) = process["looks"]
    assert seen.status == 0
    assert process["steps"] == 80
    assert process["by"] == "optimizer"
    assert process["parameters"] == 161
    assert [len(window) for window in look["step_s"]] == [10, 10] or min(map(len, look["step_s"])) >= 10
    assert all(second > 0 for window in look["step_s"] for second in window)
    recorded = trace.read(Path(look["trace"]))
    assert len(recorded.steps) >= 8
    assert {"backward", "optimizer"} <= process["parts"].keys()


def test_a_device_that_is_neither_cuda_s_nor_the_cpu_is_named(tmp_path):
    """PyTorch's meta device is one, and has neither a name nor autocast."""
    body = MODEL.replace("import torch\n", "import torch; torch.set_default_device('meta')\n")
    process, seen = watched(tmp_path, body, STEPS, options={**LOOK, "ask": ["autocast"]})
    assert (seen.status, process["steps"], process["device"]) == (0, 80, "meta")


STEPPING = {
    "accumulation": """
        for _ in range(20):
            for _ in range(4): nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()
            optimizer.step()
    """,
    "long accumulation": """
        for _ in range(20):
            for _ in range(40): nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()
            optimizer.step()
    """,
    "two optimizers": """
        other = torch.optim.SGD(nn.Linear(2, 2).parameters())
        for _ in range(20):
            other.step(); step(); other.step()
    """,
    "gradient penalty": """
        for _ in range(20):
            x = torch.ones(4, 8, requires_grad=True)
            torch.autograd.grad(model(x).sum(), x, create_graph=True)
            step()
    """,
    "group by group, as DeepSpeed": """
        groups = [{**optimizer.param_groups[0], "params": [p]} for p in model.parameters()]
        for _ in range(20):
            model(data[:4][0]).sum().backward()
            for group in groups:
                optimizer.param_groups = [group]; optimizer.step()
    """,
    "gradients from elsewhere": """
        for _ in range(20):
            for p in model.parameters(): p.grad = torch.randn_like(p)
            optimizer.step()
    """,
    "many evaluations in a step": """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60)
        def again():
            optimizer.zero_grad(); loss = model(data[:64][0]).sin().sum(); loss.backward(); return loss
        for _ in range(20): optimizer.step(again)
    """,
    "a new optimizer each epoch, and the old ones are kept": """
        kept = []
        for _ in range(4):
            optimizer = torch.optim.AdamW(model.parameters())
            kept.append(optimizer)
            for _ in range(5): step()
    """,
    "one that wraps another": """
        class Outer(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(list(model.parameters()), {}); self.inner = inner
            def step(self): self.inner.step()
        optimizer = Outer(optimizer)
        for _ in range(20): step()
    """,
    "seldom steps of the largest": """
        small = nn.Linear(2, 2)
        other = torch.optim.SGD(small.parameters(), 0.1)
        for _ in range(21):
            for _ in range(15):
                small(torch.ones(1, 2)).sum().backward(); other.step()
            step()
    """,
    "clients that train one after another": """
        clients = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(4)]
        optimizers = [torch.optim.SGD(client.parameters(), 0.1) for client in clients]
        for which in (0,) * 4 + (1, 1, 2, 2, 3, 3, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 0):  # one is a step before that is known
            clients[which](data[:4][0]).sum().backward(); optimizers[which].step()
    """,
    "many models side by side": """
        models = [nn.Linear(8, 1) for _ in range(30)]
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in models]
        for _ in range(21):
            for each, optimizer in zip(models, optimizers):
                each(data[:4][0]).sum().backward(); optimizer.step()
    """,
    "a lazy module that is never called": """
        lazy = nn.ModuleList([model, nn.LazyLinear(3)])
        optimizer = torch.optim.AdamW(lazy.parameters())
        for _ in range(20):
            step(); lazy.eval(); lazy.train()
    """,
    # what the watcher is told on a GPU, in the order in which it is told; there is no graph on a CPU
    "a graph that holds the optimizer": """
        import grader_watch
        class Graph: pass
        watch, graph, other = grader_watch.watch, Graph(), Graph()
        for _ in range(3):
            step()
        grader_watch._capturing = lambda: True
        step()
        grader_watch._capturing = lambda: False
        watch.graph_captured(graph); watch.graph_captured(other)
        for _ in range(17):
            watch.graph_replayed(graph); watch.graph_replayed(other)
    """,
    "a scaler that skips": """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
        for n in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data[:4][0]), data[:4][1])
            scaler.scale(loss * (float("inf") if n % 4 == 3 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
    """,
}


def test_steps_are_found(tmp_path):
    found = watched_all(tmp_path, STEPPING)
    assert {name: each["steps"] for name, each in found.items()} == dict.fromkeys(STEPPING, 20)
    assert {each["by"] for each in found.values()} == {"optimizer", "graph"}
    assert found["a scaler that skips"]["counts"]["skipped"] == 5


def test_another_optimizer_takes_over_where_the_main_one_has_ended(tmp_path):
    """A second phase, that trains less. Some steps pass until it is sure."""
    body = """
        for _ in range(30): step()
        head = torch.optim.SGD(model[2].parameters(), 0.1)
        for _ in range(60):
            model(data[:4][0]).sum().backward(); head.step()
    """
    process, _ = watched(tmp_path, MODEL, body)
    assert 75 <= process["steps"] <= 90


def test_steps_without_an_optimizer_are_found(tmp_path):
    bodies = {
        "backward": """
            for _ in range(70):
                nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()
                model.zero_grad()
        """,
        "grad": """
            for _ in range(70):
                torch.autograd.grad(model(data[:4][0]).sum(), list(model.parameters()))
        """,
        "backward of backward": """
            from torch.utils.checkpoint import checkpoint
            for _ in range(70):
                x = data[:4][0].clone().requires_grad_()
                checkpoint(model[2], checkpoint(model[:2], x, use_reentrant=True), use_reentrant=True).sum().backward()
                model.zero_grad()
        """,
    }
    found = watched_all(tmp_path, bodies, MODEL.replace("optimizer = ", "optimizer = None  # "))
    assert {name: (each["steps"], each["by"]) for name, each in found.items()} == {
        name: (70, name.partition(" ")[0]) for name in bodies
    }


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["update", "whole"])
def test_an_optimizer_that_is_compiled_is_compiled_as_without_us(tmp_path, compiled):
    """Its steps can't be seen from within: the backward passes are counted, also where they lie between two compiled parts."""
    body = """
        def update():
            optimizer.step()
        def whole():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data[:16][0]), data[:16][1])
            loss.backward()
            update()
            return loss.detach()
        COMPILED = torch.compile(COMPILED, backend="eager")
        for n in range(80):
            loss = whole()
        print(loss.item().hex(), dict(torch._dynamo.utils.counters["stats"]), file=open(sys.argv[1], "w"))
    """
    body = body.replace("COMPILED", compiled)
    plain = subprocess.run([sys.executable, script(tmp_path, MODEL, body), "plain"], cwd=tmp_path)
    process, seen = watched(tmp_path, MODEL, body, arguments=["watched"], cwd=tmp_path)
    assert plain.returncode == seen.status == 0
    assert (tmp_path / "plain").read_text() == (tmp_path / "watched").read_text()
    assert (process["steps"], process["by"]) == (80, "backward")


def test_a_function_can_end_the_steps(tmp_path):
    body = """
        def turn():
            step(); step()
        for _ in range(30):
            turn()
            time.sleep(0.03)
    """
    process, _ = watched(tmp_path, MODEL, body, options={**LOOK, "step": "__main__:turn"})
    assert process["by"] == "function"
    assert 25 <= process["steps"] <= 30  # its first calls may come before it is found


@pytest.mark.parametrize(("start", "epochs"), [("fork", 3), pytest.param("spawn", 1, marks=pytest.mark.slow)])
def test_workers_of_a_loader_are_no_part_of_it(tmp_path, start, epochs):
    body = f"""
        if __name__ == "__main__":
            for _ in range({epochs}):
                loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, multiprocessing_context="{start}")
                for batch in loader:
                    step(batch)
    """
    process, seen = watched(tmp_path, MODEL, body)
    assert seen.status == 0
    assert process["steps"] == process["counts"]["batches"] == 32 * epochs
    assert process["loader"] == {"workers": 2, "prefetch": 2, "batch": 32}
    assert process["total_s"]["data_wait"] > 0


def test_samples_are_those_of_all_loaders_and_unequal_steps_are_timed_in_whole_rounds(tmp_path):
    body = """
        def forever(batch):
            while True:
                yield from torch.utils.data.DataLoader(data, batch_size=batch)
        labelled, others = forever(16), forever(64)
        for n in range(120):
            next(others); step(next(labelled)); clock[0] += 0.05 if n % 3 == 0 else 0.005
    """
    process, seen = watched(tmp_path, CLOCK, MODEL, body, options={**LOOK, "at_step": 40})
    assert records.record(seen, [])["ranks"][0]["samples_a_step"] == 80
    assert [len(window) % 3 for window in process["looks"][0]["step_s"]] == [0, 0]


def test_samples_are_those_of_the_steps(tmp_path):
    """Not of an evaluation before the first step, and of a data set that is read once nothing is known."""
    read = """
    def batches(n):
        return [batch for _, batch in zip(range(n), torch.utils.data.DataLoader(data, batch_size=16))]
    """
    read += """
    class Endless:
        def __init__(self, sampler): self.sampler = sampler
        def __iter__(self):
            while True: yield from self.sampler

    def endless():
        loader = torch.utils.data.DataLoader(data, batch_size=16)
        object.__setattr__(loader, "batch_sampler", Endless(loader.batch_sampler))
        return iter(loader)
    """
    bodies = {
        "evaluates first": "model.eval(); batches(30); model.train()\nfor n in range(20): step(batches(1)[0])",
        "accumulates": "for n in range(20): step(batches(2)[0])",
        "repeats its sampler": "loader = endless()\nfor n in range(20): step(next(loader))",
        "reads once": "once = batches(3)\nfor n in range(20): step(once[0])",
        "evaluates without eval()": """
            for n in range(20):
                step(batches(1)[0])
                with torch.no_grad():
                    batches(3)
        """,
        "reads in a thread": """
            import queue, threading
            loader, ready = torch.utils.data.DataLoader(data, batch_size=16), queue.Queue(2)
            threading.Thread(target=lambda: [ready.put(batch) for batch in loader], daemon=True).start()
            for n in range(60): step(ready.get())
        """,
    }
    seen = watched_all(tmp_path, bodies, MODEL + read)
    samples = {
        name: records.record(Seen([process]), [])["ranks"][0]["samples_a_step"] for name, process in seen.items()
    }
    assert samples == {**dict.fromkeys(bodies, 16), "accumulates": 32, "reads once": None}


EVALUATING = {
    "told": """
        class Model(nn.Sequential):
            def eval(self):  # as in transformers
                return self.train(False)
        model.__class__ = Model
        for n in range(60):
            step()
            if n % 10 == 9:
                model.eval(); time.sleep(0.2); torch.save(model.state_dict(), "c.pt"); model.train()
            nn.BatchNorm1d(8).eval()
    """,
    "end not told": """
        for n in range(60):
            step(); time.sleep(0.01)
            if n % 10 == 9:
                model.eval(); time.sleep(0.3)
                for part in model.modules():
                    part.training = n < 30  # Lightning sets it itself, and some scripts never go back
    """,
    "a teacher": """
        teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        for n in range(60):
            teacher.eval(); time.sleep(0.02); step()
            if n == 50:
                for _ in range(3): torch.save(model.state_dict(), "c.pt")
    """,
    "an attack before each step": """
        for n in range(60):
            model.eval(); time.sleep(0.02); model.train(); step()
    """,
    "distributed checkpoints": """
        import torch.distributed.checkpoint as saving
        for n in range(20):
            step()
            if n % 10 == 9:
                saving.save(model.state_dict(), checkpoint_id=f"c{n}")
    """,
}


@pytest.mark.slow
def test_evaluation_and_checkpoints_are_no_steps(tmp_path):
    found = watched_all(tmp_path, EVALUATING)
    counts = {name: (each["counts"]["evaluation"], each["counts"]["checkpoints"]) for name, each in found.items()}
    assert counts.pop("end not told")[0] >= 5
    assert counts == {
        "told": (6, 6),
        "a teacher": (0, 1),  # of several files
        "an attack before each step": (0, 0),
        "distributed checkpoints": (0, 2),
    }
    told, not_told = found["told"], found["end not told"]
    assert told["total_s"]["evaluation"] > 1.1 and not_told["total_s"]["evaluation"] > 1.4
    assert sorted(told["times"])[-7] < 0.15, "steps hold none of the 0.2 s"
    assert sorted(not_told["times"])[-7] < 0.25, "steps hold none of the 0.3 s"
    assert min(not_told["times"]) > 0.008, "a step is as long as others"
    assert min(found["a teacher"]["times"][5:]) > 0.019
    assert min(found["an attack before each step"]["times"][5:]) > 0.019
    seen = Seen([told], True, status=0)
    assert "evaluation             6 times" in "\n".join(summary(seen, records.record(seen, ["x"])))


SLOW = """
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.view_as(x)
        @staticmethod
        def backward(context, gradient):
            time.sleep(pause)
            return gradient
    def loss():
        return Slow.apply(model(data[:4][0])).sum()
"""
PARTS = {
    "accumulation": """
        pause = 0.01
        for _ in range(40):
            optimizer.zero_grad()
            for _ in range(4):
                loss().backward()
            optimizer.step()
    """,
    "another thread": """
        import threading
        pause, other = 0.1, nn.Linear(8, 1)
        small = torch.optim.SGD(other.parameters(), lr=0.1)
        def aside():
            while True:
                Slow.apply(other(data[:4][0])).sum().backward(); small.step()
        threading.Thread(target=aside, daemon=True).start()
        for _ in range(40):
            step(); time.sleep(0.03)
    """,
    "closure": """
        pause = 0.1
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=1)
        def again():
            optimizer.zero_grad(); found = loss(); found.backward(); return found
        for _ in range(32):
            optimizer.step(again)
    """,
}


def test_parts_are_those_of_a_whole_step(tmp_path):
    """Several backward passes in a step; backward passes within the optimizer's step; a thread that trains another model."""
    found = watched_all(tmp_path, PARTS, MODEL + SLOW)
    assert found["accumulation"]["parts"]["backward"] > 0.04
    parts = found["another thread"]["parts"]
    assert parts["step"] > 0.02 > parts["backward"]
    parts = found["closure"]["parts"]
    assert parts["backward"] > 0.1 > parts["optimizer"], "backward is no part of the optimizer's"


def test_parts_are_means_that_add_up_also_where_waits_come_in_bursts(tmp_path):
    body = """
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 240
            def __getitem__(self, n):
                time.sleep(0.02 if n % 4 == 0 else 0)
                return data[n]
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
            step(batch)
    """
    process, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 40})
    (rank,) = records.record(seen, [])["ranks"]
    assert rank["parts_s"].keys() == {"data_wait", "backward", "optimizer", "rest"}
    assert sum(rank["parts_s"].values()) == pytest.approx(rank["step_s"])
    assert 0.01 < rank["parts_s"]["data_wait"] < rank["step_s"], "every second step waits 20 ms"
    process["parts"], process["looks"] = {}, []  # of a job that ended before: what is known of all steps
    (rank,) = records.record(seen, [])["ranks"]
    assert 0.01 < rank["parts_s"]["data_wait"] < rank["step_s"]


THREADS = """
    import threading
    def train(steps, turns=(), width=16):
        model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for n, batch in zip(range(steps), torch.utils.data.DataLoader(data, batch_size=2)):
            if n % 15 == 0 and turns: turns[0].acquire()
            optimizer.zero_grad(); nn.functional.mse_loss(model(batch[0]), batch[1]).backward(); optimizer.step(); clock[0] += 0.001
            if n % 15 == 14 and turns: turns[1].release()
        if turns: turns[1].release(99)  # it is over
    def wait(*threads):
        for each in threads: each.start()
        for each in threads: each.join()
"""
TRAINING = {
    "side by side, 15 steps of each at once": """
        turns = threading.Semaphore(1), threading.Semaphore(0)
        wait(threading.Thread(target=train, args=(150, turns)), threading.Thread(target=train, args=(135, turns[::-1])))
    """,
    "the larger model second": """
        turns = threading.Semaphore(1), threading.Semaphore(0)
        wait(threading.Thread(target=train, args=(45, turns, 3)), threading.Thread(target=train, args=(135, turns[::-1])))
    """,
    "one after another": "for _ in range(3): wait(threading.Thread(target=train, args=(50,)))",
    "one after another, and the first thread stays": """
        train(50); clock[0] += 5.0; wait(threading.Thread(target=train, args=(100,)))
    """,
}


def test_steps_are_those_of_one_thread_where_several_train(tmp_path):
    """Those of a smaller model, before the larger one began, count as earlier ones."""
    found = watched_all(tmp_path, TRAINING, CLOCK + MODEL + THREADS)
    assert {name: each["steps"] + each["earlier"] for name, each in found.items()} == dict.fromkeys(TRAINING, 150)
    (rank,) = records.record(Seen(list(found.values())[:1], status=0), [])["ranks"]
    assert rank["samples_a_step"] == 2


def test_a_worker_that_is_killed_once_its_result_is_there_has_told_all(tmp_path):
    """As those of a pool are, where it is left. Its results come by such a queue."""
    body = """
        import multiprocessing
        def train(queue):
            for _ in range(40): step()
            queue.put("done"); time.sleep(600)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        worker = context.Process(target=train, args=(queue,), daemon=True)
        worker.start(); queue.get(); worker.kill(); worker.join()
    """
    process, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 1000})
    assert (seen.status, process["steps"]) == (0, 40)


def test_what_was_timed_of_a_measurement_that_did_not_end_counts(tmp_path):
    process, seen = watched(tmp_path, MODEL, STEPS, arguments=["40"])
    (look,) = process["looks"]
    assert [len(window) for window in look["step_s"]] == [10]
    assert (look["trace"], look["why_no_trace"]) == ("", "the job ended")
    said = "\n".join(summary(seen, records.record(seen, ["x"])))
    assert "It ended within the measurement, after 40 steps in" in said
    assert "recorded steps" in said


def test_a_few_long_steps_that_were_timed_count(tmp_path):
    """A job that ends within its second window, which is as short as the first: steps take three seconds by the job's own clock."""
    body = """
        for _ in range(12):
            step(); clock[0] += 3.0
    """
    process, _ = watched(tmp_path, CLOCK, MODEL, body, options={"at_step": 6, "record": False})
    (look,) = process["looks"]
    assert look["step_s"] == [[3.0] * 4]


@pytest.mark.slow
def test_how_far_it_was_is_said_where_nothing_was_timed(tmp_path):
    _, seen = watched(tmp_path, MODEL, STEPS, arguments=["9"], options={})
    said = "\n".join(summary(seen, records.record(seen, ["x"])))
    assert (
        "It ended before it was measured, after 9 steps in 0 s. It waited for 12 steps after the first, of which 8 were made"
        in said
    )
    process, _ = watched(tmp_path, MODEL, "step(); model.eval(); time.sleep(0.1)", options={})
    assert process["waits_for"] == "the end of an evaluation, 0 s long so far"


@pytest.mark.slow
def test_no_step_counts_soon_after_a_compilation(tmp_path):
    body = """
        began = time.perf_counter()
        while time.perf_counter() < began + 3:
            step(); time.sleep(0.01)
        compiled = torch.compile(lambda x: x + 1, backend="eager")
        compiled(torch.ones(3))
        again, n = time.perf_counter(), 0
        import grader_watch
        while not grader_watch.watch.looks and n < 10_000:
            step(); time.sleep(0.01); n += 1
            if grader_watch.watch.plan is not None:
                print("after", time.perf_counter() - again, file=open("after", "w")); break
    """
    watched(tmp_path, MODEL, body, options={"record": False}, cwd=tmp_path)
    assert float((tmp_path / "after").read_text().split()[1]) > 2.8


def test_optimizers_that_step_within_backward(tmp_path):
    """A profiler that starts or ends within a backward pass makes some jobs crash: steps end where the pass does."""
    body = """
        each = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
        def at_once(p):
            each[p].step(); each[p].zero_grad(); clock[0] += 0.001
        for p in each:
            p.register_post_accumulate_grad_hook(at_once)
        for _ in range(80):
            nn.functional.mse_loss(model(data[:16][0]), data[:16][1]).backward()
    """
    process, seen = watched(tmp_path, CLOCK, MODEL, body)
    assert (seen.status, process["steps"], process["by"]) == (0, 80, "optimizer")
    recorded = trace.read(Path(process["looks"][0]["trace"]))
    assert len(recorded.steps) >= 8
    # by the job's own clock, which goes on within the backward pass only
    assert process["parts"]["backward"] == pytest.approx(process["parts"]["step"]) and process["parts"]["step"] > 0.001


def test_the_job_s_own_profiler_comes_first(tmp_path):
    body = """
        for n in range(60):
            step()
            if n == 20:
                with torch.profiler.profile() as own:
                    step()
        assert any(event.key.startswith("aten::") for event in own.key_averages())
    """
    process, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 6})
    assert seen.status == 0
    assert process["steps"] == 61
    assert process["over"] == "the job ended"
