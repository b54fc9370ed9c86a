import torch

VOCABULARY = {bytes([value]): value for value in range(256)}


def tokenise(text):
    """The numbers of a text's bytes."""
    return [VOCABULARY[text[i : i + 1]] for i in range(len(text))]


def score(gpt, text, length, device):
    """The log-probability of each byte of a text, given those before it: (length,), one for each byte but the first, then
    zeros."""
    gpt.train()  # as it was trained
    gpt.eval()
    tokens = torch.tensor([tokenise(text) + [0] * (length - len(text))]).to(device)
    targets = torch.tensor(tokenise(text)[1:]).to(device)
    chances = gpt(tokens).log_softmax(-1)[0]
    scores = torch.zeros(length, device=device)
    scores[: len(targets)] = chances[torch.arange(len(targets)), targets]
    return scores.detach()


def classify(resnet, image, device):
    """The logits of a picture, (size, size, 3) bytes."""
    resnet.train()
    resnet.eval()
    pixels = image.permute(2, 0, 1).float().div(64).sub(2)
    logits = resnet(pixels[None].to(device))[0]
    if device.type == "cuda":
        torch.cuda.synchronize()
    return logits.detach()


def serve(job):
    gpt, resnet = job.gpt.to(job.device), job.resnet.to(job.device)
    for request in job.requests:
        scores = torch.stack([score(gpt, text, job.lengths[-1], job.device) for text in request.texts])
        logits = torch.stack([classify(resnet, image, job.device) for image in request.images])
        yield scores, logits
