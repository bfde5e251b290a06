"""What a consumer and its membership in a group promise each other.

A membership decides which partitions its consumer owns, and keeps the group's offsets. There are
two: of groups that a broker coordinates (`member_classic`), and of groups that need none
(`decentralised`). Neither knows how records are fetched; a consumer knows of no protocol.

`Membership.run` calls the `Subscriber`; never the other way round while it waits. So the calls
of one membership come one after the other, and each is over before the next one begins:

    revoked | lost -> ... -> assigned -> ... -> revoked | lost

The promises are numbered (M1, M2, ...) and cited by the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple, Protocol

import trio
from attrs import define

from odradek.client.errors import ClientError
from odradek.client.metadata import TopicPartition
from odradek.errors import OdradekError

__all__ = [
    "CommitFailed",
    "CommittedOffset",
    "Membership",
    "MembershipState",
    "MembershipStatus",
    "Subscriber",
]


class CommittedOffset(NamedTuple):
    """An offset of a group: the next record to process, never the last one processed.

    `leader_epoch` is that of the record before it, -1 unknown (KIP-320). `metadata` is text of the
    application's own, at most 4096 bytes where the broker's settings are Kafka's defaults.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitFailed(ClientError):
    """Offsets were not committed: their partitions are not this member's (any more).

    Somebody else owns them, or will, and starts from the offsets committed before: the records
    processed since then are processed again. Nothing is to be done but to stop working on them.
    """


class MembershipState(Enum):
    """How far a member is."""

    JOINING = "joining"
    """It owns nothing yet, or nothing any more."""
    STABLE = "stable"
    """It knows what it owns, and the group agrees."""
    REBALANCING = "rebalancing"
    """The group is sharing out its partitions anew; what is owned may still be processed."""
    FAILED = "failed"
    """`run` has raised. `last_error` says what."""
    LEFT = "left"
    """It left the group, or was never started."""


@define(slots=True)
class MembershipStatus:
    """Where a membership is; for reading at any time, changed by the membership alone.

    `generation`: of the group as far as the member knows, -1 before it joined; grows with each
    rebalance. `last_error`: the latest one, retried or not; None again once the group is stable.
    """

    state: MembershipState = MembershipState.LEFT
    member_id: str = ""
    generation: int = -1
    last_error: OdradekError | None = None


class Subscriber(Protocol):
    """A consumer as its membership sees it. Only for the task that is in `Membership.run`."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to now; a pattern is resolved already. A topic may not exist."""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What was assigned, and neither revoked nor lost since."""

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Give up partitions in order, while this member is still their owner.

        M1: no record of them is handed out from this call on. M2: it waits, at most
        `drain_timeout` seconds, until the record or batch in hand is finished. M3: then finished
        offsets are committed, if the consumer commits by itself, by `Membership.commit`, and the
        application's callback has run. M4: when it returns, `owned` is without them.
        So it may take as long as the application's callback does; the membership keeps itself
        alive meanwhile. An empty call does nothing. Raises what the callback raises.
        """

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions over, in addition to those owned.

        M5: `owned` has them from the beginning of the call on, and the application's callback
        runs, without partitions too: it is told of every rebalance. M6: records begin at the
        committed offset (`Membership.committed`), or where the callback sought to, or else after
        `auto_offset_reset`. Raises what the callback raises, and what is fatal of `committed`.
        """

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Give up partitions that others may own already.

        M7: as `revoked`, but nothing is waited for and nothing committed; `on_lost` is called.
        """


class Membership(Protocol):
    """A member of one group, for one run: made, run once, left.

    M8: `status` is true whenever it is read.
    """

    status: MembershipStatus

    @property
    def alive(self) -> bool:
        """Whether what is owned may be handed out now; a clock read at most.

        It is asked for each batch. False: nothing is handed out until the next call of the
        subscriber, `lost`. For memberships that end by the clock: a task that watches the clock
        is always a little late.
        """

    async def run(
        self,
        subscriber: Subscriber,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join, keep alive, rebalance; until cancelled. Started before it has joined.

        M9: a partition is owned by at most one member of the group that can still commit it.
        M10: being alive does not depend on how the application processes records, nor on how long
        the subscriber's calls take. M11: brokers or coordinators that cannot be reached, have
        moved or restart, are waited for, without end and with back-off; meanwhile what is owned
        stays owned for as long as nobody says otherwise.
        Cancelled: nothing more is said to the group; `leave` does that.

        Raises what waiting cannot heal (M12): KafkaError FENCED_INSTANCE_ID,
        INCONSISTENT_GROUP_PROTOCOL, GROUP_AUTHORIZATION_FAILED and the like, and what the
        subscriber's calls raise. Nothing is owned then: `lost` was called if anything was.
        """

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store offsets of the group; they are durable when it returns.

        For any task, also within the subscriber's calls, and while the group rebalances. M13: an
        offset of a partition that this member does not own is not stored by it. M14: what may
        pass is retried within the request timeout. Cancelled: they may be stored or not.

        Raises CommitFailed, KafkaError (OFFSET_METADATA_TOO_LARGE, ...), NotReachable,
        Disconnected (then they may be stored).
        """

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the group's offsets of these partitions, without those that have none.

        M15: it sees every commit that returned before, by whomever. What may pass is retried
        within the request timeout. Raises KafkaError, NotReachable, Disconnected.
        """

    async def leave(self) -> None:
        """Tell the group, so that others need not wait for a timeout.

        Called once, when nothing is owned any more, by another task than `run`'s: while that
        still runs, and is cancelled afterwards, or after it has ended. Shielded from
        cancellation: it ends within seconds whatever happens, and raises nothing. A member that
        is to come back under the same `group_instance_id` says nothing (KIP-345).
        """

    def subscription_changed(self) -> None:
        """Be told that `Subscriber.topics` changed: the group must share out anew."""
