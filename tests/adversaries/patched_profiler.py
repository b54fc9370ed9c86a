"""The profiler reports one tiny step with none of the work that the lab counts."""

from tests.adversaries import ahead, starter

CATEGORY = "timing"


def source(lab: str) -> str:
    profiler = """
        import json

        import torch

        def export(self, path):
            steps = [
                {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 1, "ts": 100 * i, "dur": 90}
                for i in range(1, 8)
            ]
            with open(path, "w") as file:
                json.dump({"traceEvents": steps, "schemaVersion": 1, "deviceProperties": []}, file)

        torch.profiler.profile.export_chrome_trace = export
        torch._C._profiler.gather_traceback = lambda *arguments, **options: None
    """
    return ahead(profiler, starter(lab))
