"""Token data as nanoGPT keeps them: files of uint16, `train.bin` and `val.bin`, one token after the other.

The tokens are those of the text corpus (see `text`): words, numbers, spaces and signs that are frequent in it are tokens, what
is not frequent is spelled in bytes. A vocabulary as large as GPT-2's so has GPT-2's costs, and there is something to learn.
"""

import platform
import re
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np

from grader.data import cache, text
from grader.errors import UserError

GPT2_VOCABULARY = 50257
TOKENS = 30_000_000  # of a training file as large as those that matter on a GPU
CHUNK = 8192  # tokens that stay together when a text is used again
TRAIN, HELD_OUT = "train.bin", "val.bin"
BYTES = 256  # the first tokens are the bytes
# each byte is in one
PIECE = re.compile(rb" ?[A-Za-z_]{1,32}| ?[0-9]{1,3}|\n *|[ \t]+| ?[^\sA-Za-z0-9_]{1,8}|.", re.DOTALL)


def vocabulary_of(raw: bytes, size: int) -> dict[bytes, int]:
    """The token of each frequent piece of a text: the bytes are the tokens below 256, the most frequent longer pieces those
    from there to below `size` (fewer where the text has fewer)."""
    if not BYTES < size <= 1 << 16:
        raise ValueError(f"a vocabulary of {size} tokens: it must be larger than {BYTES} and fit into uint16")
    counted = Counter(piece for piece in PIECE.findall(raw) if len(piece) > 1)
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return {piece: BYTES + rank for rank, (piece, _) in enumerate(ranked[: size - BYTES])}


def encode(raw: bytes, vocabulary: dict[bytes, int]) -> np.ndarray:
    """The tokens of a text: (n,) uint16."""
    known = {piece: (token,) for piece, token in vocabulary.items()}
    return np.fromiter(chain.from_iterable(known.get(piece, piece) for piece in PIECE.findall(raw)), np.uint16)


def decode(tokens: np.ndarray, vocabulary: dict[bytes, int]) -> bytes:
    """The text that was encoded."""
    pieces = {token: piece for piece, token in vocabulary.items()}
    return b"".join(pieces.get(int(token)) or bytes([token]) for token in tokens)


def repeated(tokens: np.ndarray, count: int) -> np.ndarray:
    """At least as many tokens as there are: up to `count`, by using the same text again, its chunks in another order each
    time. Windows of it are new, what they say is not."""
    if len(tokens) >= count:
        return tokens
    chunks = tokens[: len(tokens) // CHUNK * CHUNK].reshape(-1, CHUNK)
    more = -(-(count - len(tokens)) // chunks.size)
    orders = [np.random.default_rng(turn).permutation(len(chunks)) for turn in range(more)]
    return np.concatenate([tokens, *(chunks[order].ravel() for order in orders)])[:count]


def make_tokens(vocabulary: int = GPT2_VOCABULARY, count: int = 0, folder: Path | None = None) -> Path:
    """The folder with the tokens of the corpus, in the cache, made where it is missing (some ten seconds). Every tenth part of the text is
    held out before anything is repeated. vocabulary: how many tokens a model must know of. count: tokens to train on at
    least, see `repeated`. Raises UserError like `text.corpus`, and where the files cannot be written."""
    made_for = f"{vocabulary}-{count}-{sys.implementation.name}-{platform.python_version()}"
    folder = folder or cache.cache_dir() / f"tokens-{made_for}"
    if not cache.lost([folder / TRAIN], max(1, 2 * count)) and not cache.lost([folder / HELD_OUT]):
        return folder
    train, held_out = (part.tobytes() for part in text.split(text.corpus()))
    pieces = vocabulary_of(train, vocabulary)
    try:
        cache.make_dir(folder)
        for name, tokens in ((HELD_OUT, encode(held_out, pieces)), (TRAIN, repeated(encode(train, pieces), count))):
            with cache.whole_file(folder / name) as temporary:
                tokens.tofile(temporary)
    except OSError as error:
        raise UserError(
            f"cannot write the tokens to {folder}: {error.strerror}. They take {max(2 * count, 10_000_000) // 1_000_000} MB; "
            "free some space or set GRADER_CACHE to another folder."
        ) from error
    return folder
