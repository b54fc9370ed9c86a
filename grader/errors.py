"""Errors that are written for the person who gets them."""


class UserError(Exception):
    """Something the user gave cannot be used. The message says what happened, where, and what to do; front ends print
    it without a traceback (command line: one line, exit status 2)."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [str(self)]


class JobError(Exception):
    """The file with a job of one's own is at fault, and neither loop (see `grader.own.job`). The message is a whole sentence."""
