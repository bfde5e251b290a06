"""For an operator: make a damaged partition one that opens. Nothing is ever deleted.

What a repair takes out of a log is moved to `quarantine/` below the root, from where it can be
put back (`odradek_storage_file.quarantine`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Literal

from attrs import define, field

from odradek.contracts.storage import (
    HEADER_SIZE,
    Corrupt,
    OutOfRange,
    PartitionKey,
    crc32c,
)
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps, encode_gaps
from odradek.errors import CorruptBatch
from odradek.record import assign
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.lock import DirectoryLock
from odradek_storage_file.mending import mend
from odradek_storage_file.ops import Ops, write_all, write_atomically
from odradek_storage_file.quarantine import Aside
from odradek_storage_file.recovery import finish_edits
from odradek_storage_file.saving import read_file, read_manifest, read_range, write_manifest
from odradek_storage_file.sifting import Kept, sound, valid
from odradek_storage_file.truncation import truncate_files
from odradek_storage_file.verify import WINDOW, segment_bases

__all__ = ["RepairReport", "repair"]


@define
class RepairReport:
    """What `repair` did, in words, and where it put what it took out (None if nothing)."""

    key: PartitionKey
    actions: list[str] = field(factory=list)
    quarantine: str | None = None


def repair(root: str, key: PartitionKey, *, how: Literal["cut", "skip"] = "cut") -> RepairReport:
    """Make a partition one that opens, and say what was done.

    `cut` ends the log before the first damaged byte, as a replica does that will fetch the rest
    again. `skip` leaves out what is damaged and keeps every valid batch after it: for the only
    copy; offsets then have a gap. A base offset or a leader epoch, which no CRC covers, is put
    right where its neighbours or the manifest tell it.

    Files that lose bytes are moved whole to `quarantine/`, and written anew from their good parts.
    Indexes are rebuilt; a manifest that cannot be read is made from the segments, and then the log
    starts at the first of them, and blobs are lost.

    Offsets that are left out are noted in the log (`odradek.contracts.storage_gaps`).

    Raises Unavailable while another process has the directory, OutOfRange if there is no such
    partition, OSError.
    """
    ops = Ops()
    path = f"{root}/{layout.directory_name(key)}"
    if not os.path.isdir(path):
        raise OutOfRange(f"there is no log of {key} in {root}")
    lock = DirectoryLock(root)
    try:
        return _Repair(ops, root, path, key, how).run()
    finally:
        lock.release()


class _Repair:
    def __init__(self, ops: Ops, root: str, path: str, key: PartitionKey, how: str) -> None:
        self.ops = ops
        self.path = path
        self.how = how
        self.report = RepairReport(key)
        self._recovery_points: dict[int, int] = {}
        self._active_base = 0
        self._ends: dict[int, int] = {}  # of each segment, the offset that ends it at the latest
        now_ms = time.time_ns() // 1_000_000
        self._aside = Aside(ops, root, key, now_ms, reason=self.report.actions)
        self._guessing = False  # without a manifest nobody knows what made a gap
        self._lost = False  # something was left out right before this place

    def run(self) -> RepairReport:
        key = self.report.key
        try:
            manifest: Manifest | None = read_manifest(self.ops, self.path, key)
        except (Corrupt, FileNotFoundError) as error:
            self._did(f"made a manifest from the segments: {error}")
            manifest = None
            self._guessing = self._lost = True
        known = {}
        if manifest is not None:
            self._finish(manifest)
            self._aside.manifest = manifest
            self._aside.missing = self._not_whole(manifest)
            known = {entry.base: entry for entry in manifest.sealed}
            self._active_base = manifest.active.base
            if manifest.active.size:
                self._recovery_points[manifest.active.base] = manifest.active.end
        kept = self._segments(known)
        new = self._manifest(manifest, kept, known)
        self._blobs(manifest, new)
        self._gaps(new, kept)
        if manifest is None:
            self._without_manifest(new)
        elif self.report.actions:
            self._aside.open()
        if self._aside.path is not None:
            self.report.quarantine = self._aside.path
            self._aside.write()
        write_manifest(self.ops, self.path, new)
        self.ops.remove(f"{os.path.dirname(self.path)}/{layout.CLEAN_MARKER}")
        return self.report

    def _finish(self, manifest: Manifest) -> None:
        """Finish an edit that a crash interrupted, as far as the damage lets it."""
        finish_edits(self.ops, self.path, manifest, set(os.listdir(self.path)))
        if manifest.truncate_to is not None:
            offset = manifest.truncate_to
            try:
                truncate_files(self.ops, self.path, manifest, {})
            except CorruptBatch as error:
                self._did(f"could not finish a truncation to {offset}: {error.detail}")

    def _not_whole(self, manifest: Manifest) -> list[str]:
        """Name the data files that have fewer bytes than the manifest says."""
        found = []
        each: list[SealedEntry | ActiveEntry] = [*manifest.sealed, manifest.active]
        for entry in each:
            name = f"{layout.stem(entry.base)}.log"
            try:
                size = os.stat(f"{self.path}/{name}").st_size
            except FileNotFoundError:
                size = -1
            if size < entry.size or (isinstance(entry, SealedEntry) and size != entry.size):
                found.append(name)
        return found

    def _did(self, text: str) -> None:
        self.report.actions.append(text)

    def _without_manifest(self, new: Manifest) -> None:
        """Set aside what only the lost manifest could have told the meaning of."""
        kept = {layout.blob_name(number) for number, _, _ in new.blobs.values()}
        for name in sorted(os.listdir(self.path)):
            if name == layout.MANIFEST or (name.endswith(".blob") and name not in kept):
                self._aside.move(name)

    def _segments(self, known: dict[int, SealedEntry]) -> list[Kept]:
        """Check every segment; rewrite or move those that are damaged."""
        kept: list[Kept] = []
        end = 0
        cut = False
        bases = sorted({*self._bases(), *known, *self._recovery_points})
        self._ends = dict(pairwise(bases))
        self._ends |= {base: entry.end for base, entry in known.items()}
        for base in bases:
            name = f"{layout.stem(base)}.log"
            due = known[base].end if base in known else self._recovery_points.get(base, 0)
            if not os.path.exists(f"{self.path}/{name}"):
                self._did(f"{name} is missing: offsets {base} to {due - 1} are gone")
                self._lost = True
                cut = cut or self.how == "cut"
                continue
            if cut:
                self._aside.move(name)
                self._did(f"set {name} aside, which follows the damage")
                continue
            found = self._good_parts(base, end)
            if not found.size and base in known:
                self._aside.move(name)
                self._did(f"set {name} aside, of which nothing is valid")
            elif not found.whole:
                self._rewrite(name, found)
            elif found.end < due:
                self._did(f"{name} is short: offsets {found.end} to {due - 1} are gone")
                self._lost = True
            cut = self.how == "cut" and (found.lost or found.end < due)
            if not found.size and base in known:
                self._lost = True
                continue
            end = found.end
            if base in known:
                found.index.seal()
            # At once: the rows of all segments of a large log would fill the memory.
            found.index.flush(self.ops, f"{self.path}/{layout.stem(base)}", cut=True)
            found.ranges.clear()
            kept.append(found)
        return kept

    def _bases(self) -> list[int]:
        """The segments that belong to the log, as far as is known; others are stray files."""
        return [base for base in segment_bases(self.path) if base >= self._active_base]

    def _good_parts(self, base: int, end: int) -> Kept:
        file = f"{self.path}/{layout.stem(base)}.log"
        if not self._lost:
            whole = sound(self.ops, file, base, end, self._ends.get(base), self._epoch_at)
            if whole is not None:
                return whole
        kept = Kept(base, max(base, end), IndexBuilder(base))
        if self._lost and base > end > 0:
            kept.gaps.append((end, base))
        batches, holes, damage = valid(self.ops, file, only_first=self.how == "cut")
        for text in damage:
            self._did(text)
            kept.whole, kept.lost = False, True
        metas = [each.meta for each in batches]
        due = self._ends.get(base)
        mended = mend(metas, base, kept.end, due, holes, self._epoch_at)
        for number, (each, meta) in enumerate(zip(batches, mended, strict=True)):
            if number in holes:
                self._lost = True
            if meta != each.meta:
                kept.whole = False
                was = f"offsets {each.meta.base_offset} to {each.meta.last_offset} of leader epoch"
                self._did(
                    f"{file}, byte {each.position}: {was} {each.meta.leader_epoch} "
                    + (
                        "have no place here"
                        if meta is None
                        else f"put right: offset {meta.base_offset}, epoch {meta.leader_epoch}"
                    )
                )
            if meta is None:
                self._lost = kept.lost = True
                if self.how == "cut":
                    break
                continue
            if self._lost and meta.base_offset > kept.end:
                kept.gaps.append((kept.end, meta.base_offset))
            self._lost = self._guessing
            start, stop = each.position, each.position + meta.size
            if kept.ranges and kept.ranges[-1][1] == start:
                start = kept.ranges.pop()[0]
            kept.ranges.append((start, stop))
            if meta != each.meta:
                kept.mended.append((kept.size, meta))
            kept.take(meta)
        if len(batches) in holes:
            self._lost = True
        return kept

    def _epoch_at(self, offset: int) -> int | None:
        """Leader epoch in force at an offset, as far as the manifest tells."""
        manifest = self._aside.manifest
        if manifest is None or offset >= manifest.active.end:
            return None
        found = None
        for entry in manifest.epochs:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    def _rewrite(self, name: str, kept: Kept) -> None:
        """Put the good parts in place of a damaged file, which is moved aside."""
        ops = self.ops
        file = f"{self.path}/{name}"
        source = ops.open(file, os.O_RDONLY | os.O_CLOEXEC)
        target = ops.open(f"{file}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            size = 0
            for start, stop in kept.ranges:
                for at in range(start, stop, WINDOW):
                    data = read_range(ops, source, at, min(WINDOW, stop - at))
                    size += write_all(ops, target, [data], size)
            for at, meta in kept.mended:
                head = bytearray(HEADER_SIZE)
                assign(head, 0, meta.base_offset, meta.leader_epoch)
                write_all(ops, target, [head[:8]], at)
                write_all(ops, target, [head[12:16]], at + 12)
            ops.fsync(target)
        finally:
            ops.close(source)
            ops.close(target)
        self._aside.move(name)
        ops.rename(f"{file}.tmp", file)
        ops.sync_directory(self.path)
        self._did(f"kept {size} bytes of {name}, up to offset {kept.end}, and the whole aside")

    def _manifest(
        self, old: Manifest | None, kept: list[Kept], known: dict[int, SealedEntry]
    ) -> Manifest:
        new = Manifest(str(self.report.key))
        if old is not None:
            new.next_id, new.next_file = old.next_id, old.next_file
            new.log_start = old.log_start
        elif kept:
            new.log_start = kept[0].base
        ids = {base: entry.id for base, entry in known.items()}
        if old is not None:
            ids[old.active.base] = old.active.id
        now = time.time_ns() // 1_000_000
        for i, each in enumerate(kept):
            if each.base not in ids:
                ids[each.base] = 2 * new.next_id
                new.next_id += 1
            for entry in each.epochs:
                if not new.epochs or entry.epoch > new.epochs[-1].epoch:
                    new.epochs.append(entry)
            builder = each.index
            last = i == len(kept) - 1 and (each.base not in known)
            if not last and each.base not in known:
                builder.seal()
                builder.flush(self.ops, f"{self.path}/{layout.stem(each.base)}")
            created = known[each.base].created_ms if each.base in known else now
            if last:
                new.active = ActiveEntry(
                    ids[each.base], each.base, each.end, each.size, created, builder.state()
                )
            else:
                new.sealed.append(
                    SealedEntry(
                        ids[each.base],
                        each.base,
                        each.end,
                        each.size,
                        builder.max_timestamp,
                        builder.max_timestamp_offset,
                        created,
                        builder.rows,
                        builder.crc,
                    )
                )
        if not kept or kept[-1].base in known:  # the active segment went: begin a new one
            end = max(kept[-1].end if kept else 0, new.log_start)
            state = IndexBuilder(end).state()
            new.active = ActiveEntry(2 * new.next_id, end, end, 0, now, state)
            new.next_id += 1
        return new

    def _gaps(self, new: Manifest, kept: Sequence[Kept]) -> None:
        """Note which offsets were left out, or the log would look as if it had lost them."""
        gaps = [gap for each in kept for gap in each.gaps]
        if not gaps:
            return
        if GAPS_BLOB in new.blobs:
            number, _, _ = new.blobs[GAPS_BLOB]
            with suppress(ValueError):
                gaps += decode_gaps(read_file(self.ops, f"{self.path}/{layout.blob_name(number)}"))
        end = new.active.end
        data = encode_gaps((low, min(high, end)) for low, high in gaps if low < end)
        number = new.next_file
        new.next_file += 1
        write_atomically(self.ops, self.path, layout.blob_name(number), data)
        new.blobs[GAPS_BLOB] = (number, len(data), crc32c(data))

    def _blobs(self, old: Manifest | None, new: Manifest) -> None:
        for name, (number, size, crc) in (old.blobs if old else {}).items():
            try:
                data = read_file(self.ops, f"{self.path}/{layout.blob_name(number)}")
            except FileNotFoundError:
                data = b""
            if len(data) == size and crc32c(data) == crc:
                new.blobs[name] = (number, size, crc)
                continue
            self._did(f"gave up blob {name!r}, which is missing or damaged")
            if data:
                self._aside.move(layout.blob_name(number))
