"""Reading and writing a partition's small files. For worker threads: everything here blocks."""

from __future__ import annotations

import os
import stat

from odradek.contracts.storage import Corrupt, PartitionKey, crc32c
from odradek_storage_file import layout
from odradek_storage_file.layout import Manifest, NewerFormat
from odradek_storage_file.ops import Ops, write_all, write_atomically
from odradek_storage_file.space import Space

__all__ = [
    "check_kind",
    "copy_file",
    "read_blobs",
    "read_file",
    "read_manifest",
    "read_range",
    "save_manifest",
    "write_manifest",
]


def write_manifest(ops: Ops, path: str, manifest: Manifest) -> None:
    """Replace a partition's manifest, durably. Raises OSError."""
    write_atomically(ops, path, layout.MANIFEST, manifest.encode())


def save_manifest(ops: Ops, space: Space | None, path: str, manifest: Manifest) -> None:
    """Write the manifest and Kafka's leader-epoch-checkpoint.

    `space`: whose ballast gives room for it if need be. Raises OSError.
    """
    # A temporary file that had no room is written anew from its first byte: unlike a failed
    # fsync, that leaves no doubt about what is on the disk.
    if space is None:
        _save(ops, path, manifest)
    else:
        space.with_ballast(lambda: _save(ops, path, manifest))


def _save(ops: Ops, path: str, manifest: Manifest) -> None:
    _write_epochs(ops, path, manifest)
    write_manifest(ops, path, manifest)


def _write_epochs(ops: Ops, path: str, manifest: Manifest) -> None:
    """For Kafka's tools: the manifest is what counts, so a plain write will do."""
    file = f"{path}/{layout.EPOCH_CHECKPOINT}"
    data = layout.epoch_checkpoint(manifest.epochs)
    try:
        if read_file(ops, file) == data:
            return
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = ops.open_patiently(f"{file}.tmp", flags, 0o644)
    try:
        write_all(ops, fd, [data], 0)
    finally:
        ops.close(fd)
    ops.rename(f"{file}.tmp", file)


def read_manifest(ops: Ops, path: str, key: PartitionKey) -> Manifest:
    """Read and check a partition's manifest. Raises Corrupt, NewerFormat, OSError."""
    file = f"{path}/{layout.MANIFEST}"
    try:
        manifest = Manifest.decode(read_file(ops, file), file)
    except NewerFormat:
        raise
    except Corrupt as error:
        raise Corrupt(f"{error}; repair the partition to make it from the segments") from None
    if manifest.key != str(key):
        raise Corrupt(f"{file} belongs to partition {manifest.key}: the directory was renamed")
    return manifest


def read_file(ops: Ops, path: str) -> bytes:
    """Return the whole of a small file. Raises OSError, and Corrupt where it is no file."""
    check_kind(path)
    fd = ops.open_patiently(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        position = 0
        while data := ops.pread(fd, 1 << 20, position):
            parts.append(data)
            position += len(data)
        return b"".join(parts)
    finally:
        ops.close(fd)


def read_blobs(ops: Ops, path: str, manifest: Manifest) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the blobs that are as the manifest says, and the names of those that are not.

    Raises OSError.
    """
    blobs = {}
    lost = []
    for name, (number, size, crc) in manifest.blobs.items():
        try:
            data = read_file(ops, f"{path}/{layout.blob_name(number)}")
        except (Corrupt, FileNotFoundError):
            data = b""
        if len(data) == size and crc32c(data) == crc:
            blobs[name] = data
        else:
            lost.append(name)
    return blobs, tuple(lost)


def check_kind(path: str) -> None:
    """Raise Corrupt where something else than a file has the name: a pipe would never answer.

    Raises OSError.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise Corrupt(
            f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'a pipe or a device'}, no file"
        )


def copy_file(ops: Ops, source: str, target: str) -> None:
    """Copy a file of any size, durably but for its name. Raises OSError."""
    fd = ops.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy = ops.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            size = 0
            while data := ops.pread(fd, 1 << 20, size):
                size += write_all(ops, copy, [data], size)
            ops.fsync(copy)
        finally:
            ops.close(copy)
    finally:
        ops.close(fd)


def read_range(ops: Ops, fd: int, position: int, count: int) -> bytes:
    """Read exactly `count` bytes that are there. Raises OSError."""
    data = ops.pread(fd, count, position)
    while len(data) < count:  # a signal, or the 2 GiB that Linux reads at most
        more = ops.pread(fd, count - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
