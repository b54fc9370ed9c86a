from .common import Edits

FORWARD = "model(tokens)"

_COPY = """        for name, tensor in state.items():
            if name not in self.buffers:
                self.buffers[name] = torch.empty_like(tensor, device="cpu", pin_memory=cuda)
            self.buffers[name].copy_(tensor, non_blocking=True)
"""
_DUE = "        if step % job.every == 0:\n"
_STARTER_SAVES = """            job.drive.save(f"partial-{step}", state_of(model, optimizer))
            job.drive.rename(f"partial-{step}", f"step-{step}")
"""


_IN_A_THREAD = """def write(job, step, copies):
    job.drive.save(f"partial-{step}", copies)
    job.drive.rename(f"partial-{step}", f"step-{step}")


def train(job):"""


def _waits(after: str) -> Edits:
    """A thread writes copies, and the loop waits for it so many steps later."""
    saves = f"""            copies = {{name: tensor.detach().to("cpu", copy=True) for name, tensor in state_of(model, optimizer).items()}}
            writing = pool.submit(write, job, step, copies)
        elif step % job.every == {after} and writing:
            writing.result()
"""
    return [
        ("import torch\n", "from concurrent.futures import ThreadPoolExecutor\n\nimport torch\n"),
        ("def train(job):", _IN_A_THREAD),
        ("    for step, (", "    pool, writing = ThreadPoolExecutor(1), None\n    for step, ("),
        (_STARTER_SAVES, saves),
    ]


_A_PROCESS_WRITES = """def write(drive, buffers, asked, done):
    torch.set_num_threads(1)
    while True:
        step = asked.get()
        drive.save(f"partial-{step}", buffers)
        drive.rename(f"partial-{step}", f"step-{step}")
        done.put(step)


def train(job):"""
_START_IT = """    fork, buffers, writing = mp.get_context("fork"), {}, False
    for name, weight in model.named_parameters():
        for key in (name, f"exp_avg.{name}", f"exp_avg_sq.{name}"):
            buffers[key] = torch.empty(weight.shape).share_memory_()
    asked, done = fork.Queue(), fork.Queue()
    fork.Process(target=write, args=(job.drive, buffers, asked, done), daemon=True).start()
    for step, ("""
_ASK_IT = """            if writing:
                done.get()
            for name, tensor in state_of(model, optimizer).items():
                buffers[name].copy_(tensor.detach())
            asked.put(step)
            writing = True
"""

HALVES = {
    "waits for the thread half way": _waits("job.every // 2"),
    "waits for the thread soon": _waits("job.every // 4"),
}

WRONGS = {
    "a thread writes the live tensors": (
        "solution",
        [(_COPY, "        self.buffers = dict(state)\n")],
        "are not as they were after step",
    ),
    "written under its own name": (
        "solution",
        [
            ('self.job.drive.save(f"partial-{step}"', 'self.job.drive.save(f"step-{step}"'),
            ('        self.job.drive.rename(f"partial-{step}", f"step-{step}")\n', ""),
        ],
        "was written under its own name",
    ),
    "every second one is left out": (
        "starter",
        [(_DUE, "        if step % (2 * job.every) == 0:\n")],
        "is not on the drive",
    ),
    "less of it, later": (
        "starter",
        [
            (
                _STARTER_SAVES,
                "            state = state_of(model, optimizer)\n"
                "            if step > 2 * job.every:\n"
                "                state = dict(list(state.items())[:1])\n"
                + _STARTER_SAVES.replace("state_of(model, optimizer)", "state"),
            )
        ],
        "bytes, and each of the untouched loop's has",
    ),
    "the weights alone": (
        "starter",
        [
            ('        state[f"exp_avg.{name}"] = optimizer.state[weight]["exp_avg"]\n', ""),
            ('        state[f"exp_avg_sq.{name}"] = optimizer.state[weight]["exp_avg_sq"]\n', ""),
        ],
        "bytes, and each of the untouched loop's has",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "copied at once, written in the loop": (
        "starter",
        [
            (
                _STARTER_SAVES,
                "            copies = {name: tensor.detach().cpu().clone() for name, tensor in state_of(model, optimizer).items()}\n"
                + _STARTER_SAVES.replace("state_of(model, optimizer)", "copies"),
            )
        ],
    ),
    "a process writes, from memory that it shares": (
        "starter",
        [
            ("import torch\n", "import torch\nimport torch.multiprocessing as mp\n"),
            ("def train(job):", _A_PROCESS_WRITES),
            ("    for step, (", _START_IT),
            (_STARTER_SAVES, _ASK_IT),
        ],
    ),
    "fused optimizer": ("solution", [("lr=job.lr)", "lr=job.lr, fused=True)")]),
}
