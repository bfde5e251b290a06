"""A classic group: its states, its members, its rules. Sans-IO.

Theory
======
A group is a set of members that share work. The coordinator knows neither topics nor
partitions: it brings the members together, numbers their common state (the *generation*),
makes one of them the *leader*, and passes on what the leader decides. A generation comes to be
in two phases, and the group's state says which one it is in.

*Join.* Something changed: a member came, left, fell silent or wants something else. The group is
PreparingRebalance. Each member that is still there sends JoinGroup, and its answer waits until
all have, or until the longest rebalance timeout among the members is over; dynamic members that
have not joined by then are out. (A group that was empty waits for the initial rebalance delay in
place of that, so that a service whose instances start together gets one generation, not ten.)
Then the generation number goes up, the members vote for a protocol that all of them can do, and
everybody is answered. The leader is told of all members.

*Sync.* The group is CompletingRebalance. The leader computes who gets what and sends it in
SyncGroup; the answers to everybody's SyncGroup wait for that. The assignment is written to the
log with the generation and its members. Only when it is stored is it given out, and the group is
Stable: an assignment that was seen by anybody survives the coordinator. Members that do not sync
in time are out.

*Fencing.* Every request of a member carries its id and generation. A stale generation is refused
(ILLEGAL_GENERATION), an id that is not a member's as well (UNKNOWN_MEMBER_ID), so a member that
was given up for dead cannot commit over its successor. Members hear of a rebalance by the answer
to their heartbeat (REBALANCE_IN_PROGRESS).

*Identity.* A dynamic member gets its id at its first JoinGroup and joins with it at the second
(MEMBER_ID_REQUIRED, KIP-394); until then it is pending, and a join phase waits for it. A static
member (KIP-345) is known by its group.instance.id: it may be gone for up to a session timeout
without a rebalance. When it comes back it gets a new member id, the old one is fenced
(FENCED_INSTANCE_ID), and in a Stable group it takes over the assignment as it is.

*Empty and Dead.* A group without members is Empty, also one that only ever commits offsets
("simple"). It ends with its last offset, or by DeleteGroups. A group that is Dead is not in the
shard any more.

State is kept where it must be: in the log, as one record per group that is written with each
assignment, each static member that comes back, and when the group becomes empty. Replaying it
gives an Empty or a Stable group. A join or sync phase that was under way is lost with its
coordinator: the members' requests fail, they find the new one, and begin again.

Source: Apache Kafka 4, `GroupMetadataManager` and `ClassicGroup`; KIP-62, 134, 345, 394, 429,
559, 800, 814.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum, unique
from typing import TYPE_CHECKING, NamedTuple

from odradek.errors import ErrorCode, MalformedMessage
from odradek.group.classic_member import Member, Terms, names
from odradek.group.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from odradek.group.records import GroupMetadataValue
from odradek.wire.api.a11_join_group import JoinGroupResponseMember

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from odradek.group.timers import Timer

__all__ = ["TRANSITIONS", "ClassicGroup", "Event", "State", "Transition", "diagram"]


@unique
class State(Enum):
    """The states of a classic group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@unique
class Event(Enum):
    """What moves a group from one state to another."""

    JOINED = "a member joins"
    REJOINED = "a member joins again: the leader, or with other metadata"
    LEFT = "a member leaves"
    FAILED = "a member's session ends"
    SYNC_TIMEOUT = "members have not synced in time"
    SYNC_FAILED = "the assignment cannot be stored"
    OVER_CAPACITY = "replayed with more members than are allowed"
    ALL_JOINED = "all members have joined, or the time is up"
    EMPTIED = "no member is left"
    SYNCED = "the leader's assignment is stored"
    EXPIRED = "the last offset has expired"
    DELETED = "DeleteGroups"
    RESIGNED = "another broker becomes the coordinator"


class Transition(NamedTuple):
    """In state `source`, `event` leads to `target`."""

    source: State
    event: Event
    target: State


