"""What repairs set aside: kept so that a partition can be put back as it was before.

A repair moves or copies everything that it replaces to `quarantine/TOPIC_ID-PARTITION.MS/`: the
data files that lose bytes, the manifest and the blobs, and a file `repair` that says why. What it
leaves alone stays where it is, so putting back works as long as that is still there.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from contextlib import suppress
from typing import Any

from attrs import define, field, frozen

from odradek.contracts.storage import Corrupt, OutOfRange, PartitionKey
from odradek_storage_file import layout
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.lock import DirectoryLock
from odradek_storage_file.ops import Ops, write_atomically
from odradek_storage_file.saving import copy_file, read_file, read_manifest
from odradek_storage_file.verify import segment_bases

__all__ = ["Aside", "Entry", "delete", "entries", "restore"]

RECORD = "repair"
"""Name of the file that says what a repair did."""

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""The file system has no second names for a file, or no more of them."""

_NAME = re.compile(r"(.+)\.([0-9]+)")


@frozen
class Entry:
    """What one repair set aside; `size` in bytes, `at_ms` since 1970, `reason` a line each."""

    name: str
    key: PartitionKey
    at_ms: int
    size: int
    files: int
    reason: tuple[str, ...]


@define
class Aside:
    """A directory of the quarantine, made when the first file goes there.

    `missing`: segment files that were not whole when the repair began; they are not asked for
    when it is taken back. `brought`: files that it puts where there were none, to be taken out
    then. `reason`: what was done, a line each.
    """

    ops: Ops
    root: str
    key: PartitionKey
    now_ms: int
    manifest: Manifest | None = None
    missing: list[str] = field(factory=list)
    brought: list[str] = field(factory=list)
    reason: list[str] = field(factory=list)
    path: str | None = None

    @property
    def source(self) -> str:
        """The partition's directory."""
        return f"{self.root}/{layout.directory_name(self.key)}"

    def open(self) -> str:
        """Make the directory, with copies of the manifest and the blobs; return its path."""
        if self.path is not None:
            return self.path
        home = f"{self.root}/{layout.QUARANTINE}"
        os.makedirs(home, exist_ok=True)
        number = self.now_ms
        while True:
            path = f"{home}/{layout.directory_name(self.key)}.{number}"
            try:
                self.ops.mkdir(path, 0o755)
                break
            except FileExistsError:
                number += 1
        self.path = path
        self.write()
        if self.manifest is not None:
            for number, _, _ in self.manifest.blobs.values():
                name = layout.blob_name(number)
                with suppress(FileNotFoundError, Corrupt):
                    data = read_file(self.ops, f"{self.source}/{name}")
                    write_atomically(self.ops, path, name, data)
            write_atomically(self.ops, path, layout.MANIFEST, self.manifest.encode())
        self.ops.sync_directory(home)
        self.ops.sync_directory(self.root)
        return path

    def write(self) -> None:
        """Write what is known of the repair so far."""
        assert self.path is not None
        body = {
            "key": str(self.key),
            "at_ms": self.now_ms,
            "reason": self.reason,
            "missing": self.missing,
            "brought": self.brought,
        }
        data = layout.wrap(RECORD, json.dumps(body).encode() + b"\n")
        write_atomically(self.ops, self.path, RECORD, data)

    def move(self, name: str) -> None:
        """Move a file of the partition here. Raises OSError."""
        path = self.open()
        self.ops.rename(f"{self.source}/{name}", f"{path}/{name}")
        self.ops.sync_directory(path)

    def keep(self, name: str) -> None:
        """Keep a file of the partition here, whose name there is about to be another's.

        It has both names until then, so that it is in its place whatever comes between. Raises
        OSError.
        """
        path = self.open()
        try:
            self.ops.link(f"{self.source}/{name}", f"{path}/{name}")
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            copy_file(self.ops, f"{self.source}/{name}", f"{path}/{name}")
        self.ops.sync_directory(path)


