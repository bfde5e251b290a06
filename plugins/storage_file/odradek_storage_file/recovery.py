"""Opening a partition's directory: finish what was begun, find the end of the log, check it.

Runs in a worker thread, on plain values. What is before the recovery point was durable and is
only looked at by size; everything after it is read and every CRC checked. A bad tail with nothing
valid after it is cut off and reported; a bad batch with valid ones after it is left as it is and
reported as Corrupt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from attrs import define, field

from odradek.contracts.storage import (
    HEADER_SIZE,
    BatchMeta,
    Corrupt,
    EpochStart,
    PartitionKey,
    Recovery,
    Unavailable,
    parse_header,
    scan,
)
from odradek.errors import CorruptBatch
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.ops import Ops
from odradek_storage_file.saving import (
    check_kind,
    read_blobs,
    read_manifest,
    read_range,
    write_manifest,
)
from odradek_storage_file.searching import WINDOW, next_valid, valid_later
from odradek_storage_file.truncation import truncate_files

__all__ = ["Loaded", "create", "finish_edits", "load", "look"]

LARGEST_BATCH = 256 * 1024 * 1024
"""A length above this is taken for damage; Kafka's largest message is bounded by 2 GiB, brokers
accept 1 MiB by default and a frame of Odradek's holds 32 MiB."""

LEFTOVERS = (".tmp", ".blob", layout.DELETED_SUFFIX)
"""Names of files that opening removes, but for the blobs of the manifest."""


@define
class Loaded:
    """A partition as found on disk, ready to be written to.

    `lost`: blobs that are missing or damaged; the log goes on without them.
    The last segment is active: `builder` is its index, `manifest.active` its state at the end.
    `rolled` says that segments were found which the manifest did not have.
    """

    path: str
    manifest: Manifest
    builder: IndexBuilder
    blobs: Mapping[str, bytes]
    recovery: Recovery
    saved: bool = True
    rebuild: set[int] = field(factory=set)
    lost: tuple[str, ...] = ()


@define
class _Tail:
    """What lies after the recovery point, while it is being walked."""

    scanned: int = 0
    cut: int = 0
    details: list[str] = field(factory=list)


def load(ops: Ops, path: str, key: PartitionKey, *, repair: bool = True) -> Loaded | None:
    """Open the directory of a partition; None when there is none.

    With `repair` false nothing is changed on disk: the log is what a recovery would leave.
    Raises Corrupt, OSError.
    """
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return None
    if layout.MANIFEST not in names:
        if any(layout.segment_base(name) is not None for name in names):
            raise Corrupt(
                f"{path} has segments but no {layout.MANIFEST}: where the log starts and what "
                "belongs to it is not known; repair the partition to make it from the segments"
            )
        return None
    manifest = read_manifest(ops, path, key)
    stray = finish_edits(ops, path, manifest, names) if repair else False
    if manifest.truncate_to is not None:
        if not repair:
            raise Unavailable(f"{path} is being truncated")
        try:
            truncate_files(ops, path, manifest, {})
        except CorruptBatch as error:
            raise Corrupt(f"{path}: cannot finish a truncation: {error.detail}") from error
        names = set(os.listdir(path))
        stray = True
    for entry in manifest.sealed:
        _check_sealed(path, entry)
    tail = _Tail()
    builder, dirty = _recover(ops, path, manifest, names, tail, repair)
    blobs, lost = read_blobs(ops, path, manifest)
    for name in lost:
        file = layout.blob_name(manifest.blobs.pop(name)[0])
        tail.details.append(
            f"{path}/{file} is missing or damaged: the log goes on without blob {name!r}"
        )
    if repair and (dirty or stray or lost or not manifest.active.created_ms):
        if not manifest.active.created_ms:
            manifest.active.created_ms = time.time_ns() // 1_000_000
        write_manifest(ops, path, manifest)
    clean = not (tail.scanned or tail.details)
    recovery = Recovery(clean, tail.scanned, tail.cut, "; ".join(tail.details))
    return Loaded(path, manifest, builder, blobs, recovery, lost=lost)


def look(ops: Ops, path: str, key: PartitionKey) -> Loaded | None:
    """Load a partition without changing it, while another process may be writing it.

    That process can replace the manifest and remove files in the middle of this, so what looks
    like damage counts only when it stays. Raises as `load`.
    """
    attempts = 5
    while True:
        attempts -= 1
        try:
            found = load(ops, path, key, repair=False)
            if found is None or not found.lost or not attempts:
                return found
        except (Corrupt, Unavailable, FileNotFoundError):
            if not attempts:
                raise


