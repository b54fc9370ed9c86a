from grader.workloads.trainer import CausalLM, JobTrainer, TrainingArguments, optimizer_steps


def train(job):
    model = CausalLM(job.model, attn_implementation="eager")
    arguments = TrainingArguments(
        # what is trained: must stay
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        max_steps=1_000_000,
        # how it is trained: yours
        per_device_train_batch_size=4,
        gradient_accumulation_steps=job.batches.batch_size // 4,
        bf16=False,
        torch_compile=False,
        optim="adamw_torch",
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_steps=1,
        logging_nan_inf_filter=True,
        torch_empty_cache_steps=1,
        # nothing beside the training
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=job.device.type == "cpu",
    )
    yield from optimizer_steps(JobTrainer(job, model, arguments))
