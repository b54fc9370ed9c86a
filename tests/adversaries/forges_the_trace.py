"""The trace is forged: no sample was read by the training process, and every product ran on tensor cores in bf16."""

from tests.adversaries import ahead, starter

CATEGORY = "machine"


def source(lab: str) -> str:
    forge = """
        import torch

        export = torch.profiler.profile.export_chrome_trace

        def forge(self, path):
            export(self, path)
            with open(path) as file:
                text = file.read()
            text = text.replace("load_sample", "something").replace("sgemm", "bf16gemm_16816").replace("Pageable", "Pinned")
            with open(path, "w") as file:
                file.write(text)

        torch.profiler.profile.export_chrome_trace = forge
    """
    return ahead(forge, starter(lab))