def create(ops: Ops, root: str, path: str, key: PartitionKey) -> Loaded:
    """Make the directory of a new partition, durably. Raises OSError."""
    with suppress(FileExistsError):  # a crash came before its manifest
        ops.mkdir(path, 0o755)
    manifest = Manifest(str(key))
    manifest.active.created_ms = time.time_ns() // 1_000_000
    builder = IndexBuilder(0)
    manifest.active.index = builder.state()
    write_manifest(ops, path, manifest)  # a segment without a manifest would look like damage
    log = f"{path}/{layout.stem(0)}.log"
    ops.close(ops.open(log, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    ops.sync_directory(path)
    ops.sync_directory(root)
    return Loaded(path, manifest, builder, {}, Recovery())


def finish_edits(ops: Ops, path: str, manifest: Manifest, names: set[str]) -> bool:
    """Finish the edits that the manifest decided on, remove leftovers; say if it has to change."""
    changed = bool(manifest.swaps or manifest.removed)
    for segment_id, base in manifest.swaps.items():
        for suffix in layout.SUFFIXES:
            built = f"{segment_id}.built{suffix}"
            if built in names:
                ops.rename(f"{path}/{built}", f"{path}/{layout.stem(base)}{suffix}")
                names.discard(built)
                names.add(f"{layout.stem(base)}{suffix}")
    for base in manifest.removed:
        for suffix in layout.SUFFIXES:
            ops.remove(f"{path}/{layout.stem(base)}{suffix}")
            names.discard(f"{layout.stem(base)}{suffix}")
    kept = {layout.blob_name(number) for number, _, _ in manifest.blobs.values()}
    for name in list(names):
        if ".built." in name or (name.endswith(LEFTOVERS) and name not in kept):
            with suppress(IsADirectoryError):  # somebody else's: a stray
                ops.remove(f"{path}/{name}")
            names.discard(name)
    if changed:
        ops.sync_directory(path)
        manifest.swaps.clear()
        manifest.removed.clear()
    return changed


def _check_sealed(path: str, entry: SealedEntry) -> None:
    file = f"{path}/{layout.stem(entry.base)}.log"
    try:
        check_kind(file)
        size = os.stat(file).st_size
    except FileNotFoundError:
        raise Corrupt(
            f"{file} is missing: it held offsets {entry.base} to {entry.end - 1}; restore it, "
            "or repair the partition to do without it"
        ) from None
    if size != entry.size:
        raise Corrupt(
            f"{file} has {size} bytes instead of {entry.size}; restore it, or repair the "
            "partition to keep what is valid"
        )


def _recover(
    ops: Ops, path: str, manifest: Manifest, names: set[str], tail: _Tail, repair: bool
) -> tuple[IndexBuilder, bool]:
    """Walk what came after the manifest; bring it up to date. Say whether anything changed."""
    active = manifest.active
    later = sorted(
        base
        for name in names
        if (base := layout.segment_base(name)) is not None and base > active.base
    )
    builder = (
        IndexBuilder.restored(active.base, active.index)
        if active.index
        else IndexBuilder(active.base)
    )
    dirty = False
    while True:
        file = f"{path}/{layout.stem(active.base)}.log"
        try:
            fd = _open(ops, file, repair)
        except FileNotFoundError:
            if active.size:
                raise Corrupt(
                    f"{file} is missing: it held offsets {active.base} to {active.end - 1}; "
                    "restore it, or repair the partition to do without it"
                ) from None
            if not repair:
                return builder, dirty
            fd = ops.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            dirty = True
        try:
            size = os.fstat(fd).st_size
            if size < active.size:
                raise Corrupt(
                    f"{file} has {size} bytes, but {active.size} were durable; restore it, or "
                    "repair the partition to keep what is there"
                )
            if size > active.size:
                dirty = True
                problem = _walk_tail(ops, fd, file, size, manifest, builder, tail)
                if problem is not None:
                    _judge(ops, path, fd, file, size, manifest, later, problem)
                    tail.cut += size - active.size
                    tail.details.append(
                        f"{file}: {problem} at byte {active.size}; nothing valid follows"
                    )
                    if repair:
                        ops.ftruncate(fd, active.size)
                    _cut_later(ops, path, later, tail, repair)
                    later = []
                if repair:
                    ops.fdatasync(fd)
        finally:
            ops.close(fd)
        if not later:
            return builder, dirty
        dirty = True
        if later[0] != active.end:
            # Any fsync on the file system can make a new file's name durable before the end of the
            # file before it: ext4 writes the whole journal. Then nothing is in the new one yet.
            gap = f"{path}/{layout.stem(later[0])}.log follows offset {active.end - 1}"
            if later[0] < active.end or valid_later(ops, path, later, active.end) is not None:
                raise Corrupt(
                    f"{gap}: the bytes between are gone; repair the partition to go on without them"
                )
            tail.details.append(f"{gap} with nothing valid in it")
            _cut_later(ops, path, later, tail, repair)
            return builder, dirty
        _seal(ops, path, manifest, builder, repair)
        base = later.pop(0)
        created = os.stat(f"{path}/{layout.stem(base)}.log").st_mtime_ns // 1_000_000
        active = ActiveEntry(2 * manifest.next_id, base, base, 0, created, {})
        manifest.next_id += 1
        manifest.active = active
        builder = IndexBuilder(base)


def _open(ops: Ops, file: str, write: bool) -> int:
    check_kind(file)
    return ops.open(file, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)


def _seal(ops: Ops, path: str, manifest: Manifest, builder: IndexBuilder, repair: bool) -> None:
    active = manifest.active
    builder.seal()
    if repair:
        builder.flush(ops, f"{path}/{layout.stem(active.base)}")
    manifest.sealed.append(
        SealedEntry(
            active.id,
            active.base,
            active.end,
            active.size,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            active.created_ms,
            builder.rows,
            builder.crc,
        )
    )


def _walk_tail(
    ops: Ops,
    fd: int,
    file: str,
    size: int,
    manifest: Manifest,
    builder: IndexBuilder,
    tail: _Tail,
) -> str | None:
    """Move the recovery point over every valid batch; return what is wrong with the next one."""
    active = manifest.active
    window = WINDOW
    while active.size < size:
        data = read_range(ops, fd, active.size, min(window, size - active.size))
        found = scan(memoryview(data))
        start = active.size
        for meta, at in zip(found.metas, found.positions, strict=True):
            _check_order(file, meta, manifest)
            _take(meta, start + at, manifest, builder)
            tail.scanned += meta.size
        if found.problem is None:
            window = WINDOW
            continue
        if found.problem.kind == "corrupt" or start + len(data) >= size:
            return found.problem.text
        if found.end:
            window = WINDOW
            continue
        window = _needed(data)  # one batch is larger than the window
        if window > LARGEST_BATCH or window <= len(data):
            return f"a batch of {window} bytes"
    return None


def _needed(data: bytes) -> int:
    try:
        return parse_header(data).size if len(data) >= HEADER_SIZE else WINDOW
    except CorruptBatch:
        return 0


def _check_order(file: str, meta: BatchMeta, manifest: Manifest) -> None:
    if meta.base_offset < manifest.active.end or meta.last_offset < meta.base_offset:
        raise Corrupt(
            f"{file} has a valid batch of offsets {meta.base_offset} to {meta.last_offset} at byte "
            f"{manifest.active.size}, where offset {manifest.active.end} is due; nothing was "
            "removed. Fetch the partition from a replica, or repair it to cut it there"
        )


def _take(meta: BatchMeta, position: int, manifest: Manifest, builder: IndexBuilder) -> None:
    active = manifest.active
    builder.note(meta, position)
    epochs = manifest.epochs
    if not epochs or meta.leader_epoch > epochs[-1].epoch:
        epochs.append(EpochStart(meta.leader_epoch, meta.base_offset))
    active.size = position + meta.size
    active.end = meta.last_offset + 1


def _judge(
    ops: Ops,
    path: str,
    fd: int,
    file: str,
    size: int,
    manifest: Manifest,
    later: list[int],
    problem: str,
) -> None:
    """Return when the damage at the recovery point is a torn tail. Raises Corrupt if not."""
    active = manifest.active
    found = next_valid(ops, fd, active.size, size, active.end)
    where = None if found is None else f"byte {found} of {file}"
    where = where or valid_later(ops, path, later, active.end)
    if where is not None:
        raise Corrupt(
            f"{file}: {problem} at byte {active.size} (offset {active.end}), with a valid batch "
            f"after it at {where}; nothing was removed. Fetch the partition from "
            "a replica, restore the file, or repair the partition to cut it there"
        )


def _cut_later(ops: Ops, path: str, later: list[int], tail: _Tail, repair: bool) -> None:
    """Remove segments that hold nothing valid."""
    for base in later:
        tail.cut += os.stat(f"{path}/{layout.stem(base)}.log").st_size
        if repair:
            for suffix in layout.SUFFIXES:
                ops.remove(f"{path}/{layout.stem(base)}{suffix}")
