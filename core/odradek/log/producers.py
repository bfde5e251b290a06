"""Idempotent producers: which sequence numbers a partition has seen (KIP-98). Sans-IO.

A producer that has an id numbers its records, per partition, without gaps. The partition keeps
the last five batches of each producer, because a client may have five requests in flight
(KIP-192), and decides for each new batch:

| its first sequence number is ... | then |
|--|--|
| that of one of the five, and so is its last | a retry: answer with the offset of the original |
| the one after the last | append |
| anything, and nothing is known of the producer | append (its history was trimmed or expired) |
| 0, under a higher producer epoch | append: the producer started anew |
| anything else | OUT_OF_ORDER_SEQUENCE_NUMBER |

A lower producer epoch is fenced with INVALID_PRODUCER_EPOCH. Sequence numbers wrap from
2**31 - 1 to 0. The state is a function of the batches in the log, so it is rebuilt from a
snapshot and the batch headers after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.record import BatchMeta
from odradek.record.crc import crc32c

__all__ = ["Appended", "DamagedSnapshot", "ProducerState", "Producers"]

BATCHES_KEPT = 5
SEQUENCE_WRAP = 2**31

_HEAD = struct.Struct(">HxxIqI")  # version, CRC of all that follows it, offset, number of producers
_PRODUCER = struct.Struct(">qhqB")  # id, epoch, last timestamp, number of batches
_BATCH = struct.Struct(">iiqqq")  # first and last sequence, base and last offset, timestamp
_CRC_COVERS_FROM = 8
_VERSION = 1


class DamagedSnapshot(OdradekError):
    """A producer snapshot fails its checks; it is a cache: rebuild it from the log."""


class Appended(NamedTuple):
    """A batch in the log, as a producer's retry needs to be answered."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerState:
    """What a partition knows of one producer id: its epoch and its last batches, oldest first."""

    __slots__ = ("batches", "epoch", "last_timestamp")

    def __init__(self, epoch: int, last_timestamp: int, batches: list[Appended]) -> None:
        self.epoch = epoch
        self.last_timestamp = last_timestamp
        self.batches = batches


class Producers:
    """The producers of one partition.

    `check` before an append, `update` after it; both cost a dictionary look-up and a comparison
    for the usual batch. Bounded: of more than `limit` producers the half that wrote least
    recently, by offset, is forgotten. Not by time, as in Kafka (producer.id.expiration.ms): the
    only times here are those that clients put into their batches, and a producer that loads last
    year's data would be forgotten at once. With the default the state takes at most about 10 MB,
    and its snapshot 3 MB.
    """

    __slots__ = ("_limit", "_states")

    def __init__(self, limit: int = 16_384) -> None:
        self._states: dict[int, ProducerState] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """Return what is known of a producer, or None."""
        return self._states.get(producer_id)

    def check(self, meta: BatchMeta) -> Appended | None:
        """Decide about a batch that a client sent: None to append it, or the original of a retry.

        Raises KafkaError with INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        state = self._states.get(meta.producer_id)
        if state is None:
            return None
        first = meta.base_sequence
        epoch = meta.producer_epoch
        if epoch == state.epoch and state.batches:
            last = state.batches[-1]
            if first == (last.last_sequence + 1) % SEQUENCE_WRAP:
                return None
            last_sequence = (first + meta.record_count - 1) % SEQUENCE_WRAP
            for seen in state.batches:
                if seen.first_sequence == first and seen.last_sequence == last_sequence:
                    return seen
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {meta.producer_id}: got sequence {first}, expected "
                f"{(last.last_sequence + 1) % SEQUENCE_WRAP}",
            )
        if epoch < state.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {meta.producer_id}: epoch {epoch} is older than {state.epoch}",
            )
        if epoch > state.epoch and first != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {meta.producer_id}: a new epoch starts at sequence 0, got {first}",
            )
        return None

    def update(self, meta: BatchMeta) -> None:
        """Take note of a batch that is in the log (appended just now, or read while opening).

        Compaction may have taken records out of it, or all of them: its offsets tell how many
        sequence numbers it had.
        """
        state = self._states.get(meta.producer_id)
        if state is None or state.epoch != meta.producer_epoch:
            state = ProducerState(meta.producer_epoch, meta.max_timestamp, [])
            self._states[meta.producer_id] = state
            if len(self._states) > self._limit:
                self._forget_half()
        if meta.max_timestamp > state.last_timestamp:
            state.last_timestamp = meta.max_timestamp
        if meta.control:
            return  # a transaction's marker has no sequence number
        batches = state.batches
        batches.append(
            Appended(
                meta.base_sequence,
                (meta.base_sequence + meta.last_offset - meta.base_offset) % SEQUENCE_WRAP,
                meta.base_offset,
                meta.last_offset,
                meta.max_timestamp,
            )
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]

    def _forget_half(self) -> None:
        def last_offset(item: tuple[int, ProducerState]) -> int:
            batches = item[1].batches
            return batches[-1].last_offset if batches else 2**63  # new: it is about to write

        kept = sorted(self._states.items(), key=last_offset)[len(self._states) // 2 :]
        self._states = dict(kept)

    def truncate(self, end_offset: int) -> None:
        """Forget batches that reach to `end_offset` or beyond, and producers left with none."""
        for pid, state in list(self._states.items()):
            state.batches = [b for b in state.batches if b.last_offset < end_offset]
            if not state.batches:
                del self._states[pid]

    def last_offsets(self) -> frozenset[int]:
        """The last offset of each producer's newest batch: the batches that must stay in the log,
        if only empty, so that its state can be read from there."""
        return frozenset(s.batches[-1].last_offset for s in self._states.values() if s.batches)

    def active(self) -> Iterable[tuple[int, ProducerState]]:
        """Every known producer, for DescribeProducers and the tools."""
        return self._states.items()

    def snapshot(self, offset: int) -> bytes:
        """Encode the state as of `offset` (every batch below it is included)."""
        body = bytearray(_HEAD.pack(_VERSION, 0, offset, len(self._states)))
        for pid, state in self._states.items():
            body += _PRODUCER.pack(pid, state.epoch, state.last_timestamp, len(state.batches))
            for batch in state.batches:
                body += _BATCH.pack(*batch)
        struct.pack_into(">I", body, 4, crc32c(memoryview(body)[_CRC_COVERS_FROM:]))
        return bytes(body)

    def restore(self, data: bytes) -> int:
        """Replace the state by a snapshot's; return its offset. Raises DamagedSnapshot."""
        if len(data) < _HEAD.size:
            raise DamagedSnapshot("producer snapshot is cut short")
        version, crc, offset, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise DamagedSnapshot(f"producer snapshot has unknown version {version}")
        if crc32c(memoryview(data)[_CRC_COVERS_FROM:]) != crc:
            raise DamagedSnapshot("producer snapshot fails its CRC")
        states: dict[int, ProducerState] = {}
        at = _HEAD.size
        for _ in range(count):
            pid, epoch, last_timestamp, kept = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            batches = []
            for _ in range(kept):
                batches.append(Appended(*_BATCH.unpack_from(data, at)))
                at += _BATCH.size
            states[pid] = ProducerState(epoch, last_timestamp, batches)
        self._states = states
        return int(offset)
