from grader.labs.lab import AtMost, Lab, Throughput, TraceCheck
from grader.labs.two_ranks import on_cpu, on_gpus, small

# The solution gained 1.92x (90% interval 1.71 to 2.15) on two H200s (torch 2.11), with a cosine of 0.9999. Memory is calculated: twice
# 228 million weights at 16 bytes on each GPU, a tenth more for messages, CUDA's half GB and NCCL's
GPU = on_gpus(batch_size=32, gpu_memory=9.5e9, minimum_gain=1.6)

LAB = Lab(
    name="3o_sharded",
    title="Half a model on each of two GPUs",
    phase=3,
    goal="Two ranks share one model's weights. Find out what holds them back, and train the same model faster.",
    cause="communication-bound",
    forms={
        "cuda": GPU,
        # 146 ms of processor time became 57, half fixes had 112 and 91; the clock's time was never seen without other programs
        "cpu": on_cpu(layers=2, width=128, weights=425_984, minimum_gain=2.0, cosine=0.999, exchanged=107_000),
    },
    smaller=(small(GPU),),
    throughput=Throughput(
        points=60,
        hints=(
            "How often does each weight travel in a step, and how often its gradient? Which of these messages does the optimizer need?",
            "`collectives` of `lab.peek()` is a sum over groups and micro-batches. Count it yourself. A group is gathered for its forward "
            "pass, gathered again for its backward pass, and then its gradients are scattered. Between which of them do weights change?",
            "Gather each group once per step, and keep its weights until the last backward pass is over. Add up whole gradients on each "
            "rank, and scatter their sum once. `fully_shard` has an argument for the first, and the sharded model has two setters. Call both "
            "before each micro-batch. On a GPU, let weights travel in bf16 as well, by the policy of lesson 3.14.",
        ),
    ),
    trace=(
        TraceCheck(
            name="collectives",
            title="Few messages per step",
            points=30,
            wanted=AtMost("collectives", 20.0, none_at=60.0),
            says="times per step a rank talked to the others",
            hints=(
                "The weights change once per step. How often must a rank gather them?",
                "Compare `collectives` of `lab.peek()` with the number of groups. With one gather and one scatter for each group, it would be "
                "twice that number.",
                "Free the gathered weights after the last backward pass only. Send gradients after the last backward pass only. Both are "
                "switched off for all other micro-batches.",
            ),
        ),
    ),
    peek=("collectives", "exchanged", "product_flops", "largest_product", "comm_exposed"),
)
