"""Leader epochs of a log: who may ask, and where each epoch ended (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.contracts.storage import EpochStart
from odradek.errors import ErrorCode, KafkaError

__all__ = ["check", "end_of", "epoch_of"]


def check(known: int, leader_epoch: int) -> None:
    """Hold the epoch that a request's sender knows, -1 for none, against the leader's.

    Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
    """
    if known < 0 or known == leader_epoch:
        return
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if known < leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the sender knows leader epoch {known}, this is {leader_epoch}",
    )


def end_of(
    epoch: int, entries: Iterable[EpochStart], leader_epoch: int, log_end_offset: int
) -> tuple[int, int]:
    """Return (epoch, end offset) of the largest epoch at or below `epoch`, (-1, -1) for none."""
    if epoch == leader_epoch:
        return epoch, log_end_offset
    if epoch > leader_epoch or epoch < 0:
        return -1, -1
    found = epoch  # as in Kafka, where nothing is known of it or of one before it
    for entry in entries:
        if entry.epoch > epoch:
            return found, entry.start_offset
        found = entry.epoch
    return found, log_end_offset  # the present epoch has no record yet


def epoch_of(offset: int, entries: Iterable[EpochStart]) -> int:
    """Leader epoch under which `offset` was written, or -1."""
    found = -1
    for entry in entries:
        if entry.start_offset > offset:
            break
        found = entry.epoch
    return found