TRANSITIONS = (
    Transition(State.EMPTY, Event.JOINED, State.PREPARING_REBALANCE),
    Transition(State.EMPTY, Event.EXPIRED, State.DEAD),
    Transition(State.EMPTY, Event.DELETED, State.DEAD),
    Transition(State.EMPTY, Event.RESIGNED, State.DEAD),
    Transition(State.PREPARING_REBALANCE, Event.ALL_JOINED, State.COMPLETING_REBALANCE),
    Transition(State.PREPARING_REBALANCE, Event.EMPTIED, State.EMPTY),
    Transition(State.PREPARING_REBALANCE, Event.RESIGNED, State.DEAD),
    Transition(State.COMPLETING_REBALANCE, Event.SYNCED, State.STABLE),
    Transition(State.COMPLETING_REBALANCE, Event.SYNC_FAILED, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.SYNC_TIMEOUT, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.JOINED, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.REJOINED, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.LEFT, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.FAILED, State.PREPARING_REBALANCE),
    Transition(State.COMPLETING_REBALANCE, Event.RESIGNED, State.DEAD),
    Transition(State.STABLE, Event.JOINED, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.REJOINED, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.LEFT, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.FAILED, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.SYNC_TIMEOUT, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.OVER_CAPACITY, State.PREPARING_REBALANCE),
    Transition(State.STABLE, Event.RESIGNED, State.DEAD),
)
"""Every change of state there is. Replay makes groups that are Empty, or Stable."""

_TARGETS = {(source, event): target for source, event, target in TRANSITIONS}


