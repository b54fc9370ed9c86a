"""A part of the fix; the requests to come are looked up in the harness, and the n-th texts of eight are scored at once."""

from tests.adversaries import solution

CATEGORY = "work"
LABS, DEVICES = ("4e_inference",), ("cpu",)
CONTROL = "half fix"

AT_ONCE = """

def serve(job):
    import copy
    import gc

    harness = next(each for each in gc.get_objects() if type(each).__name__ == "Harness")
    mine, ready = copy.copy(job.requests), []
    mine.key = lambda n: harness.keys[n]
    gpt, resnet = job.gpt.to(job.device).eval(), job.resnet.to(job.device).eval()
    for n, request in enumerate(job.requests):
        if not ready:
            some = [request, *(mine.request(i) for i in range(n + 1, min(n + 8, len(harness.keys))))]
            with torch.inference_mode():
                scores = torch.zeros(len(some), len(request.texts), job.lengths[-1], device=job.device)
                for k in range(len(request.texts)):
                    texts = [each.texts[k] for each in some]
                    length = max(map(len, texts))
                    padded = b"".join(text.ljust(length, b"\\0") for text in texts)
                    tokens = torch.frombuffer(bytearray(padded), dtype=torch.uint8).view(len(some), length)
                    ends = torch.tensor([len(text) - 1 for text in texts])
                    scores[:, k, :length] = score(gpt, tokens.to(job.device), ends.to(job.device))
                logits = classify(resnet, torch.cat([each.images for each in some]).to(job.device))
            ready = [*zip(scores, logits.chunk(len(some)), strict=True)]
        yield ready.pop(0)
"""


def source(lab: str) -> str:
    text = solution(lab)
    return text[: text.index("\n\ndef serve(job)")] + AT_ONCE
