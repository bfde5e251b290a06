"""For an operator: look into a segment, check a storage directory. Only reads, takes no lock."""

from __future__ import annotations

import os
from collections.abc import Iterator

from attrs import define, field, frozen

from odradek.contracts.storage import (
    BatchMeta,
    Corrupt,
    PartitionKey,
    scan,
)
from odradek.errors import CorruptBatch
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder, walk
from odradek_storage_file.layout import ActiveEntry, SealedEntry
from odradek_storage_file.ops import Ops
from odradek_storage_file.saving import (
    check_kind,
    read_blobs,
    read_file,
    read_manifest,
    read_range,
)
from odradek_storage_file.searching import next_valid

__all__ = [
    "DumpedBatch",
    "Finding",
    "PartitionReport",
    "dump_segment",
    "partitions",
    "segment_bases",
    "verify",
    "walk_segment",
]

WINDOW = 16 * 1024 * 1024
LARGEST_BATCH = 256 * 1024 * 1024


@frozen
class DumpedBatch:
    """A batch of a segment file: where it lies, what its header says, and whether its CRC fits."""

    position: int
    meta: BatchMeta
    valid: bool


@frozen
class Finding:
    """Something that is not as it should be. `severe`: not a cache that is rebuilt by itself."""

    file: str
    position: int
    text: str
    severe: bool = True

    def __str__(self) -> str:
        return f"{self.file}, byte {self.position}: {self.text}"


