"""Exit codes, which scripts rely on, and the one line that goes with a failure."""

from __future__ import annotations

import errno
import os
import sys
from enum import IntEnum

from odradek.cli.text import shown
from odradek.errors import ErrorCode, KafkaError, OdradekError

__all__ = ["CommandFailed", "ExitCode", "explain", "output_failed"]


class ExitCode(IntEnum):
    """What a command exits with. Documented in docs/reference/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_REACHABLE = 3
    PARTLY_FAILED = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class CommandFailed(OdradekError):
    """A command cannot do what it was asked to: `str` says why, `hint` what to do about it."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`odradek topics list` shows what there is",
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists makes that no failure",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send less at once",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`odradek topics describe TOPIC` shows the offsets there are",
    ErrorCode.NOT_ENOUGH_REPLICAS: "see isr in `odradek topics describe TOPIC`",
    ErrorCode.GROUP_ID_NOT_FOUND: "`odradek groups list` shows what there is",
    ErrorCode.NON_EMPTY_GROUP: "stop its members: `odradek groups describe GROUP` shows them",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that read it: "
    "`odradek groups describe GROUP` shows them",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members have no --assignor in common with this "
    "one: `odradek groups describe GROUP` shows theirs",
    ErrorCode.FENCED_INSTANCE_ID: "another member has taken this --instance-id over",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's own log says what is wrong with its storage",
}


def explain(error: BaseException) -> tuple[str, str, ExitCode] | None:
    """Return message, hint and exit code of an error that is not a bug of this program's.

    None for everything else: that deserves its traceback.
    """
    # By name: these modules are imported already if such an error was raised, and need not be
    # otherwise.
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, CommandFailed):
        return str(error), error.hint, error.code
    if "ConfigError" in names:
        return str(error), "", ExitCode.USAGE
    if "PluginError" in names:
        return str(error), "`odradek plugins` shows what is installed", ExitCode.USAGE
    if "NotReachable" in names:
        hint = "is the broker running, and is this its address? (--bootstrap)"
        return shown(str(error)), hint, ExitCode.NOT_REACHABLE
    if "Disconnected" in names:
        return shown(str(error)), "the broker's own log may say more", ExitCode.NOT_REACHABLE
    if "AddressInUse" in names:
        return str(error), "", ExitCode.FAILED
    if isinstance(error, KafkaError):
        return shown(str(error)), _HINTS.get(error.code, ""), ExitCode.FAILED
    if isinstance(error, OdradekError):
        return shown(str(error)), "", ExitCode.FAILED
    return None


def output_failed(error: OSError) -> int:
    """Report that standard output takes no more, and return the exit code.

    Raises `error` when it is about something else: that deserves its traceback.
    """
    from odradek.cli.app import report

    if error.errno not in _UNWRITABLE or error.filename is not None:
        raise error
    # What is still buffered has nowhere to go: Python would complain once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    report(f"standard output: {error.strerror}")
    return ExitCode.FAILED
