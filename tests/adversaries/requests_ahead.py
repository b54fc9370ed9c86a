"""Six requests are answered at once: they are taken from a copy of the job's, which keeps a count of its own."""

from tests.adversaries import solution

CATEGORY = "work"
LABS = ("4e_inference",)

AT_ONCE = """

def serve(job):
    import copy
    import types

    mine, n, at_once = copy.copy(job.requests), 0, 6
    mine.taken = types.SimpleNamespace(value=0)
    gpt, resnet = job.gpt.to(job.device).eval(), job.resnet.to(job.device).eval()
    while True:
        some = [mine.request(n + i) for i in range(at_once)]
        n += at_once
        texts = [text for request in some for text in request.texts]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        scores = torch.zeros(len(order), job.lengths[-1], device=job.device)
        with torch.inference_mode():
            for k in range(0, len(order), 9):
                part = order[k : k + 9]
                length = len(texts[part[-1]])
                padded = b"".join(texts[i].ljust(length, b"\\0") for i in part)
                tokens = torch.frombuffer(bytearray(padded), dtype=torch.uint8).view(len(part), length)
                ends = torch.tensor([len(texts[i]) - 1 for i in part])
                scores[part, :length] = score(gpt, tokens.to(job.device), ends.to(job.device))
            logits = classify(resnet, torch.cat([request.images for request in some]).to(job.device))
        yield from zip(scores.chunk(at_once), logits.chunk(at_once), strict=True)
"""


def source(lab: str) -> str:
    text = solution(lab)
    return text[: text.index("\n\ndef serve(job)")] + AT_ONCE
