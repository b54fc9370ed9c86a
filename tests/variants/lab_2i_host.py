from .common import MODEL, TF32, Edits

FORWARD = "model(events)"
LOSS = "        loss = F.cross_entropy(model(events), labels)\n"

_OFTEN = "step % 6 == 5"
_TO_DEVICE = (
    "        events, labels = events.to(job.device, non_blocking=True), labels.to(job.device, non_blocking=True)\n"
)
_LOADER = (
    "    loader = DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=job.dataset.collate, pin_memory=cuda)\n"
)
_SET_UP = "    cuda = "
_SPREAD = "GPU: times the median step"  # a CPU that others use as well can tell no speed-up from none

HALVES: dict[str, Edits] = {
    "collects in every 12th step": [(_OFTEN, "step % 12 == 11")],
    "collects in every 24th step": [(_OFTEN, "step % 24 == 23")],
}

WRONGS = {
    "half of each batch": (
        "solution",
        [(_TO_DEVICE, _TO_DEVICE + "        events, labels = events[::2], labels[::2]\n")],
        "not the same training",
    ),
    "collects in a thread": (
        "starter",
        [
            ("import gc\n", "import gc\nimport threading\n"),
            ("            gc.collect()", "            threading.Thread(target=gc.collect).start()"),
        ],
        _SPREAD,
    ),
    "no collection by itself, but the calls stay": (
        "starter",
        [(_SET_UP, "    gc.disable()\n" + _SET_UP)],
        _SPREAD,
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "TF32": ("solution", TF32),
    "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
    "frozen, and collects as before": (
        "starter",
        [(MODEL, MODEL + "    gc.collect()\n    gc.freeze()\n")],
    ),
    "one tensor of all records": (
        "solution",
        [
            (_LOADER, "    everything = [part.to(job.device) for part in job.dataset.collate(job.dataset.records)]\n"),
            ("    for events, labels in loader:\n", "    for batch in job.batches:\n"),
            (
                _TO_DEVICE,
                "        chosen = torch.tensor(batch, device=job.device)\n"
                "        events, labels = (part[chosen] for part in everything)\n",
            ),
        ],
    ),
}