def entries(root: str) -> list[Entry]:
    """Return what is set aside, oldest first. Takes no lock. Raises OSError."""
    os.stat(root)  # nothing set aside is not the same as no such directory
    home = f"{root}/{layout.QUARANTINE}"
    try:
        names = os.listdir(home)
    except FileNotFoundError:
        return []
    found = [_entry(home, name) for name in names]
    return sorted((each for each in found if each is not None), key=lambda e: (e.at_ms, e.name))


def _entry(home: str, name: str) -> Entry | None:
    matched = _NAME.fullmatch(name)
    key = layout.directory_key(matched[1]) if matched else None
    if matched is None or key is None:
        return None
    path = f"{home}/{name}"
    sizes = [
        os.stat(f"{path}/{file}").st_size for file in sorted(os.listdir(path)) if file != RECORD
    ]
    try:
        record = _record(Ops(), path)
        at_ms, reason = int(record["at_ms"]), tuple(map(str, record["reason"]))
    except (Corrupt, FileNotFoundError) as error:
        at_ms, reason = int(matched[2]), (f"not known: {error}",)
    return Entry(name, key, at_ms, sum(sizes), len(sizes), reason)


def _record(ops: Ops, path: str) -> dict[str, Any]:
    file = f"{path}/{RECORD}"
    found: dict[str, Any] = json.loads(layout.unwrap(RECORD, read_file(ops, file), file))
    return found


def _find(root: str, name: str) -> Entry:
    for each in entries(root):
        if each.name == name:
            return each
    raise OutOfRange(f"nothing of the name {name!r} is set aside in {root}")


def delete(root: str, name: str) -> None:
    """Delete what a repair set aside.

    Raises OutOfRange where there is none, Unavailable while another process has the directory,
    OSError.
    """
    entry = _find(root, name)
    lock = DirectoryLock(root)
    try:
        path = f"{root}/{layout.QUARANTINE}/{entry.name}"
        ops = Ops()
        # The record last: what a crash leaves is still listed, and can be deleted again.
        for file in sorted(os.listdir(path), key=lambda file: file == RECORD):
            if os.path.isdir(f"{path}/{file}"):  # set aside because it was no file
                shutil.rmtree(f"{path}/{file}")
            else:
                ops.remove(f"{path}/{file}")
        os.rmdir(path)
        ops.sync_directory(f"{root}/{layout.QUARANTINE}")
    finally:
        lock.release()


def restore(root: str, name: str, now_ms: int) -> list[str]:
    """Put a partition back as it was before a repair; return what was done.

    Everything that this replaces, records written since included, is set aside in turn. After a
    crash it can be done again. Raises OutOfRange where nothing of that name is set aside, or
    what belongs to it is no longer there (then nothing was changed); Unavailable while another
    process has the directory; OSError.
    """
    entry = _find(root, name)
    lock = DirectoryLock(root)
    try:
        return _Restoring(root, entry, now_ms).run()
    finally:
        lock.release()


