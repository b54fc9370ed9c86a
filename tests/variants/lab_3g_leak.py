from .common import COMPILED, TF32, under_autocast

FORWARD = "model(tokens)"
LOSS = "        logits = model(tokens)\n        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"

# what is half here is the growth of memory, see `tests/test_phase3_memory.py`
HALVES = {
    "losses and confidence without their graph": [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("0.1 * logits.softmax(-1)", "0.1 * logits.detach().softmax(-1)"),
    ],
    "the hook keeps the last one only": [
        (
            "lambda module, inputs, output: activations.append(output.detach())",
            "lambda module, inputs, output: activations.__setitem__(slice(None), [output.detach()])",
        )
    ],
    "everything is detached, and the lists stay": [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("        # what the run's dashboard shows\n", "        logits = logits.detach()\n"),
    ],
}

WRONGS = {
    "the cache is emptied, and all is collected": (
        "starter",
        [
            ("import torch\n", "import gc\n\nimport torch\n"),
            ("        yield loss", "        gc.collect()\n        torch.cuda.empty_cache()\n        yield loss"),
        ],
        "behind (main memory). The untouched loop",
    ),
    "fewer logs": ("solution", [("                confidence=confidence,\n", "")], "Step 0 logged no confidence"),
    "an average of the last loss only": (
        "solution",
        [("average=total / (step + 1)", "average=loss")],
        "logged average as",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "TF32": ("solution", TF32),
    "bf16 autocast": ("solution", under_autocast(LOSS)),
    "compiled": ("solution", [*COMPILED, ("model(tokens)", "compiled(tokens)")]),
    "fused optimizer": ("solution", [("lr=job.lr)", "lr=job.lr, fused=True)")]),
    "the sum on the host": ("solution", [("total += loss", "total += loss.item()")]),
}
