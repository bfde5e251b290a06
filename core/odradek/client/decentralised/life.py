"""A member's life under one session: what it sees, and what it does about it.

One task does everything that has an order: it registers, gives up what is not its own any more,
claims what is, and calls the subscriber. Others only watch, and wake it: the members' directory,
the owners', the session's clock, the topics. A burst of changes, such as a hundred members that
join, is one rebalance: the task waits a moment after the first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from itertools import count
from typing import TypeVar

import trio

from odradek.client.backoff import Backoff
from odradek.client.cluster import Cluster
from odradek.client.decentralised.holdings import Holdings
from odradek.client.decentralised.keys import GroupKeys, Registration, SubscribedTopic
from odradek.client.decentralised.planning import Plan, plan, range_of
from odradek.client.decentralised.view import GroupView
from odradek.client.errors import ClientError
from odradek.client.membership import MembershipState, MembershipStatus, Subscriber
from odradek.client.metadata import TopicPartition
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import (
    Change,
    Coordinator,
    CoordinatorError,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
    Watch,
)
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = ["CoordinatorClosed", "Life"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GATHERINGS = 10
"""How many times the debounce interval the changes of a burst are gathered at the most."""
MISSING_S = 5.0
"""How often topics are looked for that do not exist yet."""
CLOCK_S = 0.5
"""How often, at least, it looks whether its session is alive, which no event tells (C18)."""


class CoordinatorClosed(ClientError):
    """The coordinator was closed by its owner, or is broken for good: groups need it open."""


class _Away(Exception):
    """The coordinator did not do what it was asked to, and may later."""


class _Over(Exception):
    """The session has ended."""


class _Step(Enum):
    """What follows a step of the rebalance."""

    SETTLED = "nothing, until something changes"
    AGAIN = "another one"
    WAIT = "another one, when a watch tells"
    RETRY = "another one, after a while"


class Life:
    """See the module; `run` is its one way through.

    `given` is what the subscriber owns, `holdings` what the session does. The two differ for
    moments only: a partition is held before it is given, and given up before it is released.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        keys: GroupKeys,
        session: Session,
        subscriber: Subscriber,
        status: MembershipStatus,
        debounce: float,
    ) -> None:
        self.session = session
        # No session has had this id before, nor will have: so nobody used these tokens.
        tokens = (f"{session.id}#{number}" for number in count(1))
        self.holdings = Holdings(
            coordinator, keys, status.member_id, session, cluster.backoff, tokens
        )
        self.given: dict[TopicPartition, PartitionKey] = {}
        self._cluster = cluster
        self._coordinator = coordinator
        self._keys = keys
        self._subscriber = subscriber
        self._status = status
        self._debounce = debounce
        self._broken: CoordinatorError | None = None
        self._announced: Registration | None = None
        self._untold = True  # of a rebalance: the subscriber is to be called, even with nothing
        self._awaited: frozenset[PartitionKey] = frozenset()  # others are to release them
        self._suspect: set[PartitionKey] = set()  # perhaps held no longer
        self._mine: dict[str, PartitionKey] = {}  # assigned or held, by the owner's key
        self._stirred = 0  # how often members came, went or changed
        self._changed = trio.Event()
        self._look = trio.Event()
        self._calling: trio.CancelScope | None = None

    async def run(self, backoff: Backoff) -> None:
        """Be a member until the session is over. `backoff` is reset when the group has settled.

        Raises Unavailable before anything is held; afterwards that is waited out. Raises what is
        fatal: see `DecentralisedMembership.run`.
        """
        own = self._keys.member(self.session.id)
        async with (
            self._coordinator.watch(self._keys.members) as members,
            self._coordinator.watch(self._keys.owners) as owners,
            open_tasks() as tasks,
        ):
            view = GroupView(self._keys, self.session.id, members.snapshot, owners.snapshot)

            def member_changed(change: Change) -> None:
                if change.key == own and change.entry is None:
                    self._announced = None  # deleted by hand: announce it again
                if view.member_changed(change):
                    self._stirred += 1
                    self._changed.set()

            def owner_changed(change: Change) -> None:
                view.owner_changed(change)
                partition = self._mine.get(change.key)
                mine = view.is_mine(change.key)
                held = partition in self.holdings.held
                if held and partition is not None and not mine:
                    self._suspect.add(partition)
                elif held == mine and partition not in self._awaited:
                    return
                self._changed.set()

            tasks.start_soon(self._follow, members, member_changed)
            tasks.start_soon(self._follow, owners, owner_changed)
            tasks.start_soon(self._mind_session)
            await tasks.start(self._follow_topics)
            await self._rebalance(view, backoff)

    def subscription_changed(self) -> None:
        """The subscriber's topics are others now."""
        self._look.set()
        self._changed.set()

    def suspect(self, partitions: Collection[PartitionKey]) -> None:
        """These may be held no longer: a commit said so."""
        self._suspect.update(partitions)
        self._changed.set()

    async def lose(self, partitions: Collection[TopicPartition]) -> None:
        """Tell the subscriber that these are not its own any more."""
        for each in partitions:
            del self.given[each]
        await self._subscriber.lost(partitions)

    # --- what wakes it

    async def _follow(self, watch: Watch, changed: Callable[[Change], None]) -> None:
        try:
            async for change in watch:
                changed(change)
        except CoordinatorError as error:  # closed, broken for good, or no right to read any more
            self._broken = error
            self._changed.set()

    async def _mind_session(self) -> None:
        interval = min(CLOCK_S, self.session.ttl / 10)
        while self.session.alive:
            with trio.move_on_after(interval):
                await self.session.lost.wait()
        if self._calling is not None:
            self._calling.cancel()
        self._changed.set()

    async def _follow_topics(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep the cluster's metadata of the subscribed topics young, and see what it says.

        Started after the first attempt: without topics there is nothing to register for.
        """
        backoff = self._cluster.backoff()
        begun = False
        while True:
            self._look = trio.Event()
            wait = await self._renew(backoff)
            if not begun:
                begun = True
                task_status.started()
            async with open_tasks() as tasks:
                tasks.start_soon(self._follow_image)
                with trio.move_on_after(wait):
                    await self._look.wait()
            await trio.sleep(self._cluster.settings.retry_backoff)  # however many ask for a look

    async def _follow_image(self) -> None:
        """See what renewed metadata says, whoever renewed it."""
        while True:
            image_changed = self._cluster.image_changed
            if self._registration() != self._announced:
                self._changed.set()
            await image_changed.wait()

    async def _renew(self, backoff: Backoff) -> float:
        """Renew the metadata; return the seconds until that is to be done again."""
        topics = self._subscriber.topics
        if topics:
            try:
                await self._cluster.renew(topics)
            except OdradekError as error:  # brokers can be away for longer than a group lives
                self._note(error)
                return backoff.next()
        backoff.reset()
        age = self._cluster.settings.metadata_max_age
        return age if topics <= self._cluster.metadata.topics.keys() else min(age, MISSING_S)

    # --- what it does

    async def _rebalance(self, view: GroupView, backoff: Backoff) -> None:
        pauses = self._cluster.backoff()
        self._changed.set()
        while True:
            await self._changed.wait()
            if self._announced is not None:
                await self._gather()
            # Only this task waits on the event, so it may be replaced once it has fired.
            self._changed = trio.Event()
            if isinstance(self._broken, Unavailable):
                raise CoordinatorClosed(str(self._broken)) from self._broken
            if self._broken is not None:
                raise self._broken
            try:
                if not self.session.alive:
                    raise _Over
                step = await self._step(view)
            except _Over:
                return
            except _Away:
                step = _Step.RETRY
            if step is _Step.SETTLED:
                pauses.reset()
                backoff.reset()
                self._status.state = MembershipState.STABLE
                self._status.last_error = None
            elif step is _Step.AGAIN:
                self._changed.set()
            with trio.move_on_after(pauses.next() if step is _Step.RETRY else float("inf")):
                await self._changed.wait()
            self._changed.set()

    async def _gather(self) -> None:
        """Wait until no member has come or gone for a moment, but not for long."""
        deadline = trio.current_time() + _GATHERINGS * self._debounce
        stirred = -1
        while stirred != self._stirred and trio.current_time() < deadline:
            stirred = self._stirred
            await trio.sleep(self._debounce)

    async def _step(self, view: GroupView) -> _Step:
        """Do what there is to do now. Raises _Over, _Away, Denied, what the subscriber raises."""
        if self._suspect:
            await self._check_suspects()
        registration = self._registration()
        if registration != self._announced:
            await self._ask(self.holdings.register(registration))
            self._announced = registration
            return _Step.AGAIN  # when many join at once, let them all be seen first
        group = view.group_with(registration)
        self._look_for_what_others_see(group, registration)
        known = {topic.id for topic in registration.topics.values()}
        assigned = {
            self._keys.owner(partition): partition
            for partition in range_of(registration.member, group)
            if partition.topic_id in known  # the topics of its former registration may be others
        }
        held = {self._keys.owner(partition): partition for partition in self.holdings.held}
        self._mine = assigned | held
        others = [partition for key, partition in assigned.items() if view.is_anothers(key)]
        todo = plan(assigned.values(), held.values(), others)
        strays = view.strays(self._mine)
        if todo.release or strays:
            await self._release(todo.release, strays)
            return _Step.AGAIN  # callbacks take their time: look again before claiming
        await self._claim(todo, registration)
        if not self._awaited:
            return _Step.SETTLED
        # What the watch has shown to be owned, it will show to be free; but it may never show an
        # owner that came and went.
        shown = all(self._keys.owner(each) in view.owners for each in self._awaited)
        return _Step.WAIT if shown else _Step.RETRY

    async def _ask(self, call: Awaitable[T]) -> T:
        """Await a call to the coordinator, no longer than the session lives.

        Raises _Over, _Away, Denied and what else is fatal.
        """
        with trio.CancelScope() as scope:
            self._calling = scope
            try:
                return await call
            except SessionLost as error:
                raise _Over from error
            except (Unavailable, Uncertain) as error:
                self._note(error)
                raise _Away from error
            finally:
                self._calling = None
        raise _Over

    async def _release(
        self, partitions: frozenset[PartitionKey], strays: Collection[PartitionKey]
    ) -> None:
        going = [name for name, key in self.given.items() if key in partitions]
        if partitions:
            self._status.state = MembershipState.REBALANCING
            self._untold = True
            await self._subscriber.revoked(going)
            for each in going:
                del self.given[each]
        await self._ask(self.holdings.release(partitions.union(strays)))

    async def _claim(self, todo: Plan, registration: Registration) -> None:
        names = {topic.id: name for name, topic in registration.topics.items()}
        self._awaited = todo.wait | todo.claim
        if todo.claim:
            if self._status.state is MembershipState.STABLE:
                self._status.state = MembershipState.REBALANCING
            self._untold = True
            wanted = {each: names[each.topic_id] for each in todo.claim}
            taken = await self._ask(self.holdings.claim(wanted))
            self._awaited = todo.wait | taken
        given = set(self.given.values())
        new = {
            TopicPartition(names[key.topic_id], key.partition): key
            for key in self.holdings.held
            if key not in given
        }
        if new or (self._untold and not self._awaited):
            self._untold = False
            self._status.generation += 1
            self.given.update(new)
            await self._subscriber.assigned(new.keys())

    async def _check_suspects(self) -> None:
        suspects, self._suspect = self._suspect, set()
        try:
            gone = await self._ask(self.holdings.check(suspects))
        except _Away:
            self._suspect |= suspects
            raise
        if lost := [name for name, key in self.given.items() if key in gone]:
            logger.error(
                "member %s of group %r lost %d partitions while its session was good",
                self._status.member_id,
                self._keys.group,
                len(lost),
            )
            self._untold = True
            await self.lose(lost)

    def _registration(self) -> Registration:
        known = self._cluster.metadata.topics
        topics = {
            name: SubscribedTopic(known[name].topic_id, len(known[name].partitions))
            for name in self._subscriber.topics
            if name in known
        }
        return Registration(self._status.member_id, topics, self._cluster.settings.client_id)

    def _look_for_what_others_see(
        self, group: Collection[Registration], registration: Registration
    ) -> None:
        """Renew metadata when another member sees a topic anew, or with more partitions."""
        for name in self._subscriber.topics:
            mine = registration.topics.get(name)
            for other in group:
                theirs = other.topics.get(name)
                if theirs is not None and (
                    mine is None or theirs.id != mine.id or theirs.partitions > mine.partitions
                ):
                    self._look.set()
                    return

    def _note(self, error: OdradekError) -> None:
        self._status.last_error = error
        logger.warning("member %s of group %r: %s", self._status.member_id, self._keys.group, error)
