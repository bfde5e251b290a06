"""A checksum of a partition's records, which the publisher and the checker work out apart."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

__all__ = ["PartitionSum"]

_sizes = Struct(">ii").pack


class PartitionSum:
    """Counts records and sums up their keys and values, in order: SHA-256 over all of it."""

    __slots__ = ("_hash", "bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self._hash = sha256()

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record of the partition."""
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        self._hash.update(_sizes(key_size, value_size))
        self._hash.update(key or b"")
        self._hash.update(value or b"")
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")

    def __str__(self) -> str:
        return f"{self.records}:{self._hash.hexdigest()}"
