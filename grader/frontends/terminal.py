"""Progress in a terminal."""

import sys
import time

from grader.frontends.silence import PREPARED, Silence
from grader.progress import bar

AGAIN_S = 15  # a step that goes on has its time left said again


class Terminal:
    """Progress on standard error: a bar with time left on a terminal, else a line for each new step."""

    def __init__(self, name: str):
        self.bar = bar(100, name, "{desc} {bar} {percentage:3.0f}%{postfix}")
        self.name, self.began, self.last = name, time.monotonic(), ""
        self.printed = self.began
        self.silence = Silence(self._explain, "Ctrl+C")

    def __call__(self, share: float, what: str) -> None:
        if share <= PREPARED or not self.last:
            self.began = time.monotonic()
        passed = time.monotonic() - self.began
        left = f", about {passed * (1 - share) / share:.0f} s left" if 0.1 < share < 1 else ""
        self.silence.after("" if share >= 1 else what)
        if self.bar.disable:
            if share < 1 and (what != self.last or time.monotonic() > self.printed + AGAIN_S):
                self.printed = time.monotonic()
                print(f"{self.name}: {what}{left}", file=sys.stderr, flush=True)
        else:
            self.bar.n = round(100 * share)
            self.bar.set_postfix_str(what + left)
            if share >= 1:
                self.bar.close()
        self.last = what

    def _explain(self, what: str, meaning: str) -> None:
        self.bar.clear()
        print(f"{self.name}: {meaning}", file=sys.stderr, flush=True)
        self.bar.refresh()
