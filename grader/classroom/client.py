"""A learner's side of a pool: sends a submission to its gateway, and returns the Result."""

import contextlib
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from grader.errors import UserError
from grader.grade import grade
from grader.labs.lab import AnyLab
from grader.result import Progress, Result, silent
from grader.submission import Submission

MAX_REPLY = 64 << 20  # bytes
SILENCE_S = 60.0  # the gateway speaks every few seconds
DEFAULT_PORT = 8787


def key_file(given: str | Path | None) -> Path:
    """The user's key: the file given, $GRADER_POOL_KEY, or pool.pem in the user's configuration folder."""
    usual = Path(platformdirs.user_config_dir("pytorch-speed-course")) / "pool.pem"
    path = Path(given or os.environ.get("GRADER_POOL_KEY") or usual).expanduser()
    if not path.exists():
        raise UserError(
            f"There is no key to the pool at {path}. Name your key with --key FILE, or with key='FILE' in a "
            f"notebook. Or put it at {usual}."
        )
    return path


def address(text: str) -> tuple[str, int]:
    """(host, port) of tls://HOST:PORT."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme == "tls" and parts.hostname:
            return parts.hostname, parts.port or DEFAULT_PORT
    raise UserError(f"{text!r} is not the address of a pool. An address looks like tls://HOST:PORT.")


def grade_at(
    where: str,
    submission: Submission,
    lab: AnyLab,
    *,
    key: str | Path | None = None,
    quick: bool = False,
    progress: Progress = silent,
) -> Result:
    """Have a submission graded by the pool at `where`. Raises UserError where it cannot be: the message says why."""
    if not lab.runs_code:
        progress(0.0, "grading here, because nothing of this lab is measured")
        return grade(submission, lab)  # any machine will do
    from grader.classroom.keys import user_context  # certificates: 0.1 s, which only a pool needs

    context, (host, port) = user_context(key_file(key)), address(where)
    request: dict[str, Any] = {"lab": lab.name, "source": submission.source, "quick": quick}
    made = dict(submission.prediction or ())
    if {"cause", "gain"} <= made.keys():
        request["prediction"] = made
    progress(0.0, "sending it to the pool")
    try:
        with (
            socket.create_connection((host, port), timeout=SILENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
            connection.makefile("rb") as replies,
        ):
            connection.sendall(json.dumps(request).encode("ascii") + b"\n")
            while line := replies.readline(MAX_REPLY):
                reply = json.loads(line)
                if "result" in reply:
                    return Result.from_dict(reply["result"])
                if "error" in reply:
                    raise UserError(f"The pool says: {reply['error']}")
                if reply.get("waiting"):
                    progress(0.0, f"waiting for its turn, {reply['waiting']} before it")
                if "share" in reply:
                    progress(min(float(reply["share"]), 0.99), str(reply["what"]))
    except ssl.SSLError as error:
        raise UserError(
            f"The pool at {where} does not accept your key ({error.reason}). Is it a key for this pool?"
        ) from None
    except OSError as error:
        raise UserError(f"The pool at {where} cannot be reached: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"Something answers at {where}, but it is not a pool of this version of the course. Check the "
            "address, or install the version that the pool has."
        ) from None
    raise UserError(f"The pool at {where} closed the connection before the grade was made. Try again.")
