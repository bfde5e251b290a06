"""A member of a decentralised group: one life under one session after the other."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import trio
from attrs import frozen

from odradek.client.backoff import Backoff
from odradek.client.cluster import Cluster
from odradek.client.decentralised.access import read
from odradek.client.decentralised.holdings import Claim
from odradek.client.decentralised.keys import GroupKeys, offset_of
from odradek.client.decentralised.life import Life
from odradek.client.membership import (
    CommitFailed,
    CommittedOffset,
    MembershipState,
    MembershipStatus,
    Subscriber,
)
from odradek.client.metadata import TopicPartition
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import (
    Coordinator,
    CoordinatorError,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
)
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.types import PartitionKey

if TYPE_CHECKING:
    from odradek.client.consumer_settings import ConsumerSettings

__all__ = ["DecentralisedMembership", "open_membership"]

logger = logging.getLogger(__name__)

DEBOUNCE_S = 0.02
"""How long changes are gathered before the member acts on them."""
LEAVE_S = 5.0
"""How long leaving may take. Unless the coordinator is away, it takes one write."""
_NAMED = 10
"""Partitions named in the message of an error."""
MAX_METADATA = 4096
"""Bytes of an offset's metadata: the default of Kafka's offset.metadata.max.bytes."""


@asynccontextmanager
async def open_membership(
    cluster: Cluster,
    coordinator: Coordinator,
    group: str,
    settings: ConsumerSettings,
    *,
    member_id: str | None = None,
    debounce: float = DEBOUNCE_S,
) -> AsyncIterator[DecentralisedMembership]:
    """Make a member of `group`, and own its session: leaving the context ends it, if need be.

    `member_id` is unique in the group; left out, one is made of the settings' `group_instance_id`,
    or the client's id, and a random UUID. Members are ordered by it. `debounce` is in seconds.

    Raises KafkaError INVALID_GROUP_ID for an empty name.
    """
    if not group:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the name of a group is not empty")
    name = settings.group_instance_id or cluster.settings.client_id
    async with open_tasks() as tasks:
        yield DecentralisedMembership(
            cluster,
            coordinator,
            GroupKeys(group),
            settings.session_timeout,
            member_id or f"{name}-{uuid4()}",
            debounce,
            tasks,
        )


@frozen(slots=True, eq=False)
class _OpenSession:
    """A session, and its end: it is left once `leave` is set, and then `left` is."""

    session: Session
    leave: trio.Event
    left: trio.Event


class DecentralisedMembership:
    """See `odradek.client.membership.Membership`, and `open_membership`, which makes it.

    `status.generation` counts this member's own rebalances.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        keys: GroupKeys,
        session_timeout: float,
        member_id: str,
        debounce: float,
        tasks: trio.Nursery,
    ) -> None:
        self.status = MembershipStatus(member_id=member_id)
        self._cluster = cluster
        self._coordinator = coordinator
        self._keys = keys
        self._session_timeout = session_timeout
        self._debounce = debounce
        self._tasks = tasks
        self._opened: _OpenSession | None = None
        self._life: Life | None = None  # the present one; the last one, between two
        self._leaving = False

    @property
    def alive(self) -> bool:
        """Whether records may be handed out: what is owned cannot be another's yet.

        False from the moment on when, by this process's clock, the session may have ended; ask
        right before handing out.
        """
        return self._life is not None and self._life.session.alive

    # --- joining and leaving

    async def run(
        self,
        subscriber: Subscriber,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Membership.run`.

        Raises CoordinatorClosed, Denied, ValueError when the subscription has more topics than a
        registration has room for, OdradekError for keys of the group that cannot be understood,
        and what the subscriber raises.
        """
        task_status.started()
        backoff = self._cluster.backoff()
        try:
            while not self._leaving:
                self.status.state = MembershipState.JOINING
                try:
                    await self._live(subscriber, backoff)
                except Unavailable as error:
                    self._note(error)
                if not self._leaving:
                    await self._lose()
                await self._end_session()
                await trio.sleep(backoff.next())
            self.status.state = MembershipState.LEFT
        except Exception as error:
            if isinstance(error, OdradekError):
                self.status.last_error = error
            self.status.state = MembershipState.FAILED
            await self._lose()
            await self._end_session()
            raise

    async def _live(self, subscriber: Subscriber, backoff: Backoff) -> None:
        """Be a member under a new session, until it ends. Raises Unavailable, and what is fatal."""
        self._opened = opened = await self._tasks.start(self._open_session)
        if self._leaving:
            return
        self._life = Life(
            self._cluster,
            self._coordinator,
            self._keys,
            opened.session,
            subscriber,
            self.status,
            self._debounce,
        )
        await self._life.run(backoff)
        if not self._leaving:
            self._note(SessionLost("the session with the coordinator has ended: joining again"))

    async def leave(self) -> None:
        """See `Membership.leave`: the session is ended, and with it all that it owns; and `run`."""
        self._leaving = True
        await self._end_session()
        self.status.state = MembershipState.LEFT

    def subscription_changed(self) -> None:
        """See `Membership.subscription_changed`."""
        if self._life is not None:
            self._life.subscription_changed()

    async def _open_session(self, task_status: trio.TaskStatus[_OpenSession]) -> None:
        left = trio.Event()
        try:
            async with self._coordinator.session(self._session_timeout) as session:
                opened = _OpenSession(session, trio.Event(), left)
                task_status.started(opened)
                await opened.leave.wait()
        finally:
            left.set()

    async def _end_session(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.leave.set()
            with trio.move_on_after(LEAVE_S):
                await opened.left.wait()

    async def _lose(self) -> None:
        """Tell the subscriber that it owns nothing any more."""
        if self._life is not None and self._life.given:
            await self._life.lose([*self._life.given])

    # --- offsets

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """See `Membership.commit`.

        Many offsets are several transactions, each of which is applied whole or not at all. All
        are tried: an error names the partitions whose offsets are not stored, those of the others
        are. CommitFailed comes before other errors. A lower offset than the last one is stored
        too, since only an owner that went back on purpose has one.
        """
        for partition, offset in offsets.items():
            if len(offset.metadata.encode("utf-8", "surrogatepass")) > MAX_METADATA:
                raise KafkaError(
                    ErrorCode.OFFSET_METADATA_TOO_LARGE,
                    f"the metadata of partition {partition} has more than {MAX_METADATA} bytes",
                )
        life = self._life
        given = {} if life is None else life.given
        names = {given[each]: each for each in offsets if each in given}
        errors: dict[TopicPartition, OdradekError] = {
            each: CommitFailed(f"partition {each} is not this member's")
            for each in offsets
            if each not in given
        }
        if life is not None and names:
            deadline = trio.current_time() + self._cluster.settings.request_timeout
            wanted = {key: offsets[name] for key, name in names.items()}
            failed = await life.holdings.commit(wanted, deadline)
            errors.update((names[key], error) for key, error in failed.items())
            life.suspect([key for key, error in failed.items() if isinstance(error, CommitFailed)])
        if errors:
            raise _failure(errors, len(offsets))

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """See `Membership.committed`. Those of partitions owned are known without asking."""

        async def look() -> dict[TopicPartition, CommittedOffset]:
            found: dict[TopicPartition, CommittedOffset] = {}
            asked: dict[PartitionKey, TopicPartition] = {}
            for each in partitions:
                claim = self._claim_of(each)
                if claim is not None:
                    if claim.stored.committed is not None:
                        found[each] = claim.stored.committed
                else:
                    topic = await self._cluster.topic(each.topic, timeout=0)
                    asked[PartitionKey(topic.topic_id, each.partition)] = each
            try:
                entries = await read(self._coordinator, self._keys.offsets, asked)
            except CoordinatorError as error:
                raise _kafka_error(error, f"offsets of group {self._keys.group!r}") from error
            for key, entry in entries.items():
                committed = offset_of(entry).committed
                if committed is not None:
                    found[asked[key]] = committed
            return found

        return await self._cluster.retrying(look, timeout=self._cluster.settings.request_timeout)

    def _claim_of(self, partition: TopicPartition) -> Claim | None:
        life = self._life
        if life is None or not life.session.alive or partition not in life.given:
            return None
        return life.holdings.held.get(life.given[partition])

    def _note(self, error: OdradekError) -> None:
        self.status.last_error = error
        logger.warning("member %s of group %r: %s", self.status.member_id, self._keys.group, error)


def _failure(errors: Mapping[TopicPartition, OdradekError], offsets: int) -> OdradekError:
    """Return what a commit raises."""
    first = min(errors.values(), key=lambda error: not isinstance(error, CommitFailed))
    names = ", ".join(map(str, sorted(errors)[:_NAMED]))
    more = f" and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
    what = f"{len(errors)} of {offsets} offsets are not stored ({names}{more})"
    if isinstance(first, CoordinatorError):
        return _kafka_error(first, what)
    return CommitFailed(f"{what}: {first}")


def _kafka_error(error: CoordinatorError, what: str) -> KafkaError:
    """Return the coordinator's error as one that consumers know."""
    if isinstance(error, Unavailable):
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif isinstance(error, Uncertain):
        code = ErrorCode.REQUEST_TIMED_OUT
    else:
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    return KafkaError(code, f"{what}: {error}")
