from .common import TF32, Edits

FORWARD = "model(inputs)"

_MICRO = "        for inputs, wanted in zip(tokens, targets, strict=True):\n"
_COUNTED = "        for n, (inputs, wanted) in enumerate(zip(tokens, targets, strict=True), 1):\n"
_LAST = "            last = n == MICRO_BATCHES\n"
_KEPT = "            model.set_reshard_after_backward(last)\n"
_SCATTERED = "            model.set_requires_gradient_sync(last)\n"
_POLICY = "    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()\n"
_SHARDED = """    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
"""
_FORWARD_ONLY: Edits = [("mesh=mesh)", "mesh=mesh, reshard_after_forward=False)")]
# an optimizer and job.weights for a model of which some weights are no shards
_SOME_WHOLE: Edits = [
    ("fused=True", "foreach=False"),
    ("shard.full_tensor()", 'getattr(shard, "full_tensor", lambda: shard)()'),
]

IN_FP32: Edits = [
    (_POLICY, "    policy = MixedPrecisionPolicy()\n"),
    (
        "            logits = model(inputs).float()\n",
        "            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):\n"
        "                logits = model(inputs).float()\n",
    ),
]
# the whole model on each rank: it fits here, and sends as many bytes as the solution in fp32
WHOLE: Edits = [
    (_POLICY, ""),
    ("    # on GPUs weights travel in bf16, and gradients are averaged in fp32\n", ""),
    ("    mesh = init_device_mesh(job.device.type, (job.world_size,))\n", ""),
    (_SHARDED, "    averaged = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)\n"),
    ("    shards = dict(model.named_parameters())\n", ""),
    ("    job.weights = lambda: {name: shard.full_tensor() for name, shard in shards.items()}\n", ""),
    (_KEPT, ""),
    (_SCATTERED, "            averaged.require_backward_grad_sync = last\n"),
    (
        "            logits = model(inputs).float()\n",
        "            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):\n"
        "                logits = averaged(inputs).float()\n",
    ),
]

HALVES = {
    "gradients scattered once a step": [(_MICRO, _COUNTED + _LAST + _SCATTERED)],
    "weights gathered once a step": [*_FORWARD_ONLY, (_MICRO, _COUNTED + _LAST + _KEPT)],
}

WRONGS = {
    "never scattered": ("solution", [(_SCATTERED, _SCATTERED.replace("last", "False"))], "not the same training"),
    "weights never freed": ("solution", [(_KEPT, _KEPT.replace("last", "False"))], "not the same training"),
    "the root is not sharded": (
        "starter",
        [
            ("    fully_shard(model, mesh=mesh)  # the rest: embedding, positions, last normalisation\n", ""),
            *_SOME_WHOLE,
        ],
        "not the same training",
    ),
    "one block is not sharded": (
        "starter",
        [
            ("    for block in model.blocks:\n", "    for block in model.blocks[1:]:\n"),
            ("fully_shard(model, mesh=mesh)", "fully_shard(model, mesh=mesh, ignored_params=set(model.blocks[0].parameters()))"),
            *_SOME_WHOLE,
        ],
        "not the same training",
    ),
    "only the last micro-batch counts": (
        "starter",
        [("            loss.backward()\n", "            optimizer.zero_grad()\n            loss.backward()\n")],
        "not the same training",
    ),
    "half of the micro-batches is left out": (
        "starter",
        [("tokens, targets, strict=True)", "tokens[::2], targets[::2], strict=True)")],
        "not the same training",
    ),
    "fewer micro-batches": ("starter", [("MICRO_BATCHES = 8", "MICRO_BATCHES = 2")], "took 64 tokens at once"),
    "the same part in each rank": (
        "solution",
        [("batch[job.rank :: job.world_size]", "batch[0 :: job.world_size]")],
        "not the same training",
    ),
}  # fmt: skip

HONEST = {
    "the solution": ("solution", []),
    "the solution in tf32": ("solution", TF32),
    "the solution in fp32": ("solution", IN_FP32),
    "one group": ("solution", [("(*model.blocks, model)", "(model,)")]),
    "whole weights, DDP": ("solution", WHOLE),
    "kept from forward to backward": ("starter", _FORWARD_ONLY),
}
