from grader.labs.lab import AtMost, Lab, Throughput, TraceCheck
from grader.labs.two_ranks import on_cpu, on_gpus, small

# Few, wide layers: with six of 1,536 the launches held both loops back. The starter's blocks agree within 1% now, the solution's
# still differ by 5%: it gained 1.30 to 1.47x, what was certain of it 1.25 to 1.35x (five grades, H200, torch 2.11)
GPU = on_gpus(batch_size=64, gpu_memory=11e9, minimum_gain=1.2)

LAB = Lab(
    name="3j_communication",
    title="Two GPUs, one model",
    phase=3,
    goal="Two ranks train one model. Find out what holds them back, and train the same model faster.",
    cause="communication-bound",
    forms={
        "cuda": GPU,
        "cpu": on_cpu(layers=4, width=96, weights=466_944, minimum_gain=1.8, cosine=0.998, exchanged=118_000),
    },
    smaller=(small(GPU),),
    throughput=Throughput(
        points=40,
        hints=(
            "How many times per step does a rank send something? How large is each message, and what does the rank do until it has arrived?",
            "`collectives` of `lab.peek()` is parameters times micro-batches. On GPUs `lab.profile()` shows the communication as a separate "
            "lane. What runs beside it?",
            "Send a few large messages in place of many small ones. Send while the backward pass still computes. Send only the gradients that "
            "the optimizer will use, the sum over the micro-batches. torch.nn.parallel has a wrapper for the first two. Its context manager "
            "skips the messages that nobody needs.",
        ),
    ),
    trace=(
        TraceCheck(
            name="collectives",
            title="Few messages per step",
            points=30,
            wanted=AtMost("collectives", 40.0, none_at=400.0),
            says="times per step a rank talked to the others",
            hints=(
                "Do the other ranks need a gradient before the last micro-batch is done?",
                "Divide `collectives` of `lab.peek()` by the parameters of the model. How often is each gradient sent?",
                "Average once per optimizer step, after the last micro-batch, and many gradients at a time. A bucket of some megabytes costs as "
                "many messages as one bias.",
            ),
        ),
        TraceCheck(
            name="exposed",
            title="Communication beside the computation",
            points=20,
            wanted=AtMost("comm_exposed", 0.12, none_at=0.4),
            says="of a step went to communication with nothing beside it",
            hints=(
                "The last layer's gradients are there first. What could you send while the first layers' are computed?",
                "Look at `comm_exposed` of `lab.peek()`. It counts communication kernels beside which no other kernel runs.",
                "Start to average a bucket of gradients on a second stream as soon as all of them are there. Wait for all buckets before the "
                "optimizer's step. The wrapper for data parallel training does that in its backward pass.",
            ),
        ),
    ),
    peek=("collectives", "exchanged", "product_flops", "largest_product", "comm_exposed"),
)