@define
class PartitionReport:
    """What `verify` found in one partition; offsets [log_start, end_offset)."""

    key: PartitionKey
    path: str
    segments: int = 0
    batches: int = 0
    size: int = 0
    log_start: int = 0
    end_offset: int = 0
    findings: list[Finding] = field(factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing severe was found."""
        return not any(finding.severe for finding in self.findings)


def partitions(root: str) -> list[PartitionKey]:
    """Return the partitions of a directory. Raises OSError."""
    found = (layout.directory_key(name) for name in sorted(os.listdir(root)))
    return [key for key in found if key is not None]


def dump_segment(path: str) -> Iterator[DumpedBatch | Finding]:
    """Walk a segment file; after damage go on at the next valid batch.

    Raises OSError, and Corrupt where it is no file.
    """
    ops = Ops()
    check_kind(path)
    fd = ops.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from walk_segment(ops, fd, path, os.fstat(fd).st_size)
    finally:
        ops.close(fd)


def walk_segment(ops: Ops, fd: int, path: str, size: int) -> Iterator[DumpedBatch | Finding]:
    """Walk the first `size` bytes of an open segment file, as `dump_segment` does."""
    position = 0
    window = WINDOW
    while position < size:
        data = read_range(ops, fd, position, min(window, size - position))
        found = scan(memoryview(data))
        for meta, at in zip(found.metas, found.positions, strict=True):
            yield DumpedBatch(position + at, meta, True)
        position += found.end
        problem = found.problem
        if problem is None or (found.end and problem.kind == "incomplete"):
            window = WINDOW
            if problem is None or position + len(data) - found.end < size:
                continue
        elif problem.kind == "incomplete" and len(data) < min(size - position, LARGEST_BATCH):
            window = min(2 * window, LARGEST_BATCH)
            continue
        following = next_valid(ops, fd, position + 1, size, 0)
        yield Finding(
            path,
            position,
            f"{problem.text}; "
            + (
                "nothing valid follows" if following is None else f"byte {following} is valid again"
            ),
        )
        if following is None:
            return
        position, window = following, WINDOW


def _headers(ops: Ops, fd: int, size: int) -> Iterator[DumpedBatch | Finding]:
    """Walk the headers alone, to the first place where there is none."""
    position = 0
    try:
        for meta, position in walk(ops, fd, 0, size):
            yield DumpedBatch(position, meta, True)
    except CorruptBatch as error:
        yield Finding("", position, error.detail)


def verify(
    root: str, key: PartitionKey | None = None, *, headers_only: bool = False
) -> Iterator[PartitionReport]:
    """Check partitions: every CRC, the order of offsets, sizes, indexes, manifest and blobs.

    With `headers_only` the batches' own bytes are left to another reader of the segments; the
    index of a segment with damage, where that breaks the chain of lengths, is then not judged.

    Beside a live broker files may change while they are read: a partition whose manifest changed
    meanwhile is read again, and what follows the recovery point may end in a batch that is just
    being written. Raises OSError.
    """
    for each in [key] if key is not None else partitions(root):
        path = f"{root}/{layout.directory_name(each)}"
        attempts = 5
        while True:
            before = _manifest_identity(path)
            report = _verify(Ops(), path, each, headers_only)
            attempts -= 1
            if report.ok or not attempts or _manifest_identity(path) == before:
                break
        yield report


def _manifest_identity(path: str) -> tuple[int, int]:
    try:
        info = os.stat(f"{path}/{layout.MANIFEST}")
    except FileNotFoundError:
        return 0, 0
    return info.st_ino, info.st_mtime_ns


def _verify(ops: Ops, path: str, key: PartitionKey, headers_only: bool) -> PartitionReport:
    report = PartitionReport(key, path)
    try:
        manifest = read_manifest(ops, path, key)
    except (Corrupt, FileNotFoundError) as error:
        report.findings.append(Finding(f"{path}/{layout.MANIFEST}", 0, str(error)))
        return report
    report.log_start = manifest.log_start
    end = 0
    for entry in manifest.sealed:
        end = _verify_segment(ops, path, entry, end, report, headers_only)
    active = manifest.active
    end = _verify_segment(ops, path, active, end, report, headers_only)
    for base in segment_bases(path):
        if base > active.base:
            later = ActiveEntry(-1, base, end, 0, 0, {})
            found = _verify_segment(ops, path, later, end, report, headers_only)
            if base > end and found == base:
                report.findings.append(
                    Finding(
                        f"{path}/{layout.stem(base)}.log",
                        0,
                        f"nothing valid is in it, and offset {end} is due: the next start removes "
                        "it",
                        severe=False,
                    )
                )
                continue
            end = found
    report.end_offset = end
    if manifest.log_start > end:
        report.findings.append(
            Finding(
                f"{path}/{layout.MANIFEST}",
                0,
                f"the log starts at offset {manifest.log_start}, and ends at {end}",
            )
        )
    for name in read_blobs(ops, path, manifest)[1]:
        file = f"{path}/{layout.blob_name(manifest.blobs[name][0])}"
        text = f"blob {name!r} is missing or damaged; the next start goes on without it"
        report.findings.append(Finding(file, 0, text, severe=False))
    return report


def segment_bases(path: str) -> list[int]:
    """Return the base offsets of the segment files in a partition's directory, in order."""
    found = (layout.segment_base(name) for name in os.listdir(path))
    return sorted(base for base in found if base is not None)


def _verify_segment(
    ops: Ops,
    path: str,
    entry: SealedEntry | ActiveEntry,
    end: int,
    report: PartitionReport,
    headers_only: bool,
) -> int:
    """Check one segment and its indexes; return the offset it ends at."""
    stem = f"{path}/{layout.stem(entry.base)}"
    file = stem + ".log"
    report.segments += 1
    try:
        check_kind(file)
        fd = ops.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except Corrupt as error:
        report.findings.append(Finding(file, 0, str(error)))
        return max(end, entry.end)
    except FileNotFoundError:
        if entry.size or isinstance(entry, SealedEntry):
            report.findings.append(Finding(file, 0, "the file is missing"))
        return max(end, entry.end)
    sealed = isinstance(entry, SealedEntry)
    builder = IndexBuilder(entry.base)
    end = max(end, entry.base)
    try:
        size = os.fstat(fd).st_size
        if size < entry.size or (sealed and size != entry.size):
            report.findings.append(
                Finding(file, size, f"the file has {size} bytes instead of {entry.size}")
            )
        batches = _headers(ops, fd, size) if headers_only else walk_segment(ops, fd, file, size)
        for each in batches:
            if isinstance(each, Finding):
                if headers_only:
                    return max(end, entry.end)
                torn = not sealed and each.position >= entry.size and "nothing valid" in each.text
                report.findings.append(
                    Finding(each.file, each.position, each.text, severe=not torn)
                )
                continue
            meta = each.meta
            if not headers_only and (meta.base_offset < end or meta.last_offset < meta.base_offset):
                report.findings.append(
                    Finding(
                        file,
                        each.position,
                        f"offsets {meta.base_offset} to {meta.last_offset} after {end - 1}",
                    )
                )
            builder.note(meta, each.position)
            end = max(end, meta.last_offset + 1)
            report.batches += 1
        report.size += size
    finally:
        ops.close(fd)
    if isinstance(entry, SealedEntry):
        builder.seal()
        if end > entry.end:
            report.findings.append(
                Finding(file, 0, f"ends at offset {end}, the manifest says {entry.end}")
            )
        _verify_indexes(ops, stem, builder, report)
        return entry.end
    return end


def _verify_indexes(ops: Ops, stem: str, builder: IndexBuilder, report: PartitionReport) -> None:
    for suffix, expected in builder.files().items():
        try:
            found = read_file(ops, stem + suffix)
        except (Corrupt, FileNotFoundError):
            found = b""
        if found != expected:
            text = "does not fit the data; it is a cache, `repair` writes it anew"
            report.findings.append(Finding(stem + suffix, 0, text, severe=False))
