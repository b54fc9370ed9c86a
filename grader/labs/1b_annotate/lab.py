from grader.kinds.annotate import AnnotateLab, Cost, Phases, Recorded
from grader.labs import gpt
from grader.labs.lab import Form, Parity

LAB = AnnotateLab(
    name="1b_annotate",
    title="Annotate: a loop that records itself",
    phase=1,
    goal="Let this loop record a trace of four of its steps, with the phases of a step in it. Afterwards it must cost nothing.",
    forms={
        "cuda": gpt.on_gpu(
            options={"layers": 8, "width": 768, "heads": 12, "length": 512, "batch_size": 8, "lr": 1e-4},
            minimum_gain=None,
            noise=0.003,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        # nearly all of a step is waiting for reads, so that what the recording costs is not lost in the noise
        "cpu": Form(
            workload="grader.workloads.resnet",
            options={"model": "tiny", "size": 32, "batch_size": 8, "lr": 1e-3, "read_s": 0.01},
            data="images",
            minimum_gain=None,
            noise=0.01,
            parity=Parity(steps=24, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
        ),
    },
    window=Recorded(
        points=30,
        hints=(
            "Who tells the profiler that a step is over?",
            "torch.profiler.schedule takes the numbers of steps. on_trace_ready takes a function, which is called when they are recorded.",
            "Give the profiler schedule(wait=10, warmup=2, active=4, repeat=1) and call its step() once in every "
            "step. Let on_trace_ready export the trace to job.trace. On a GPU record both activities, CPU and CUDA.",
        ),
    ),
    phases=Phases(
        points=50,
        hints=(
            "Where does each line of the loop belong?",
            "record_function(name) is a context that marks what happens within. The wait for a batch hides in the `for`.",
            'Take the batches with next(...) from an iterator, so that you can put record_function("data_wait") '
            "around it. Put h2d around the copies, fwd around model and loss, bwd around backward, and opt around "
            "the optimizer. They come one after another, and none lies within another.",
        ),
    ),
    cost=Cost(
        points=20,
        hints=(
            "What does the profiler do once the four steps are recorded?",
            "Look up what schedule does without repeat=1.",
            "With repeat=1 the profiler is off after its first cycle, and a record_function then costs next to "
            "nothing. Write the trace once, and compute nothing for it in every step.",
        ),
        at_most={"cuda": 0.02, "cpu": 0.05},
    ),
)
