"""A value that must not be seen: it prints as `***` wherever it goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

__all__ = ["Secret", "SecretUnreadable"]


class SecretUnreadable(Exception):
    """A secret that cannot be had from where it is said to be; never quotes a value."""


class Secret:
    """A password, key or token: only `reveal` gives it away; printing and pickling do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def read(cls, reference: str) -> Secret:
        """Read from `env:NAME` (an environment variable) or `file:PATH` (without its last newline).

        Raises SecretUnreadable; also for anything else, since a secret in the configuration
        itself ends up in backups and version control.
        """
        kind, _, where = reference.partition(":")
        if kind == "env" and where:
            value = os.environ.get(where)
            if value is None:
                raise SecretUnreadable(f"the environment variable {where} is not set")
            return cls(value)
        if kind == "file" and where:
            try:
                return cls(Path(where).read_text(encoding="utf-8").removesuffix("\n"))
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
                raise SecretUnreadable(f"cannot read the file {where}: {reason}") from None
        raise SecretUnreadable(
            'write "env:NAME" or "file:PATH"; a secret does not belong in the configuration itself'
        )

    def reveal(self) -> str:
        """Return the value itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        import hmac  # secrets are seldom compared

        return hmac.compare_digest(self._value.encode(), other._value.encode())

    __hash__ = None  # type: ignore[assignment]  # the standard spelling of "unhashable"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied into a file")
