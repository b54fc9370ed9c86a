from grader.labs.gpt2 import CPU, flops, on_gpu
from grader.labs.lab import AtLeast, AtMost, Lab, Outcome, Throughput, TraceCheck

GPU = on_gpu(gpu_memory=38e9, minimum_gain=9.0)

# As in 4b, but the starter takes four windows at a time, and the solution 0.66 MB a token
SMALLER = (
    GPU.smaller("mid", 13e9, {"length": 512, "batch_size": 12}, flops=flops(12, 768, 512, 12)),
    GPU.smaller(
        "small",
        6.2e9,
        {"layers": 6, "width": 512, "heads": 8, "length": 384, "batch_size": 8},
        measured="NVIDIA H200",
        flops=flops(6, 512, 384, 8),
        minimum_gain=3.0,  # its kernels are so short that the host decides
    ),
)

LAB = Lab(
    name="4d_trainer",
    title="The same GPT-2, by arguments: Hugging Face's Trainer",
    phase=4,
    goal="The loop belongs to Hugging Face, and you have its arguments. Find out which of them pulls which lever, and train the same model fast.",
    cause="compute-bound",
    forms={"cuda": GPU, "cpu": CPU},
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "Which argument names a number format? Which decides how many windows the GPU gets at a time?",
            "Run `lab.profile()` after each change. TrainingArguments of transformers documents the arguments. The table in this notebook gives "
            "the lesson for each.",
            "This order works. Take bf16, attn_implementation of the model, and pad_to_multiple_of of the model. Then take the whole batch on "
            "the device without accumulation, and torch_compile, which both gain more than the padding. Then change the arguments that make the "
            "CPU wait: an emptied cache, a filter for NaN, logs in every step. Last comes a fused optimizer.",
        ),
    ),
    trace=(
        TraceCheck(
            name="half_precision",
            title="Matmuls in 16 bits",
            points=10,
            wanted=AtLeast("half_share", 0.95),
            hints=(
                "In which number format does this GPU multiply fastest?",
                "In `lab.peek()`, a `half_share` of 0 means that all matmuls have 32-bit inputs.",
                "One argument puts the forward pass under autocast. The one whose name ends in full_eval is for evaluation only.",
            ),
        ),
        TraceCheck(
            name="flash",
            title="Attention without the matrix of scores",
            points=10,
            wanted=AtLeast("flash_share", 0.9),
            absent="The trace holds no fused attention kernel. The attention still consists of single operations.",
            hints=(
                "Does the Trainer choose the attention, or does the model?",
                "Look at `score_matrices` and `flash_share` of `lab.peek()`.",
                'Use attn_implementation, an argument of the model. As in `from_pretrained`, "sdpa" is torch\'s fused attention.',
            ),
        ),
        TraceCheck(
            name="aligned",
            title="Matmul sizes fit the tensor cores",
            points=8,
            wanted=AtLeast("aligned_share", 0.99),
            hints=(
                "Which size of this model is no multiple of eight?",
                "Look at `aligned_share` of `lab.peek()`. Three matmuls of a step have the vocabulary among their sizes.",
                "Use pad_to_multiple_of, an argument of the model here and of `resize_token_embeddings` in transformers.",
            ),
        ),
        TraceCheck(
            name="kernels",
            title="Few kernels",
            points=6,
            wanted=AtMost("kernels", 900.0, none_at=4000.0),
            says="kernels ran on the GPU per step",
            hints=(
                "How often does the model run for one optimizer step? What could fuse the kernels between its matmuls?",
                "Compare `kernels` of `lab.peek()` before and after each argument.",
                "The batch on the device times the accumulation steps must stay the job's batch, and the whole batch fits. torch_compile fuses "
                "the kernels between the matmuls.",
            ),
        ),
        TraceCheck(
            name="syncs",
            title="The CPU hardly waits",
            points=6,
            wanted=AtMost("syncs", 3.0, none_at=20.0),
            says="times per step the CPU waited for the GPU",
            hints=(
                "Which arguments make the Trainer read a value, or wait for the GPU, in every step?",
                "Look at `syncs` of `lab.peek()`, and at the copies in `lab.profile()`. Do they come from pageable or from pinned memory?",
                "You don't need logs in every step. The filter for NaN reads each loss. An emptied cache waits for the GPU. With pinned memory "
                "and non_blocking of accelerator_config, a copy doesn't make the CPU wait.",
            ),
        ),
    ),
    peek=("kernels", "launches", "syncs", "half_share", "aligned_share", "flash_share", "score_matrices"),
    outcome=Outcome(),
    packages=("transformers", "accelerate", "greenlet"),
)
