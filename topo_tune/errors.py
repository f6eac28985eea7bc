"""Every error that topo-tune raises on purpose, named by what the reader can do about it.

::

    TopoTuneError                      exit code
    ├── InputError                     2   a file or option is wrong: fix it
    │   └── Refused                    2   the request is understood and would do harm: change it
    ├── HostError                      3   one node could not do its part
    │   ├── Unreachable                    no TCP connection, no SSH banner (may pass: retryable)
    │   ├── HostKeyRefused                 the node is not who it was, or is unknown
    │   ├── LoginRefused                   key, user or agent not accepted
    │   ├── ConnectionLost                 the session ended before the command did
    │   ├── DeadlinePassed                 the command was still running at its deadline
    │   ├── OutputTooLarge                 the command flooded its output
    │   └── NodeProgramFailed              a program sent to the node failed or did not answer
    ├── MissingCapability              3   a tool, library or device is not there
    ├── MeasurementFailed              3   no usable numbers came back
    ├── NotEnoughEvidence              4   there are numbers, but they prove nothing
    └── BrokenRecord                   3   a file in a run folder cannot be trusted

Exit code 1 is not an error: the command worked and the answer is no. 70 is a bug in topo-tune.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_ANSWER_IS_NO = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_NOT_ENOUGH_EVIDENCE = 4
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class TopoTuneError(Exception):
    """An error a person can act on: a message, a hint with the next step, and an exit code."""

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class InputError(TopoTuneError):
    """Something the user wrote is wrong: names the file, the line, and the path of the field inside it."""

    exit_code = EXIT_USAGE

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        where = ":".join(str(part) for part in (file, line) if part is not None)
        prefix = f"{where}: " if where else ""
        place = f" (at `{field}`)" if field else ""
        super().__init__(f"{prefix}{message}{place}", hint=hint)
        self.file, self.line, self.field = file, line, field


class Refused(InputError):
    """The request was understood and refused, because carrying it out could do harm."""


class HostError(TopoTuneError):
    """One node could not do its part. Carries host, command, exit status and the last lines of its stderr."""

    kind = "failed"
    is_retryable = False

    def __init__(
        self,
        host: str,
        reason: str,
        *,
        command: str | None = None,
        status: int | None = None,
        stderr_tail: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{host}: {reason}", hint=hint)
        self.host, self.reason = host, reason
        self.command, self.status, self.stderr_tail = command, status, stderr_tail


class Unreachable(HostError):
    """No TCP connection or no SSH banner; often passes, so it is tried once more."""

    kind = "unreachable"
    is_retryable = True


class HostKeyRefused(HostError):
    """The host key is unknown, or differs from the one in known_hosts."""

    kind = "host key refused"


class LoginRefused(HostError):
    """The server did not accept the key, the agent or the user."""

    kind = "login refused"


class ConnectionLost(HostError):
    """The session ended before the command reported its status; what was read is not a result."""

    kind = "connection lost"


class DeadlinePassed(HostError):
    """The command was still running when its deadline passed."""

    kind = "deadline passed"


class OutputTooLarge(HostError):
    """The command wrote more than the stated limit; it was stopped."""

    kind = "output too large"


class NodeProgramFailed(HostError):
    """A topo-tune program on the node failed, or printed no answer."""

    kind = "node program failed"


class MissingCapability(TopoTuneError):
    """A tool, a library or a device that the request needs is not there."""


class MeasurementFailed(TopoTuneError):
    """A measurement gave no usable number."""


class NotEnoughEvidence(TopoTuneError):
    """Numbers exist, but they do not decide the question."""

    exit_code = EXIT_NOT_ENOUGH_EVIDENCE


class BrokenRecord(TopoTuneError):
    """A file of a run folder is damaged, from a newer version, or does not belong there."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing is close."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


_NAMES_LISTED = 12
"""As many as a hint can list and still be read."""
_NEAREST_LISTED = 5


def did_you_mean(name: str, known: Iterable[str], *, listed_in: str | None = None) -> str | None:
    """A hint line with the nearest known name; with the list when nothing is close, or with its nearest few.

    listed_in: where all of them are written down, for lists too long for a line.
    """
    # A set has no order of its own, and would have another one in the next process.
    known = sorted(known) if isinstance(known, (set, frozenset)) else list(known)
    match = nearest(name, known)
    if match is not None:
        return f"did you mean `{match}`?"
    if not known:
        return None
    if len(known) <= _NAMES_LISTED:
        return "known: " + _quoted(known)
    nearer = difflib.get_close_matches(name, known, n=_NEAREST_LISTED, cutoff=0)
    where = f"; all are in {listed_in}" if listed_in else ""
    return f"{len(known)} are known, the nearest: {_quoted(nearer)}{where}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
