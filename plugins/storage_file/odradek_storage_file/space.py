"""Room on the file system: a soft limit, looked at now and then, and the ballast."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import trio

from odradek.contracts.storage import Full
from odradek_storage_file import layout
from odradek_storage_file.ops import NO_SPACE, Ops

__all__ = ["Space"]

logger = logging.getLogger(__name__)

STEP = 8 * 1024 * 1024
"""Bytes appended between two looks at the file system."""

SCARCE = 8 * STEP
"""Bytes above the soft limit below which removed segments do not linger any more."""

BLOCK = 512
"""Bytes: the unit of `st_blocks`."""

LEAST_BALLAST = 4096
"""Bytes: less ballast than this is none."""

POLL_S = 0.05
"""How often to look while somebody waits for room; nobody does in ordinary times."""


class Space:
    """How many bytes may be appended before the soft limit has to be looked at again.

    `left` is read and lowered by the append path itself. Running full is logged once, as is the
    end of it: when what was refused last would fit again, and, after the system itself had no
    room, when an append after that has succeeded too.
    """

    def __init__(self, ops: Ops, root: str, min_free: int, ballast: int) -> None:
        self._ops = ops
        self._root = root
        self._min_free = min_free
        self._ballast = ballast
        self._path = f"{root}/{layout.BALLAST}"
        self._giving = threading.Lock()
        self._hit_the_wall = False
        self._full = False
        self._refused = 0
        self._unproven = False
        self._dropped = False
        self.left = 0
        self.scarce: Callable[[], object] = lambda: None
        self.reclaim: Callable[[int], bool] = lambda _: False

    def free(self) -> int:
        """Bytes that this user may still write to the file system. Raises OSError."""
        found = self._ops.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def more(self, size: int) -> None:
        """Let `size` bytes be appended, and some more without asking. Raises Full."""
        try:
            allowed = self.free() - self._min_free
            while allowed < size and self.reclaim(size - allowed):
                allowed = self.free() - self._min_free
        except OSError as error:
            raise Full(f"cannot tell the free space of {self._root}: {error.strerror}") from error
        if allowed < size + SCARCE:
            self.scarce()
        if allowed < size:
            self.left = 0
            self._refuse(allowed + self._min_free, size)
            raise Full(
                f"{self._root}: {max(allowed + self._min_free, 0)} bytes are free on the file "
                f"system, and min_free_bytes is {self._min_free}"
            )
        if self._unproven:  # ask again next time: that there is one proves that this one went well
            self._unproven = False
            self.left = 0
            return
        self.left = min(allowed, size + STEP) - size
        if self._full and allowed >= self._refused:
            self._full = False
            logger.info(
                "%s has room for records again: %d bytes are free on the file system",
                self._root,
                allowed + self._min_free,
            )
        if self._dropped and allowed - size >= 2 * self._ballast:
            self._dropped = False
            self._set_ballast()

    def spare(self, size: int) -> None:
        """Let upkeep write `size` bytes, if producers keep some room. Raises Full.

        What they keep: as much again as the soft limit, SCARCE at most. Compaction frees room when
        it is done, and until then must not be what makes appends fail.
        """
        kept = self._min_free + min(self._min_free, SCARCE)
        try:
            allowed = self.free() - kept
            while allowed < size and self.reclaim(size - allowed):
                allowed = self.free() - kept
        except OSError as error:
            raise Full(f"cannot tell the free space of {self._root}: {error.strerror}") from error
        if allowed < size:
            raise Full(
                f"{self._root}: too few bytes are free on the file system to rewrite segments: "
                f"{kept} are kept for records"
            )

    @property
    def is_scarce(self) -> bool:
        """Whether there is little room left, or none."""
        try:
            return self.free() - self._min_free < SCARCE
        except OSError:
            return True

    def _refuse(self, free: int, size: int) -> None:
        """Note that there is no room for `size` bytes; say so if there was until now."""
        self._refused = size
        if self._full:
            return
        self._full = True
        logger.warning(
            "%s has no room for records, which are refused: %d bytes are free on the file "
            "system, and min_free_bytes is %d",
            self._root,
            free,
            self._min_free,
        )

    def exhausted(self) -> Full:
        """Take note that the system had no room in spite of it all; return what to raise."""
        self.left = 0
        self._hit_the_wall = self._unproven = True
        try:
            free = self.free()
        except OSError:
            free = 0
        self._refuse(free, 0)
        return Full(f"{self._root}: no space left on the file system")

    async def room(self, size: int) -> None:
        """Return when `size` bytes can be appended."""
        if self._hit_the_wall:  # the figures did not warn of it, so they do not tell its end
            self._hit_the_wall = False
            await trio.sleep(POLL_S)
        while True:
            unproven = self._unproven
            try:
                self.more(size)
            except Full:
                await trio.sleep(POLL_S)
            else:
                self.left += size
                self._unproven = unproven
                return

    def load_ballast(self) -> None:
        """Set room aside, if there is plenty. A lack of ballast is no error.

        What is lacking is set aside by `more` once there is room. As this is what a store
        starts with, it also warns when records would be refused.
        """
        try:
            free = self.free()
            if free < self._min_free:
                self._refuse(free, 0)
        except OSError:
            return
        self._set_ballast()

    def _set_ballast(self) -> None:
        try:
            if not self._ballast:
                return
            # Its blocks count: a file that was copied may have none.
            if (
                os.path.exists(self._path)
                and os.stat(self._path).st_blocks * BLOCK >= self._ballast
            ):
                return
            if self.free() < self._min_free + 2 * self._ballast:
                self._dropped = True
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            fd = self._ops.open(self._path, flags, 0o644)
            try:
                os.posix_fallocate(fd, 0, self._ballast)
            finally:
                self._ops.close(fd)
        except OSError:
            return

    def with_ballast(self, write: Callable[[], object]) -> None:
        """Call `write`, and once more with the ballast's room where there was none for it.

        The room is set aside again at once, as far as it is left: whoever fills the disk takes
        whatever is free. For worker threads. Raises OSError, as `write` does.
        """
        try:
            write()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            with self._giving:  # one at a time: another would find it given back already
                if not self._give_ballast():
                    raise
                try:
                    write()
                finally:
                    self._take_ballast()

    def _give_ballast(self) -> bool:
        """Give the room back; say whether there was any."""
        try:
            fd = self._ops.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            had = os.fstat(fd).st_blocks > 0
            self._ops.ftruncate(fd, 0)
            self._dropped = True
            return had
        except OSError:
            return False
        finally:
            self._ops.close(fd)

    def _take_ballast(self) -> None:
        """Set aside again what is left of the room."""
        try:
            fd = self._ops.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            size = self._ballast
            while size >= LEAST_BALLAST:
                try:
                    os.posix_fallocate(fd, 0, size)
                except OSError:
                    self._ops.ftruncate(fd, 0)
                    free = self.free()
                    size = free if free < size else size // 2
                else:
                    self._dropped = size < self._ballast
                    return
        except OSError:
            return
        finally:
            self._ops.close(fd)
