from .common import Edits, climbed

# each on top of those before it
LADDER: list[tuple[str, Edits]] = [
    ("bf16", [("bf16=False", "bf16=True")]),
    ("attn_implementation", [('"eager"', '"sdpa"')]),
    ("pad_to_multiple_of", [('"sdpa")', '"sdpa", pad_to_multiple_of=64)')]),
    (
        "the whole batch at a time",
        [
            ("per_device_train_batch_size=4", "per_device_train_batch_size=job.batches.batch_size"),
            ("gradient_accumulation_steps=job.batches.batch_size // 4", "gradient_accumulation_steps=1"),
        ],
    ),
    (
        "nothing that waits",
        [
            ("        torch_empty_cache_steps=1,\n", ""),
            ("logging_steps=1,", "logging_steps=500,"),
            ("logging_nan_inf_filter=True", "logging_nan_inf_filter=False"),
            (
                "dataloader_pin_memory=False,",
                'dataloader_pin_memory=job.device.type == "cuda",\n        accelerator_config={"non_blocking": True},',
            ),
        ],
    ),
    ("a fused optimizer", [('"adamw_torch"', '"adamw_torch_fused"')]),
]
_TRAINER = "    yield from optimizer_steps(JobTrainer(job, model, arguments))\n"

HALVES = {
    "bf16": climbed(LADDER, 1),
    "bf16, attn_implementation": climbed(LADDER, 2),
    "bf16, attn_implementation, pad_to_multiple_of": climbed(LADDER, 3),
}

WRONGS = {
    "half the batch": (
        "solution",
        [("batch_size=job.batches.batch_size", "batch_size=job.batches.batch_size // 2")],
        "an optimizer step must train on the job's batch of 12 windows",
    ),
    "half of each batch, twice, once the first steps are over": (
        "solution",
        [
            (
                _TRAINER,
                """    class Later(JobTrainer):
        def training_step(self, model, inputs, *rest):
            for each in inputs.values() if self.state.global_step > 14 else ():
                each[1::2] = each[::2].clone()
            return super().training_step(model, inputs, *rest)

    yield from optimizer_steps(Later(job, model, arguments))
""",
            )
        ],
        "GPU: not the same training",
    ),
    "a schedule with a warm-up": (
        "solution",
        [('"constant",', '"constant_with_warmup",\n        warmup_steps=100,')],
        "lr_scheduler_type is constant_with_warmup and must be constant",
    ),
    "decay": ("solution", [("weight_decay=0.0", "weight_decay=0.1")], "weight_decay is 0.1 and must be 0.0"),
    "a shorter memory of squared gradients": (
        "solution",
        [("weight_decay=0.0", "weight_decay=0.0,\n        adam_beta2=0.95")],
        "adam_beta2 is 0.95 and must be 0.999",
    ),
    "clipped as by default": (
        "solution",
        [("        max_grad_norm=0.0,\n", "")],
        "max_grad_norm is 1.0 and must be 0.0",
    ),
    "activations computed twice": (
        "solution",
        [("bf16=", "gradient_checkpointing=True,\n        bf16=")],
        "has no gradient_checkpointing",
    ),
    "another optimizer": ("solution", [('"adamw_torch_fused"', '"adafactor"')], "not the same training"),
    "the model cast to bf16": (
        "solution",
        [("    # two levers", "    job.model.bfloat16()\n    # two levers")],
        "Weights must stay float32",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "in two parts": (
        "solution",
        [
            ("batch_size=job.batches.batch_size", "batch_size=job.batches.batch_size // 2"),
            ("accumulation_steps=1", "accumulation_steps=2"),
        ],
    ),
    "not compiled": ("solution", [("torch_compile=cuda", "torch_compile=False")]),
    "attention written out": ("solution", [('"sdpa"', '"eager"')]),
    "unfused optimizer": ("solution", [('"adamw_torch_fused"', '"adamw_torch"')]),
    "all but the compiler": ("starter", climbed(LADDER, len(LADDER))),
}

FAULTS = {
    "one optimizer step in ten skipped": [
        (
            _TRAINER,
            """    class Lazy(JobTrainer):
        def create_optimizer(self, *args):
            optimizer = super().create_optimizer(*args)
            step, count = optimizer.step, iter(range(1, 10**9))
            optimizer.step = lambda *a, **k: step(*a, **k) if next(count) % 10 else None
            return optimizer

    yield from optimizer_steps(Lazy(job, model, arguments))
""",
        )
    ],
    "learning rate x 0.9": [("learning_rate=job.lr", "learning_rate=0.9 * job.lr")],
    "a frozen layer": [
        ("    # two levers", "    next(job.model.parameters()).requires_grad_(False)\n    # two levers")
    ],
    "model cast to bf16": [("    # two levers", "    job.model.bfloat16()\n    # two levers")],
    "every second window twice": [
        (
            _TRAINER,
            "    order = job.batches.__class__.__iter__\n"
            "    job.batches.__class__.__iter__ = lambda self: ([i - i % 2 for i in batch] for batch in order(self))\n"
            + _TRAINER,
        )
    ],
}
