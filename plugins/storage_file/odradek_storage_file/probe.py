"""Checking that a directory's file system can keep the contract."""

from __future__ import annotations

import os

from odradek.contracts.storage import Unsafe
from odradek_storage_file.ops import Ops, write_all
from odradek_storage_file.space import Space

__all__ = ["probe"]


def probe(ops: Ops, space: Space, root: str) -> None:
    """Write, sync, rename, cut and read back a file. Raises Unsafe, saying what does not work.

    A full disk says nothing about the file system, so there the ballast makes room.
    """
    step = ""

    def attempt() -> None:
        nonlocal step
        path = f"{root}/.probe-{os.getpid()}"
        step = "create a file"
        try:
            fd = ops.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                step = "write"
                write_all(ops, fd, [b"odradek ", b"probe"], 0)
                step = "sync a file"
                ops.fdatasync(fd)
                step = "cut a file"
                ops.ftruncate(fd, 7)
                step = "rename a file"
                ops.rename(path, path + "-2")
                path += "-2"
                step = "sync a directory"
                ops.sync_directory(root)
                step = "read back what was written"
                if ops.pread(fd, 100, 0) != b"odradek":
                    raise Unsafe(f"{root}: a file does not hold what was written to it")
                step = "read a file that was removed"
                ops.unlink(path)
                if ops.pread(fd, 100, 0) != b"odradek":
                    raise Unsafe(f"{root}: a file is gone while it is open; is this NFS?")
            finally:
                ops.close(fd)
        finally:
            ops.remove(path)

    try:
        space.with_ballast(attempt)
    except OSError as error:
        raise Unsafe(f"{root}: cannot {step}: {error.strerror}") from error
