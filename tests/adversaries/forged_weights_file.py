"""The weights that are written are the old ones, moved along the last update to look trained."""

from tests.adversaries import ahead, starter

CATEGORY = "work"


def source(lab: str) -> str:
    forge = """
        import safetensors.torch

        save, seen = safetensors.torch.save_file, []

        def forge(tensors, path):
            seen.append({n: t.clone() for n, t in tensors.items()})
            save({n: t + 0.1 * (t - seen[0][n]) for n, t in tensors.items()} if len(seen) > 1 else tensors, path)

        safetensors.torch.save_file = forge
    """
    return ahead(forge, every_step(lab))


def every_step(lab: str) -> str:
    return starter(lab).replace("        yield loss", "        loss = loss.detach().clone()\n        yield loss")
