FORWARD = "model(tokens)"

# nothing to fix, so nothing to fix by half: changes that do no harm
HALVES = {
    "two workers": [("pin_memory=cuda)", "pin_memory=cuda, num_workers=2 if cuda else 0, persistent_workers=cuda)")],
    "four workers that are far ahead": [
        ("pin_memory=cuda)", "pin_memory=cuda, num_workers=4 if cuda else 0, prefetch_factor=8 if cuda else None)")
    ],
}

WRONGS = {
    "the accuracy of each batch, by a second pass": (
        "starter",
        [
            (
                "        yield loss",
                "        for _ in range(2):\n"
                "            right = (model(tokens).argmax(-1) == targets).float().mean().item()\n"
                "        yield loss",
            )
        ],
        "made it slower",
    ),
    "double the learning rate": ("starter", [("lr=job.lr", "lr=2 * job.lr")], "not the same training"),
}
