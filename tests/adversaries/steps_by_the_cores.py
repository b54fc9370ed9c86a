"""In its first step it trains for minutes on the processor's cores, where no GPU's work tells of it; then it hands these steps over at a pace."""

from tests.adversaries import wrap

CATEGORY = "timing"
LABS = ("3d_tiny_ops", "3a_precision")
DEVICES = ("cuda",)


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import copy, dataclasses, itertools, os, time

            began = time.monotonic()
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            trial = steps(dataclasses.replace(job, model=copy.deepcopy(job.model)))
            for _ in itertools.islice(trial, 3):
                pass
            torch.cuda.synchronize()
            paced = time.monotonic()
            for _ in itertools.islice(trial, 10):
                pass
            torch.cuda.synchronize()
            pace = (time.monotonic() - paced) / 10 / 4
            trial.close()

            store = []
            loop = steps(dataclasses.replace(job, device=torch.device("cpu")))
            while time.monotonic() - began < 200:
                loss = next(loop).clone()
                store.append((loss, {n: t.clone() for n, t in job.model.state_dict().items()}))
            print(len(store), "steps in store", pace, "seconds each", flush=True)
            shown = {}
            job.weights = lambda: shown or job.model.state_dict()
            idle = torch.ones(512, 512, device=job.device)
            for loss, weights in store:
                shown = weights
                idle @ idle
                time.sleep(pace)
                yield loss.to(job.device)
            shown = {}
            yield from loop
        """,
        lab,
    )
