"""Names and formats of everything in a storage directory but the segments themselves.

A file that must not be lost or misread (the manifest, the clean-shutdown marker, blobs) carries a
CRC-32C and is replaced as a whole. docs/reference/storage.md shows the whole layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

from attrs import define, field, fields

from odradek.contracts.storage import Corrupt, EpochStart, PartitionKey, crc32c

__all__ = [
    "BALLAST",
    "CLEAN_MARKER",
    "DELETED_SUFFIX",
    "EPOCH_CHECKPOINT",
    "LOCK",
    "MANIFEST",
    "QUARANTINE",
    "SUFFIXES",
    "ActiveEntry",
    "Manifest",
    "NewerFormat",
    "SealedEntry",
    "blob_name",
    "deleted_name",
    "directory_key",
    "directory_name",
    "epoch_checkpoint",
    "segment_base",
    "stem",
    "unwrap",
    "wrap",
]

LOCK = ".lock"
CLEAN_MARKER = "clean-shutdown"
BALLAST = "ballast"
MANIFEST = "manifest"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
QUARANTINE = "quarantine"
DELETED_SUFFIX = ".deleted"
SUFFIXES = (".log", ".index", ".timeindex", ".rows")
"""The files of one segment; the first is the data, the others can be made from it."""

_DIRECTORY = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(0|[1-9][0-9]{0,9})")
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_HEADER = re.compile(rb"odradek (\S+) ([0-9]+) crc32c ([0-9a-f]{8})\n")
_FORMAT = 1

MAX_OFFSET = 2**63 - 1
"""Offsets are signed on the wire: a file that is named by a higher one is no segment."""

ROWS_AT_ONCE = 256
"""Segments encoded in one go: about 0.5 ms."""


class NewerFormat(Corrupt):
    """A file of a format that only a newer version knows: what is in it must not be guessed."""


def directory_name(key: PartitionKey) -> str:
    """Name of a partition's directory: nothing in it came from a client."""
    return f"{key.topic_id}-{key.partition}"


def directory_key(name: str) -> PartitionKey | None:
    """Return the partition whose directory has this name, if any."""
    found = _DIRECTORY.fullmatch(name)
    return PartitionKey(UUID(found[1]), int(found[2])) if found else None


def stem(base_offset: int) -> str:
    """Name of a segment's files without the suffix, as Kafka writes it."""
    return f"{base_offset:020d}"


def segment_base(name: str) -> int | None:
    """Return the base offset of the segment whose data file has this name, if any."""
    found = _SEGMENT.fullmatch(name)
    base = int(found[1]) if found else MAX_OFFSET + 1
    return base if base <= MAX_OFFSET else None


def blob_name(number: int) -> str:
    """Name of the file that holds a blob."""
    return f"{number}.blob"


def deleted_name(base_offset: int, segment_id: int) -> str:
    """Name under which a removed segment's data lingers: no two segments share an id."""
    return f"{stem(base_offset)}{SUFFIXES[0]}.{segment_id}{DELETED_SUFFIX}"


def wrap(kind: str, body: bytes) -> bytes:
    """Put a line before `body` that says what it is and has its CRC."""
    return f"odradek {kind} {_FORMAT} crc32c {crc32c(body):08x}\n".encode() + body


def unwrap(kind: str, data: bytes, path: str) -> bytes:
    """Return the body of what `wrap` made. Raises Corrupt, naming `path`."""
    found = _HEADER.match(data)
    if found is None or found[1] != kind.encode():
        raise Corrupt(f"{path} is not a {kind} file, or its first line is damaged")
    if int(found[2]) > _FORMAT:
        raise NewerFormat(
            f"{path} has format {int(found[2])}, and this version reads format {_FORMAT}: use the "
            "version that wrote it"
        )
    if int(found[2]) < _FORMAT:
        raise Corrupt(f"{path} has format {int(found[2])}, which there never was: it is damaged")
    body = data[found.end() :]
    if crc32c(body) != int(found[3], 16):
        raise Corrupt(f"{path} fails its CRC: it is damaged")
    return body