class _Restoring:
    def __init__(self, root: str, entry: Entry, now_ms: int) -> None:
        self.ops = Ops()
        self.root = root
        self.entry = entry
        self.now_ms = now_ms
        self.path = f"{root}/{layout.directory_name(entry.key)}"
        self.aside = f"{root}/{layout.QUARANTINE}/{entry.name}"
        self.back = sorted(name for name in os.listdir(self.aside) if name != RECORD)

    def run(self) -> list[str]:
        if not os.path.isdir(self.path):
            raise OutOfRange(f"there is no log of {self.entry.key} in {self.root} any more")
        try:
            old: Manifest | None = read_manifest(self.ops, self.aside, self.entry.key)
        except (Corrupt, FileNotFoundError):
            old = None  # it was damaged or missing before the repair, and is again
        if old is not None:
            self._check(old)
        try:
            present: Manifest | None = read_manifest(self.ops, self.path, self.entry.key)
        except (Corrupt, FileNotFoundError):
            present = None
        aside = Aside(
            self.ops,
            self.root,
            self.entry.key,
            self.now_ms,
            present,
            brought=[name for name in self.back if not self._is_here(name)],
            reason=[f"{self.entry.name} was put back in its place"],
        )
        gone = [name for name in self._replaced(old) if self._is_here(name)]
        # Without a manifest the partition does not open, so nobody sees it half changed.
        if self._is_here(layout.MANIFEST):
            aside.move(layout.MANIFEST)
        for name in gone:
            aside.move(name)
        for name in sorted(self.back, key=lambda name: name == layout.MANIFEST):
            self._put_back(name)
        self.ops.sync_directory(self.path)
        self.ops.sync_directory(self.aside)
        self.ops.remove(f"{self.aside}/{RECORD}")
        os.rmdir(self.aside)
        self.ops.remove(f"{self.root}/{layout.CLEAN_MARKER}")
        done = [f"put back {name}" for name in self.back]
        if aside.path is not None:
            done.append(f"what was in their place is set aside as {os.path.basename(aside.path)}")
        return done

    def _put_back(self, name: str) -> None:
        source, target = f"{self.aside}/{name}", f"{self.path}/{name}"
        if os.path.isfile(source) and os.stat(source).st_nlink > 1:
            # A crash left it with two names; what is appended here must not be appended there.
            copy_file(self.ops, source, f"{target}.tmp")
            self.ops.rename(f"{target}.tmp", target)
            self.ops.unlink(source)
        else:
            self.ops.rename(source, target)

    def _replaced(self, old: Manifest | None) -> list[str]:
        """Name the files of the partition that have to make room."""
        brought = self._recorded("brought")
        names = [name for name in (*self.back, *brought) if name != layout.MANIFEST]
        if old is None:  # then every blob was set aside, and those that are here came after it
            here = [name for name in os.listdir(self.path) if name.endswith(".blob")]
            return list(dict.fromkeys([*names, *here]))
        kept = {entry.base for entry in old.sealed} | {old.active.base}
        # What was appended to an active segment that the repair left alone still follows it.
        active = f"{layout.stem(old.active.base)}.log"
        grew = active not in names and self._is_here(active)
        for base in segment_bases(self.path):
            if base not in kept and not (grew and base > old.active.base):
                names += [f"{layout.stem(base)}{suffix}" for suffix in layout.SUFFIXES]
        blobs = {layout.blob_name(number) for number, _, _ in old.blobs.values()}
        names += [
            name for name in os.listdir(self.path) if name.endswith(".blob") and name not in blobs
        ]
        return list(dict.fromkeys(names))

    def _check(self, old: Manifest) -> None:
        """Raise OutOfRange unless everything that the manifest names is there."""
        missing = self._recorded("missing")
        each: list[SealedEntry | ActiveEntry] = [*old.sealed, old.active]
        for entry in each:
            name = f"{layout.stem(entry.base)}.log"
            size = self._size(name)
            # An active segment without data may not have its file yet.
            enough = max(size, 0) >= entry.size if entry is old.active else size == entry.size
            if not enough and name not in missing:
                raise OutOfRange(
                    f"{self.entry.key} cannot be put back as it was: {self.path}/{name} has "
                    f"changed since (retention, compaction or DeleteRecords); nothing was done. "
                    f"Its files are in {self.aside}"
                )

    def _is_here(self, name: str) -> bool:
        return os.path.exists(f"{self.path}/{name}")

    def _recorded(self, what: str) -> list[str]:
        try:
            found: list[str] = _record(self.ops, self.aside)[what]
        except (Corrupt, FileNotFoundError):
            return []
        return found

    def _size(self, name: str) -> int:
        """Size of a file as it will be, -1 where it is missing."""
        for path in (self.aside, self.path):
            with suppress(FileNotFoundError):
                return os.stat(f"{path}/{name}").st_size
        return -1