def diagram() -> str:
    """Draw the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> Empty", "    [*] --> Stable: replayed with members"]
    arrows: dict[tuple[State, State], list[str]] = {}
    for source, event, target in TRANSITIONS:
        arrows.setdefault((source, target), []).append(event.value.replace(":", ","))
    for (source, target), events in arrows.items():
        lines.append(f"    {source.value} --> {target.value}: {'<br/>'.join(events)}")
    lines.append("    Dead --> [*]")
    return "\n".join(lines) + "\n"


class ClassicGroup:
    """The state of one group, and the rules that need nothing else.

    `protocol_type` is None until there was a first member. `state_timestamp_ms` is when the
    group came into its state, None where the log does not say. `pending` are the member ids given
    out and not joined with yet, each with the timer that ends it. `storing` is the generation
    whose assignment is being written. `deleting` is set while the tombstones of the group are
    being written: it answers nobody then. `recorded` says that the log has, or may have, a record
    of the group.
    """

    __slots__ = (
        "deleting",
        "generation",
        "group_id",
        "initial",
        "initial_delay_ms",
        "initial_remaining_ms",
        "instances",
        "join_timer",
        "joining",
        "leader",
        "members",
        "new_member_added",
        "pending",
        "protocol",
        "protocol_type",
        "recorded",
        "state",
        "state_timestamp_ms",
        "storing",
        "subscribed",
        "supported",
        "sync_timer",
        "topics_weight",
        "unsynced",
    )

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}  # group.instance.id -> member id
        self.pending: dict[str, Timer] = {}
        self.joining = 0  # members whose JoinGroup waits
        self.supported: Counter[str] = Counter()  # protocol -> members that can do it
        self.unsynced: set[str] = set()  # members of this generation that have not synced
        self.subscribed: frozenset[str] | None = None  # None: not known
        self.initial = False  # whether this join phase is that of a group that was empty
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.new_member_added = False
        self.topics_weight = 0  # bytes that are counted for `subscribed`
        self.storing: int | None = None
        self.deleting = False
        self.recorded = False
        self.join_timer: Timer
        self.sync_timer: Timer

    def step(self, event: Event, now_ms: int) -> None:
        """Change the state. Raises RuntimeError for a transition that is not in the table."""
        target = _TARGETS.get((self.state, event))
        if target is None:
            raise RuntimeError(f"group {self.group_id}: {event} in state {self.state}")
        self.state = target
        self.state_timestamp_ms = now_ms

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member, whose protocols the group must support."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self.supported.update(names(member.terms.protocols))

    def remove(self, member: Member) -> None:
        """Remove a member, none of whose requests waits; the oldest of the others leads."""
        del self.members[member.member_id]
        self._unsupport(member)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        self.unsynced.discard(member.member_id)

    def replace(self, old: Member, new: Member) -> None:
        """Put a static member in the place of the one with the same instance id."""
        self._unsupport(old)
        # The order of members is that of their coming: the new one keeps the place.
        self.members = {
            member.member_id: member
            for member in (new if known is old else known for known in self.members.values())
        }
        self.supported.update(names(new.terms.protocols))
        self.instances[str(new.instance_id)] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id
        if old.member_id in self.unsynced:
            self.unsynced.discard(old.member_id)
            self.unsynced.add(new.member_id)

    def update(self, member: Member, terms: Terms) -> None:
        """Give a member other terms."""
        self._unsupport(member)
        member.terms = terms
        self.supported.update(names(terms.protocols))

    def _unsupport(self, member: Member) -> None:
        for name in names(member.terms.protocols):
            left = self.supported[name] - 1
            if left:
                self.supported[name] = left
            else:
                del self.supported[name]

    @property
    def all_joined(self) -> bool:
        """Whether a join phase has nobody to wait for."""
        return self.joining == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((m.terms.rebalance_timeout_ms for m in self.members.values()), default=0)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Say what is wrong with this identity, NONE when it is a member's."""
        if instance_id is not None:
            known = self.instances.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def elect(self) -> None:
        """Keep the leader when it has joined; else the oldest member that has leads."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.join_ticket is None:
            joined = (m.member_id for m in self.members.values() if m.join_ticket is not None)
            self.leader = next(joined, self.leader)

    # Protocols

    def supports(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Whether a member with these protocols may join."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.supported[name] == everybody for name in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members can do."""
        everybody = len(self.members)
        candidates = {name for name, count in self.supported.items() if count == everybody}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def next_generation(self, now_ms: int) -> None:
        """End the join phase."""
        self.generation += 1
        self.unsynced.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.step(Event.ALL_JOINED, now_ms)
        else:
            self.protocol = None
            self.step(Event.EMPTIED, now_ms)
        self.subscribed = self.topics()

    def topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to; None when they cannot be known."""
        if self.protocol_type != PROTOCOL_TYPE or (self.members and self.protocol is None):
            return None
        found: set[str] = set()
        try:
            for member in self.members.values():
                found.update(subscribed_topics(member.metadata(str(self.protocol))))
        except MalformedMessage:
            return None  # what members tell one another is theirs: then nothing is known of it
        return frozenset(found)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads `topic`; taken to be so while a consumer group's are unknown."""
        if self.subscribed is None:
            return self.protocol_type == PROTOCOL_TYPE
        return topic in self.subscribed

    # What others see

    def view(self) -> list[JoinGroupResponseMember]:
        """Return the members as their leader is told of them."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(str(self.protocol)),
            )
            for member in self.members.values()
        ]

    def record(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """Return the generation as the log keeps it."""
        timestamp = self.state_timestamp_ms
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=-1 if timestamp is None else timestamp,
            members=[
                member.record(str(self.protocol), assignments.get(member.member_id, b""))
                for member in self.members.values()
            ],
        )

    @classmethod
    def replayed(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """Return the group that the log kept; its timers are yet to be made."""
        timestamp = value.current_state_timestamp
        group = cls(group_id, None if timestamp == -1 else timestamp)
        group.generation = value.generation
        group.protocol = value.protocol or ("" if value.members else None)
        group.leader = value.leader
        group.recorded = True
        for record in value.members:
            group.add(Member.replayed(record, str(group.protocol)), value.protocol_type)
        if group.leader not in group.members:
            group.leader = next(iter(group.members), None)
        group.protocol_type = value.protocol_type or None
        group.state = State.STABLE if group.members else State.EMPTY
        group.subscribed = group.topics()
        return group
