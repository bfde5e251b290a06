"""How a consumer is doing: a snapshot, cheap enough to be asked for often."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from odradek.client.metadata import TopicPartition
from odradek.errors import OdradekError

__all__ = ["ConsumerHealth", "Lag"]


@frozen(slots=True)
class Lag:
    """Records that are there and were not handed out yet, as the brokers said last.

    `partitions`: by partition, None while nothing was fetched from it.
    """

    partitions: Mapping[TopicPartition, int | None]

    @property
    def total(self) -> int:
        """The sum over the partitions whose lag is known."""
        return sum(lag or 0 for lag in self.partitions.values())

    @property
    def complete(self) -> bool:
        """Whether the lag of every partition is known."""
        return None not in self.partitions.values()


@frozen(slots=True, kw_only=True)
class ConsumerHealth:
    """How a consumer is doing. Times are in seconds.

    * `connected`: whether any broker is.
    * `state`: of its membership ("joining", "stable", "rebalancing", "failed", "left"); "assigned"
      for partitions assigned by hand, "idle" without any.
    * `member_id`, `generation`: of its membership; "" and -1 without one.
    * `assignment`: the partitions that it reads.
    * `lag`: total; None while that of a partition is not known.
    * `buffered_bytes`: fetched and not handed out yet.
    * `busy`: for how long the oldest record or batch in hand has been processed; 0 when nothing
      is. A stuck application shows here: nothing else tells it, since a member stays in its group
      for as long as its process runs.
    * `last_error`: of whatever failed last and has not succeeded since, retried or not.
    """

    connected: bool
    state: str
    member_id: str
    generation: int
    assignment: frozenset[TopicPartition]
    lag: int | None
    buffered_bytes: int
    busy: float
    last_error: OdradekError | None
