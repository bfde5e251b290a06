"""File systems of a test's own: ext4 in a file, which can lose power, and a small tmpfs."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Volume", "ext4", "tmpfs"]

EXT4_IOC_SHUTDOWN = 0x8004587D
"""`_IOR('X', 125, __u32)` of Linux' fs/ext4/ext4.h."""
NO_LOG_FLUSH = 2
"""Not even the journal in memory is written: what a loss of power leaves on the disk."""

UNMOUNT_PATIENCE = 10.0


def _run(*command: str) -> None:
    paths = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=paths
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Volume:
    """A mounted file system; `path` is where. Built by `ext4` and `tmpfs`."""

    def __init__(self, path: Path, mount: tuple[str, ...]) -> None:
        self.path = path
        self._mount = mount
        self.mounted = False

    def mount(self) -> None:
        """Mount it; a journal is replayed, as after any loss of power."""
        _run(*self._mount, str(self.path))
        self.mounted = True

    def unmount(self) -> None:
        """Unmount it; every process that used it must be gone."""
        deadline = time.monotonic() + UNMOUNT_PATIENCE
        while self.mounted:
            try:
                _run("umount", str(self.path))
                self.mounted = False
            except RuntimeError:
                # A killed process' files are closed a moment after it was waited for.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def cut_power(self) -> None:
        """From this moment on nothing reaches the disk; what has not been synced is lost."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    @property
    def free(self) -> int:
        """Bytes that may still be written."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> Path:
        """Take all the room but `leave` bytes; removing the returned file gives it back."""
        filler = self.path / "filler"
        with filler.open("ab") as file:
            while (step := self.free - leave) > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), step)
                except OSError as error:  # somebody else took some of it meanwhile
                    if error.errno != errno.ENOSPC:
                        raise
                file.seek(0, os.SEEK_END)
        return filler


@contextmanager
def _mounted(volume: Volume) -> Iterator[Volume]:
    volume.path.mkdir()
    volume.mount()
    try:
        yield volume
    finally:
        volume.unmount()


@contextmanager
def ext4(directory: Path, size: int) -> Iterator[Volume]:
    """Make and mount an ext4 of `size` bytes in a file of `directory`."""
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    # The kernel's own writing back is put off, so that the test and not the clock says what
    # was on the disk when the power went.
    mount = ("mount", "-o", "loop,commit=300", str(image))
    with _mounted(Volume(directory / "volume", mount)) as volume:
        yield volume


@contextmanager
def tmpfs(directory: Path, size: int) -> Iterator[Volume]:
    """Mount a tmpfs of `size` bytes in `directory`."""
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    with _mounted(Volume(directory / "volume", mount)) as volume:
        yield volume
