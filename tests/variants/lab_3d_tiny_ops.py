FORWARD = "forward(model, tokens).flatten(0, 1)"
CALLED = "forward"
LOSS = "        loss = F.cross_entropy(forward(model, tokens).flatten(0, 1), targets.flatten())\n"


def graphed(loss: str) -> tuple[str, str]:
    """A whole step as a CUDA graph, captured after three warm-up steps on another stream (a capture computes nothing). `loss`:
    the expression of the loss of `tokens` and `targets`."""
    return (
        "    for tokens, targets in loader:\n",
        f"""    def step(tokens, targets):
        loss = {loss}
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches, side, graph = iter(loader), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True, capturable=True)
    for _ in range(3):
        tokens, targets = (tensor.to(job.device) for tensor in next(batches))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = step(tokens, targets)
            optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        yield loss
    static = tokens.clone(), targets.clone()
    with torch.cuda.graph(graph):
        loss = step(*static)
    for tokens, targets in batches:
        static[0].copy_(tokens), static[1].copy_(targets)
        graph.replay()
        yield loss
    for tokens, targets in loader:
""",
    )


GRAPHED = graphed("F.cross_entropy(forward(model, tokens).flatten(0, 1), targets.flatten())")

HALVES = {
    "a fused optimizer, and nothing else": [
        (
            "    state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]\n",
            "    optimizer = torch.optim.AdamW(parameters, lr=job.lr, fused=True)\n",
        ),
        (
            "        adamw(parameters, state, job.lr, step)\n"
            "        for parameter in parameters:\n"
            "            parameter.grad.zero_()\n",
            "        optimizer.step()\n        optimizer.zero_grad()\n",
        ),
    ],
    "fused functions, heads and parameters one by one": [
        (
            "    centred = x - x.mean(-1, keepdim=True)\n"
            "    variance = (centred * centred).mean(-1, keepdim=True)\n"
            "    return centred / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias\n",
            "    return norm(x)\n",
        ),
        ("0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", "torch.nn.functional.gelu(x)"),
        (
            "    exponents = torch.exp(x - x.amax(-1, keepdim=True))\n"
            "    return exponents / exponents.sum(-1, keepdim=True)\n",
            "    return x.softmax(-1)\n",
        ),
        ("torch.matmul(x, layer.weight.t()) + layer.bias", "layer(x)"),
        (
            "    chosen = softmax(logits).gather(-1, targets.unsqueeze(-1)).squeeze(-1)\n"
            "    return -torch.log(chosen).mean()\n",
            "    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
        ),
    ],
}

WRONGS = {
    "a foreach optimizer without the bias correction": (
        "starter",
        [
            ("            parameter.grad.zero_()\n", "            parameter.grad = None\n"),
            (
                "    for parameter, (mean, square) in zip(parameters, state, strict=True):\n",
                "    means, squares = zip(*state, strict=True)\n"
                "    gradients = [parameter.grad for parameter in parameters]\n"
                "    torch._foreach_lerp_(means, gradients, 1 - BETA1)\n"
                "    torch._foreach_mul_(squares, BETA2)\n"
                "    torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETA2)\n"
                "    scales = torch._foreach_sqrt(squares)\n"
                "    torch._foreach_add_(scales, EPSILON)\n"
                "    torch._foreach_mul_(parameters, 1 - lr * DECAY)\n"
                "    torch._foreach_addcdiv_(parameters, means, scales, -lr)\n"
                "    for parameter, (mean, square) in ():\n",
            ),
        ],
        "not the same training",
    ),
    "heads at once, and the mask forgotten": (
        "solution",
        [("q, k, v, is_causal=True", "q, k, v")],
        "not the same training",
    ),
    "gradients that are never set to zero": (
        "solution",
        [("        optimizer.zero_grad()  # to None: there is nothing to write, and nothing to add to\n", "")],
        "not the same training",
    ),
    "a CUDA graph of the first batch": (
        "solution",
        [GRAPHED, ("        static[0].copy_(tokens), static[1].copy_(targets)\n", "")],
        "GPU: not the same training",
    ),
}
