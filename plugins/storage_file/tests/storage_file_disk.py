"""A disk for tests: it fails on request, and forgets what was not synced when the power goes.

`LossyOps` stands between the store and the operating system. It knows, for every file, how much
of it was synced, and which creations, renames and deletions were not followed by a sync of their
directory. `power_loss` makes a copy of the directory as the worst disk would leave it.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

from odradek_storage_file.ops import Ops


class LossyOps(Ops):
    """The operating system, with a memory of what is safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._graves = root.parent / f"{root.name}.graves"
        self._graves.mkdir()
        self._lock = threading.Lock()
        self._synced: dict[int, int] = {}  # inode -> bytes that are safe
        self._tails: dict[int, tuple[int, bytes]] = {}  # inode -> bytes cut off, not synced yet
        self._undo: list[tuple[str, Callable[[str], None]]] = []  # directory -> undo in a copy
        self._keep: list[int] = []
        self.fail_sync: int | None = None
        self.fail_write: int | None = None
        self.syncs = 0
        self.on_operation: Callable[[str], object] = lambda _: None

    # -- operations --------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self.on_operation(f"open {path}")
        with self._lock:
            existed = os.path.lexists(path)
            fd = os.open(path, flags, mode)
            if not existed:
                inode = os.fstat(fd).st_ino
                self._synced[inode] = 0
                self._remember(path, lambda there: _unlink(there, inode))
            return fd

    def pwritev(self, fd: int, buffers, offset: int) -> int:  # type: ignore[no-untyped-def, override]
        self.on_operation("write")
        if self.fail_write is not None:
            raise OSError(self.fail_write, os.strerror(self.fail_write))
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.on_operation("sync")
        self.syncs += 1
        if self.fail_sync is not None:
            raise OSError(self.fail_sync, os.strerror(self.fail_sync))
        size, inode = os.fstat(fd).st_size, os.fstat(fd).st_ino
        with self._lock:
            self._synced[inode] = size
            self._tails.pop(inode, None)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        info = os.fstat(fd)
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            self.fdatasync(fd)
            return
        self.on_operation("sync directory")
        if self.fail_sync is not None:
            raise OSError(self.fail_sync, os.strerror(self.fail_sync))
        path = os.readlink(f"/proc/self/fd/{fd}")
        with self._lock:
            self._undo = [entry for entry in self._undo if entry[0] != path]
        assert info

    def ftruncate(self, fd: int, length: int) -> None:
        self.on_operation("truncate")
        info = os.fstat(fd)
        with self._lock:
            if length < self._synced.get(info.st_ino, info.st_size):
                cut = os.pread(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 1 << 30, length)
                self._tails.setdefault(info.st_ino, (length, cut))
                self._synced[info.st_ino] = length
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self.on_operation(f"rename {source} {target}")
        with self._lock:
            grave = self._bury(target) if os.path.isfile(target) else None
            os.rename(source, target)
            from_, to = os.path.relpath(source, self._root), os.path.relpath(target, self._root)

            def undo(copy: str) -> None:
                if os.path.lexists(f"{copy}/{to}"):
                    os.rename(f"{copy}/{to}", f"{copy}/{from_}")
                if grave is not None:
                    self._exhume(grave, f"{copy}/{to}")

            self._undo.append((os.path.dirname(target), undo))

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self.on_operation(f"unlink {path}")
        with self._lock:
            grave = self._bury(path)
            os.unlink(path)
            self._remember(path, lambda there: self._exhume(grave, there))

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        self.on_operation(f"mkdir {path}")
        with self._lock:
            os.mkdir(path, mode)
            self._remember(path, lambda there: shutil.rmtree(there, ignore_errors=True))

    # -- what is safe ------------------------------------------------------------------------

    def _remember(self, path: str, undo: Callable[[str], None]) -> None:
        relative = os.path.relpath(path, self._root)
        self._undo.append((os.path.dirname(path), lambda copy: undo(f"{copy}/{relative}")))

    def _bury(self, path: str) -> str:
        grave = f"{self._graves}/{len(self._keep)}"
        os.link(path, grave)
        self._keep.append(0)
        return grave

    def _exhume(self, grave: str, path: str) -> None:
        if os.path.isdir(os.path.dirname(path)):
            shutil.copy(grave, path)
            self._lose(path, os.stat(grave).st_ino, None)

    def _lose(self, path: str, inode: int, random: Random | None) -> None:
        tail = self._tails.get(inode)
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            safe = min(self._synced.get(inode, size), size)
            if tail is not None:
                file.seek(tail[0])
                file.write(tail[1])
                file.truncate()
                return
            if random is None or safe == size or random.random() < 0.5:
                file.truncate(safe)
                return
            kept = random.randrange(safe, size + 1)
            file.truncate(kept)
            if random.random() < 0.5 and kept > safe:  # the length is there, the bytes are not
                file.seek(random.randrange(safe, kept))
                file.write(bytes(kept - file.tell()))

    def killed(self, copy: Path) -> None:
        """Copy the directory as it is at one moment, as kill -9 leaves it."""
        with self._lock:  # no rename or deletion comes in between
            shutil.copytree(self._root, copy)

    def power_loss(self, copy: Path, random: Random | None = None) -> None:
        """Copy the directory as a loss of power at this moment leaves it.

        With `random`, part of what was not synced is there all the same, whole or as zeros, and
        so are the first of the names that were made or removed: a journal keeps their order.
        """
        with self._lock:
            shutil.copytree(self._root, copy)
            for path in self._root.rglob("*"):
                if path.is_file():
                    inode = path.stat().st_ino
                    self._lose(str(copy / path.relative_to(self._root)), inode, random)
            kept = random.randrange(len(self._undo) + 1) if random is not None else 0
            for _, undo in reversed(self._undo[kept:]):
                undo(str(copy))


def _unlink(path: str, inode: int) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


EIO = errno.EIO
