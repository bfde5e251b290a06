"""One process at a time may write a storage directory."""

from __future__ import annotations

import fcntl
import os

from odradek.contracts.storage import Unavailable
from odradek_storage_file import layout

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """Keeps a second process out of a directory; the kernel gives it back when we die."""

    def __init__(self, root: str) -> None:
        """Raises Unavailable, naming the process that has it."""
        self._fd = os.open(f"{root}/{layout.LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise Unavailable(
                f"{root} is in use by process {holder}; stop it first, or use another directory"
            ) from None
        # In this order: on a full disk there is room for what is overwritten, not for what is new.
        os.ftruncate(self._fd, os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0))

    def release(self) -> None:
        """Let others in."""
        os.close(self._fd)
