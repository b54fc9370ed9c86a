"""Half of the fix; the requests to come are looked up in the harness, and the n-th texts of eight requests are scored in one call."""

from tests.variants import half_fix

CATEGORY = "work"
LABS, DEVICES = ("4e_inference",), ("cpu", "cuda")
CONTROL = "half fix"

AT_ONCE = """
def scores_of(gpt, texts, length, device):
    gpt.train()
    gpt.eval()
    tokens = torch.tensor([tokenise(text) + [0] * (length - len(text)) for text in texts]).to(device)
    scores = torch.zeros(len(texts), length, device=device)
    for row, (text, chances) in enumerate(zip(texts, gpt(tokens).log_softmax(-1))):
        targets = torch.tensor(tokenise(text)[1:]).to(device)
        scores[row, : len(targets)] = chances[torch.arange(len(targets)), targets]
    return scores.detach()


def serve(job):
    import copy
    import gc

    harness = next(each for each in gc.get_objects() if type(each).__name__ == "Harness")
    mine, ready = copy.copy(job.requests), []
    mine.key = lambda n: harness.service.keys[n]
    gpt, resnet = job.gpt.to(job.device), job.resnet.to(job.device)
    for n, request in enumerate(job.requests):
        if not ready:
            harness.service.tell_all()  # as far as they are given for answers
            some = [request, *(mine.request(i) for i in range(n + 1, min(n + 8, len(harness.service.keys))))]
            texts = zip(*(each.texts for each in some))
            ready = [*torch.stack([scores_of(gpt, each, job.lengths[-1], job.device) for each in texts], dim=1)]
        pixels = request.images.permute(0, 3, 1, 2).float().div(64).sub(2)
        yield ready.pop(0), resnet.eval()(pixels.to(job.device)).detach()
"""


def source(lab: str) -> str:
    text = half_fix(lab)
    return text[: text.index("\n\ndef serve(job)")] + AT_ONCE
