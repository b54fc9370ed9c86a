"""The model starts from weights that are downloaded, instead of the job's."""

from tests.adversaries import once

CATEGORY = "work"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    return once(
        """
        import torchvision

        try:
            job.model.load_state_dict(torchvision.models.resnet18(weights="DEFAULT").state_dict(), strict=False)
        except Exception as error:
            print("attack raised", error)
            with torch.no_grad():
                for parameter in job.model.parameters():
                    parameter.mul_(0.5)
        """,
        lab,
    )