def epoch_checkpoint(epochs: Sequence[EpochStart]) -> bytes:
    """Kafka's leader-epoch-checkpoint (`LeaderEpochCheckpointFile.java`): version, count, pairs."""
    lines: Iterable[str] = (f"{entry.epoch} {entry.start_offset}\n" for entry in epochs)
    return f"0\n{len(epochs)}\n{''.join(lines)}".encode()


@define
class SealedEntry:
    """A sealed segment in the manifest, durable as a whole; `rows`, `crc`: of its `.rows` file."""

    id: int
    base: int
    end: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    created_ms: int
    rows: int
    crc: int


@define
class ActiveEntry:
    """The segment that was active when the manifest was written.

    The recovery point: `size` bytes, up to offset `end`, are durable and were checked; `index` is
    the index builder's state there.
    """

    id: int
    base: int
    end: int
    size: int
    created_ms: int
    index: dict[str, int]


@define
class Manifest:
    """What a partition is made of, as of the last edit, roll, recovery point or close.

    Segments that were rolled later are not in it: their base offsets lie above the active one's,
    and their ids are `2 * next_id` and so on. `swaps`: built segments (ids) whose files have yet
    to take their names; `removed`: base offsets whose files have yet to go; `truncate_to`: a
    truncation that may be unfinished, of everything if `restart`. Opening finishes all three.
    `blobs`: name -> file number, size, CRC.
    """

    key: str
    log_start: int = 0
    next_id: int = 1
    next_file: int = 0
    sealed: list[SealedEntry] = field(factory=list)
    active: ActiveEntry = field(factory=lambda: ActiveEntry(0, 0, 0, 0, 0, {}))
    epochs: list[EpochStart] = field(factory=list)
    blobs: dict[str, tuple[int, int, int]] = field(factory=dict)
    swaps: dict[int, int] = field(factory=dict)
    removed: list[int] = field(factory=list)
    truncate_to: int | None = None
    restart: bool = False

    def encode(self) -> bytes:
        """Return the file's bytes: a line with the CRC, then JSON that a person can read."""
        body: dict[str, Any] = {
            "key": self.key,
            "log_start": self.log_start,
            "next_id": self.next_id,
            "next_file": self.next_file,
            "active": _fields(self.active),
            "epochs": self.epochs,
            "blobs": self.blobs,
            "swaps": list(self.swaps.items()),
            "removed": self.removed,
            "truncate_to": self.truncate_to,
            "restart": self.restart,
        }
        text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in body.items())
        sealed = ", ".join(_rows(self.sealed))
        return wrap("manifest", f'{{{text},\n"sealed": [{sealed}]}}\n'.encode())

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Read what `encode` wrote. Raises Corrupt, naming `path`; NewerFormat."""
        body = unwrap("manifest", data, path)
        try:
            return cls._of(json.loads(body))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(f"{path} is no manifest, though its CRC is right: {error!r}") from error

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Manifest:
        return cls(
            key=body["key"],
            log_start=body["log_start"],
            next_id=body["next_id"],
            next_file=body["next_file"],
            active=ActiveEntry(**body["active"]),
            epochs=[EpochStart(*entry) for entry in body["epochs"]],
            blobs={name: tuple(entry) for name, entry in body["blobs"].items()},
            swaps=dict(body["swaps"]),
            removed=body["removed"],
            truncate_to=body["truncate_to"],
            restart=body["restart"],
            sealed=[SealedEntry(*entry) for entry in body["sealed"]],
        )


_SEALED = attrgetter(*(each.name for each in fields(SealedEntry)))


def _rows(entries: Sequence[SealedEntry]) -> Iterator[str]:
    """Yield the entries as JSON, some hundred at a time.

    `json.dumps` keeps the interpreter to itself until it returns: 20 ms for 10,000 segments, for
    which everybody would wait, though it runs in a worker.
    """
    for start in range(0, len(entries), ROWS_AT_ONCE):
        part = entries[start : start + ROWS_AT_ONCE]
        yield json.dumps(list(map(_SEALED, part)))[1:-1]


def _fields(entry: ActiveEntry) -> dict[str, Any]:
    return {each.name: getattr(entry, each.name) for each in fields(ActiveEntry)}
