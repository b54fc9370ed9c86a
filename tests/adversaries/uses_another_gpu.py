"""The loop looks for a second GPU and lets it work, too."""

from tests.adversaries import attempt

CATEGORY = "machine"
DEVICES = ("cuda",)


def source(lab: str) -> str:
    return attempt(
        """
        import os

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        found = [torch.ones(1, device=f"cuda:{n}").item() for n in range(torch.cuda.device_count())]
        for n in range(16):
            try:
                os.close(os.open(f"/dev/nvidia{n}", os.O_RDWR))
                found.append(f"opened {n}")
            except OSError as error:
                found.append(str(error))
        return found
        """,
        lab,
    )
