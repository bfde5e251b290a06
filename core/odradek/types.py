"""Values that several layers share, and that mean the same in all of them."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from attrs import frozen

__all__ = ["Buffer", "PartitionKey"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview is always one-dimensional with items of one byte."""


@frozen(slots=True, order=True)
class PartitionKey:
    """A partition for ever: `topic_id` is never reused, unlike a topic's name (KIP-516)."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"
