"""A job that serves: what its requests are drawn from, and its answers."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import torch

from grader.sandbox.contract import ContractError
from grader.sandbox.reading import arrived, in_clean_thread, sent

Tell = Callable[[float], dict[str, Any]]


class Service:
    """look: makes one number of a request's answers. keys: what the first request is drawn from. tell: tells the parent a number,
    and returns what that says."""

    def __init__(self, look: Callable[[int, Any], torch.Tensor], keys: Sequence[int], tell: Tell) -> None:
        self.look, self.keys, self.tell = look, [*keys], tell
        self.answered = self.ahead = 0
        self.taken: Any = multiprocessing.Value("q", 0, lock=False)  # in whichever way, by whichever process
        self.untold: deque[torch.Tensor] = deque()  # what answers are known by, until the parent is told

    def handing_out(self) -> Callable[[int], Any]:
        """Called with n, it gives what request n is drawn from; before the answer to the request before, that of the one to be answered."""
        generator = self._handing_out()
        next(generator)
        return generator.send

    def _handing_out(self) -> Generator[Any, Any, None]:
        # A loop that takes so many is stopped at its next answer. It is a generator, so that what the loop is given, its `send`,
        # holds neither the keys nor the count, nor anything that leads to them but a frame
        owner, key = os.getpid(), 0
        while True:
            n = max(0, int((yield key)))  # int: a number of the learner's own type could compare as it likes
            self.taken.value = max(self.taken.value, n + 1)
            if n > self.answered and os.getpid() != owner:
                raise ContractError(
                    "Requests must be taken in the process that answers them, not in one that it has started"
                )
            key = self.keys[min(n, self.answered)]

    def begin(self, keys: Sequence[int]) -> None:
        """A turn. keys: of the requests that are given ahead in it, each other one for an answer."""
        self.keys += keys
        self.ahead = len(keys)

    def answer(self, answers: Any, line: int | None) -> torch.Tensor:
        """What the answers to the next request are known by. line: where the loop yielded them. Raises ContractError where they
        cannot be its answers."""
        self.answered += 1
        if (taken := self.taken.value) > self.answered:
            said = f"Request {self.answered} was answered after {taken} requests had been taken from job.requests"
            raise ContractError(f"{said}. Answer each request before you take the next one", line)
        try:
            look = self.look(self.answered, answers)
        except ValueError as error:
            raise ContractError(f"Request {self.answered}: {error}", line) from None
        self.untold.append(sent(look))
        self.tell_all(but=self.ahead)
        return look

    def tell_all(self, but: int = 0) -> None:
        """Tell the parent of all answers but the last ones. It gives a request for each, until the turn has them all."""
        while len(self.untold) > but:
            value = self.untold.popleft()
            self.keys += self.tell(in_clean_thread(partial(arrived, value)))["keys"]
