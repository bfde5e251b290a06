"""For an operator: make a damaged partition one that opens. Nothing is ever deleted.

What a repair takes out of a log is moved to `quarantine/` below the root, from where it can be
put back (`odradek_storage_file.quarantine`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from attrs import define, field

from odradek.contracts.storage import (
    HEADER_SIZE,
    MAX_RELATIVE_OFFSET,
    Corrupt,
    OutOfRange,
    PartitionKey,
)
from odradek.errors import CorruptBatch
from odradek.record import assign
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, NewerFormat, SealedEntry
from odradek_storage_file.lock import DirectoryLock
from odradek_storage_file.mending import mend
from odradek_storage_file.ops import Ops, write_all
from odradek_storage_file.quarantine import Aside
from odradek_storage_file.rebuilding import make_manifest, note_gaps
from odradek_storage_file.recovery import finish_edits
from odradek_storage_file.saving import read_blobs, read_manifest, read_range, write_manifest
from odradek_storage_file.sifting import Kept, claimed_end, sound, valid
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
    again; offsets from there on are given anew. Damage below the log start cuts nothing off.
    `skip` leaves out what is damaged and keeps every valid batch after it: for the only copy;
    offsets then have a gap, and the log ends no lower than it is known to have ended. A base
    offset or a leader epoch, which no CRC covers, is put right where its neighbours or the
    manifest tell it. The log never ends below its start.

    Files that lose bytes are moved whole to `quarantine/`, and written anew from their good parts.
    Indexes are rebuilt; a manifest that cannot be read is made from the segments, and then the log
    starts at the first of them, and blobs are lost. After a crash it can be done again.

    Offsets that are left out are noted in the log (`odradek.contracts.storage_gaps`).

    Raises Unavailable while another process has the directory, OutOfRange if there is no such
    partition, Corrupt for a manifest of a newer format (nothing was changed), OSError.
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
        self._log_start = 0
        self._reached = 0  # how far the log went, as far as is known
        self._guessing = False  # without a manifest nobody knows what made a gap
        self._lost = False  # something was left out right before this place
        self._torn = False  # likewise, but for what a lost manifest makes unknown

    def run(self) -> RepairReport:
        key = self.report.key
        try:
            manifest: Manifest | None = read_manifest(self.ops, self.path, key)
        except NewerFormat as error:
            raise Corrupt(
                f"{error}; nothing was changed. Where no newer version ever ran, the file is "
                "damaged: move it away, and repair again"
            ) from None
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
            self._log_start = manifest.log_start
            self._reached = max([manifest.active.end, *(e.end for e in manifest.sealed)])
        kept = self._segments(known)
        new = self._manifest(manifest, kept, known)
        self._blobs(manifest, new)
        note_gaps(self.ops, self.path, new, kept)
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
        self._did(
            f"the log starts at offset {new.log_start} now: what was deleted by moving its start "
            "within a segment is back"
        )
        kept = {layout.blob_name(number) for number, _, _ in new.blobs.values()}
        for name in sorted(os.listdir(self.path)):
            if name == layout.MANIFEST:
                self._aside.move(name)
            elif name.endswith(".blob") and name not in kept:
                self._aside.move(name)
                self._did(f"set {name} aside: without the manifest nobody knows what it is")

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
            if not cut and self._is_missing(name, base, due):
                cut = self._cuts(base)
                continue
            if cut:
                self._cut_off(name)
                continue
            # Rolled since the manifest: such a segment began where the one before it ended.
            gap = bool(kept) and base > max(end, self._active_base) and not self._guessing
            self._lost = self._lost or gap
            found = self._good_parts(base, end)
            stray = gap or (self._guessing and not self._follows(base, kept))
            if not found.size and (base in known or not found.whole or found.end < due or stray):
                self._give_up(name, base, kept)
                cut = self._cuts(base) and (base in known or found.end < due or not found.whole)
                continue
            if gap:
                self._did(f"offsets {end} to {base - 1} before {name} are gone")
                if self.how == "cut":
                    self._cut_off(name)
                    cut = True
                    continue
            if not found.whole:
                self._rewrite(name, found)
            elif found.end < due:
                self._did(f"{name} is short: offsets {found.end} to {due - 1} are gone")
                self._lost = self._torn = True
            short = found.torn or found.end < due
            cut = found.ended or (short and self._cuts(base))
            end = found.end
            if base in known:
                found.index.seal()
            # At once: the rows of all segments of a large log would fill the memory.
            found.index.flush(self.ops, f"{self.path}/{layout.stem(base)}", cut=True)
            found.ranges.clear()
            kept.append(found)
        return kept

    def _is_missing(self, name: str, base: int, due: int) -> bool:
        """Say whether a segment's data is missing; what is no file is set aside."""
        if os.path.isfile(f"{self.path}/{name}"):
            return False
        if os.path.lexists(f"{self.path}/{name}"):
            self._aside.move(name)
            self._did(f"set {name} aside, which is no file")
        if due > base:
            self._did(f"{name} is missing: offsets {base} to {due - 1} are gone")
        self._lost = self._torn = True
        return True

    def _cut_off(self, name: str) -> None:
        if os.path.lexists(f"{self.path}/{name}"):
            self._aside.move(name)
            self._did(f"set {name} aside, which follows the damage")

    def _cuts(self, base: int) -> bool:
        """Whether the log is to be cut at what is lost at the end of a segment."""
        end = self._ends.get(base)
        return self.how == "cut" and (end is None or end > self._log_start)

    def _give_up(self, name: str, base: int, kept: Sequence[Kept]) -> None:
        """Set a segment aside of which nothing is valid."""
        size = os.stat(f"{self.path}/{name}").st_size
        self._aside.move(name)
        self._did(f"set {name} aside, of which nothing is valid")
        # Its name tells how far the log went, unless it cannot follow what is before it. An empty
        # file behind a sound log is a stray: opening would remove it.
        if self._follows(base, kept) and (size or self._torn):
            self._reached = max(self._reached, base)
        self._lost = self._torn = True

    def _follows(self, base: int, kept: Sequence[Kept]) -> bool:
        """Whether a segment can come next: the one before it spans 2**31 offsets at most."""
        return not kept or base - kept[-1].base <= MAX_RELATIVE_OFFSET + 1

    def _bases(self) -> list[int]:
        """The segments that belong to the log, as far as is known; others are stray files."""
        return [base for base in segment_bases(self.path) if base >= self._active_base]

    def _good_parts(self, base: int, end: int) -> Kept:
        name = f"{layout.stem(base)}.log"
        file = f"{self.path}/{name}"
        # A repair that a crash interrupted may have left something out of it already.
        guessing = self._guessing or name in self._aside.missing
        self._lost = self._lost or guessing
        if not self._lost:
            whole = sound(self.ops, file, base, end, self._ends.get(base), self._epoch_at)
            if whole is not None:
                return whole
        kept = Kept(base, max(base, end), IndexBuilder(base))
        if self._lost and base > end > 0:
            kept.gaps.append((end, base))
        batches, holes = valid(self.ops, file)
        metas = [each.meta for each in batches]
        due = self._ends.get(base)
        mended = mend(metas, base, kept.end, due, holes, self._epoch_at)
        for number, (each, meta) in enumerate(zip(batches, mended, strict=True)):
            if number in holes:
                self._did(str(holes[number]))
                kept.whole = False
                self._lost = self._torn = True
            live = meta is not None and meta.base_offset > self._log_start
            if self.how == "cut" and self._torn and live:
                kept.whole, kept.ended = False, True
                return kept
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
                self._lost = self._torn = True
                continue
            if self._lost and meta.base_offset > kept.end:
                kept.gaps.append((kept.end, meta.base_offset))
            self._lost, self._torn = guessing, False
            start, stop = each.position, each.position + meta.size
            if kept.ranges and kept.ranges[-1][1] == start:
                start = kept.ranges.pop()[0]
            kept.ranges.append((start, stop))
            if meta != each.meta:
                kept.mended.append((kept.size, meta))
            kept.take(meta)
        if len(batches) in holes:
            last = holes[len(batches)]
            self._did(str(last))
            kept.whole = False
            self._lost = self._torn = True
            self._reached = max(self._reached, claimed_end(self.ops, file, last.position, kept.end))
        kept.torn = self._torn
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
        """Put the good parts in place of a damaged file, which is kept aside."""
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
        self._aside.keep(name)
        ops.rename(f"{file}.tmp", file)
        ops.sync_directory(self.path)
        self._did(f"kept {size} bytes of {name}, up to offset {kept.end}, and the whole aside")

    def _manifest(
        self, old: Manifest | None, kept: list[Kept], known: dict[int, SealedEntry]
    ) -> Manifest:
        end = max(kept[-1].end if kept else 0, self._log_start)
        if self.how == "skip":
            end = max(end, self._reached)  # offsets that were given once must not be given again
        if kept and kept[-1].end < end:
            if not kept[-1].size:
                self._aside.move(f"{layout.stem(kept.pop().base)}.log")
            self._did(f"the log goes on at offset {end}")
        return make_manifest(self.ops, self.path, self.report.key, old, kept, known, end)

    def _blobs(self, old: Manifest | None, new: Manifest) -> None:
        if old is None:
            return
        sound, lost = read_blobs(self.ops, self.path, old)
        for name in sound:
            new.blobs[name] = old.blobs[name]
        for name in lost:
            self._did(f"gave up blob {name!r}, which is missing or damaged")
            file = layout.blob_name(old.blobs[name][0])
            if os.path.lexists(f"{self.path}/{file}"):
                self._aside.move(file)
