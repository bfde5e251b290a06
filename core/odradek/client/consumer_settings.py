"""The consumer's settings: defaults, units, and Kafka's names for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen, validators

from odradek.client.offsets import EARLIEST, LATEST
from odradek.client.settings import ReaderSettings, one_of, sent_positive
from odradek.group.assignors import ASSIGNORS

__all__ = ["ConsumerSettings"]


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)


_positive: Any = validators.gt(0)
_not_negative: Any = validators.ge(0)


@frozen(slots=True, kw_only=True)
class ConsumerSettings(ReaderSettings):
    """Settings of a consumer, besides those of what it fetches. Times are in seconds.

    * `group_protocol` (group.protocol): "classic", coordinated by a broker, or "decentralised",
      by the members themselves through a coordinator of Odradek's.
    * `assignors` (partition.assignment.strategy): the ways to share out partitions that this
      member can, the preferred one first; all members need one in common. Rebalances are
      cooperative if all of them are: cooperative-sticky alone. Java's members have range and
      cooperative-sticky by default, librdkafka's range and roundrobin.
    * `group_instance_id` (group.instance.id): makes the member static (KIP-345). It does not
      leave the group when it is closed, and gets the same partitions if it is back within the
      session timeout.
    * `session_timeout` (session.timeout.ms): a member that was silent for so long is dead.
    * `heartbeat_interval` (heartbeat.interval.ms): at most a third of it. It is also how long the
      others take to hear of a rebalance; hence 1 s where Kafka's clients have 3.
    * `rebalance_timeout` (max.poll.interval.ms, which limits nothing else here): how long the
      group waits for this member to join again, callbacks included.
    * `drain_timeout`: how long a rebalance waits until the record or batch in hand is finished,
      if its partition is to be given up. After that it is given up all the same, its offset is
      not committed, and whoever owns the partition next processes it again.
    * `auto_commit` (enable.auto.commit): commit by itself what is finished, that is: what was
      handed out before the record or batch that is in hand.
    * `auto_commit_interval` (auto.commit.interval.ms).
    * `auto_offset_reset` (auto.offset.reset): where to begin, "earliest" or "latest", in a
      partition without a committed offset, or if that offset is not in the log any more.
      "none" raises OFFSET_OUT_OF_RANGE instead.
    * `missing_timeout` holds for assigned partitions; for subscribed topics there is no limit.
    """

    group_protocol: str = field(default="classic", validator=one_of("classic", "decentralised"))
    assignors: tuple[str, ...] = field(
        default=("cooperative-sticky",),
        converter=_names,
        validator=[
            validators.min_len(1),
            validators.deep_iterable(one_of(*ASSIGNORS)),
        ],
    )
    group_instance_id: str | None = None
    session_timeout: float = field(default=45.0, validator=sent_positive)
    heartbeat_interval: float = field(default=1.0, validator=_positive)
    rebalance_timeout: float = field(default=300.0, validator=sent_positive)
    drain_timeout: float = field(default=5.0, validator=_not_negative)
    auto_commit: bool = True
    auto_commit_interval: float = field(default=5.0, validator=_positive)
    auto_offset_reset: str = field(default="latest", validator=one_of("earliest", "latest", "none"))

    def __attrs_post_init__(self) -> None:
        """Refuse combinations that cannot keep what they promise."""
        if self.heartbeat_interval > self.session_timeout / 3:
            raise ValueError(
                f"heartbeats each {self.heartbeat_interval:g} s leave no room for two that get "
                f"lost in a session timeout of {self.session_timeout:g} s: at most a third of it"
            )
        if self.drain_timeout > self.rebalance_timeout / 2:
            raise ValueError("drain_timeout is more than half of rebalance_timeout")

    @property
    def reset(self) -> int | None:
        """`auto_offset_reset` as a time to look up."""
        return {"earliest": EARLIEST, "latest": LATEST, "none": None}[self.auto_offset_reset]

    @property
    def cooperative(self) -> bool:
        """Whether what is owned stays owned while the group rebalances (KIP-429)."""
        return all(ASSIGNORS[name].cooperative for name in self.assignors)
