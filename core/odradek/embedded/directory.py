"""The directory of the embedded coordinator: made durably, and locked against a second process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from odradek.errors import OdradekError

__all__ = ["LOCK_NAME", "InUse", "lock_directory", "make_directory", "sync"]

LOCK_NAME: Final = "coordinator.lock"


class InUse(OdradekError):
    """Another process has the directory open: stop it, or use another directory."""


def lock_directory(directory: Path) -> int:
    """Lock `directory` for this process; the lock goes when the descriptor returned is closed.

    Raises InUse, naming the directory and the process that holds it; OSError.
    """
    lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            holder = f"process {pid}" if pid.isdigit() else "another process"
            raise InUse(f"{directory} is in use by {holder}") from None
        # In this order: on a full disk there is room for what is overwritten, not for what is new.
        os.truncate(lock, os.pwrite(lock, b"%d\n" % os.getpid(), 0))
    except BaseException:
        os.close(lock)
        raise
    return lock


def make_directory(directory: Path) -> None:
    """Create `directory` and its parents, each durable in its own parent."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync(directory.parent)


def sync(path: Path) -> None:
    """Make the contents of a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
