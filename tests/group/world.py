"""Clients, a log and a shard that can crash: what the properties of groups are checked on.

A client learns only from what it is answered. The log keeps what was stored; a crash loses any
tail of the writes under way. After each step the promises of the shard are checked.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from math import inf

from attrs import Factory, define

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, State
from odradek.group.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from odradek.group.effects import Effects, Reply, Request, Write
from odradek.group.member_budget import MemberBudget
from odradek.group.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_key,
    decode_offset,
)
from odradek.group.settings import GroupSettings
from odradek.group.shard import GroupShard
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest, OffsetCommitResponse
from odradek.wire.api.a09_offset_fetch import OffsetFetchRequestGroup
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.schema import Message

GROUPS = ("g", "h")
PARTITIONS = range(4)
SMALL = 14_000  # bytes: five or six members
WALL = 1_700_000_000_000
SETTINGS = GroupSettings(
    max_size=4,
    max_pending_members=3,
    initial_rebalance_delay_ms=3_000,
    offset_metadata_max_bytes=10,
    offsets_retention_ms=600_000,
    offsets_retention_check_interval_ms=60_000,
)


@define(eq=False)
class Client:
    name: str
    group: str
    instance: str | None = None
    id: str = ""
    generation: int = -1
    leads: bool = False
    protocol: str = ""
    members: list[str] = Factory(list)


@define
class Waiting:
    client: Client
    message: Message | None
    identity: str


class World:
    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.settings = settings
        self.log: list[tuple[bytes, bytes | None]] = []
        self.under_way: list[Write] = []
        self.waiting: dict[int, Waiting] = {}
        self.tickets = count(1)
        self.ids = count(1)
        self.now = 100.0
        self.owners: dict[tuple[str, int, int, str], str] = {}
        self.lives = dict.fromkeys(GROUPS, 0)  # how often each group was deleted
        self.newest: dict[str, int] = {}  # generation seen from this shard
        self.unsure: set[str] = set()  # groups whose last record failed
        self.stale: dict[int, object] = {}  # records of topics that are gone, by identity
        self.start()

    @property
    def now_ms(self) -> int:
        return WALL + int(self.now * 1000)

    def start(self) -> None:
        self.newest = {}
        self.unsure = set()
        self.budget = MemberBudget(SMALL)
        self.stale = {}  # those whose topic came again before they were removed come back
        self.shard = self.replayed(self.budget)
        self.take(self.shard.start(self.now, self.now_ms))

    def replayed(self, budget: MemberBudget | None = None) -> GroupShard:
        # One that is compared with ours must not count with it.
        shard = GroupShard(self.settings, lambda: str(next(self.ids)), budget)
        for key, value in self.log:
            shard.replay(key, value, 0)
        return shard

    # What clients do

    def send(self, client: Client, message: Message, version: int) -> None:
        ticket = next(self.tickets)
        self.waiting[ticket] = Waiting(client, message, client.instance or client.id)
        request = Request(ticket, message, version, client.name, "/127.0.0.1")
        self.take(self.shard.handle(request, self.now, self.now_ms))

    def join(
        self, client: Client, version: int, protocols: list[str], topics: list[str], session: int
    ) -> None:
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=topics))
        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=session,
            rebalance_timeout_ms=session * 2,
            member_id=client.id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=n, metadata=metadata) for n in protocols],
        )
        self.send(client, request, version)

    def sync(self, client: Client, generation: int, shares: list[int]) -> None:
        """Sync; a leader gives partition i to the member number shares[i] that it knows."""
        given: dict[str, list[str]] = {}
        if client.leads:
            for partition, share in zip(PARTITIONS, shares, strict=True):
                member = client.members[share % len(client.members)]
                given.setdefault(member, []).append(str(partition))
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=generation,
            member_id=client.id,
            group_instance_id=client.instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=m, assignment=",".join(p).encode())
                for m, p in given.items()
            ],
        )
        self.send(client, request, 4)

    # What the host does

    def forget(self, topic: str) -> None:
        """The topic is deleted; commits from now on are to another of the same name."""
        for record in chain(self.log, *(write.records for write in self.under_way)):
            key = decode_key(record[0])
            if isinstance(key, OffsetKey) and key.topic == topic:
                self.stale[id(record)] = record
        self.take(self.shard.forget_topics([topic], self.now, self.now_ms))

    def take(self, effects: Effects) -> None:
        for reply in effects.replies:
            self.learn(reply)
        for write in effects.writes:
            assert write.records
            self.under_way.append(write)

    def settle(self, at: int, error: ErrorCode) -> None:
        """Tell the fate of a write; those before it have been appended, or not, by now."""
        write = self.under_way.pop(at)
        if error:
            self.unsure.update(
                key.group for key in map(decode_key, dict(write.records)) if type(key) is GroupKey
            )
            self.take(self.shard.failed(write.id, error, self.now, self.now_ms))
        else:
            self.append(write)
            self.take(self.shard.stored(write.id, self.now, self.now_ms))

    def settle_backwards(self, count: int) -> None:
        """The log took them in order; who waited for each is told in any order."""
        stored = self.under_way[:count]
        del self.under_way[:count]
        for write in stored:
            self.append(write)
        for write in reversed(stored):
            self.take(self.shard.stored(write.id, self.now, self.now_ms))

    def append(self, write: Write) -> None:
        self.log.extend(write.records)
        for raw, value in write.records:
            key = decode_key(raw)
            if type(key) is GroupKey:
                self.unsure.discard(key.group)
                if value is None:
                    self.lives[key.group] += 1
                    self.newest.pop(key.group, None)

    def tick(self, now: float) -> None:
        self.now = now
        self.take(self.shard.tick(now, self.now_ms))
        assert self.shard.next_deadline > now

    def crash(self, kept: int) -> None:
        """The first `kept` writes under way reached the log; everything else is gone."""
        for write in self.under_way[:kept]:
            self.append(write)
        self.under_way.clear()
        self.waiting.clear()
        self.start()

    def resign(self) -> None:
        self.take(self.shard.resign(ErrorCode.NOT_COORDINATOR))
        assert self.budget.used == 0
        assert not self.waiting
        assert self.shard.next_deadline == inf
        for write in self.under_way:
            assert self.shard.stored(write.id, self.now, self.now_ms) == Effects()
        self.under_way.clear()
        self.start()

    def compact(self) -> None:
        newest = {key: at for at, (key, _) in enumerate(self.log)}
        self.log = [
            record
            for at, record in enumerate(self.log)
            if newest[record[0]] == at and record[1] is not None
        ]

    # What clients learn

    def learn(self, reply: Reply) -> None:
        waiting = self.waiting.pop(reply.ticket)  # KeyError: it was answered before
        client, message = waiting.client, reply.message
        if isinstance(message, JoinGroupResponse):
            self.joined(client, message)
        elif isinstance(message, SyncGroupResponse) and not message.error_code:
            asked = waiting.message
            assert isinstance(asked, SyncGroupRequest)
            life = self.lives[client.group]
            for partition in filter(None, message.assignment.decode().split(",")):
                key = client.group, life, asked.generation_id, partition
                assert self.owners.setdefault(key, waiting.identity) == waiting.identity
        elif isinstance(message, HeartbeatResponse) and not message.error_code:
            asked = waiting.message
            assert isinstance(asked, HeartbeatRequest)
            assert asked.generation_id >= self.newest.get(client.group, 0)
        elif isinstance(message, OffsetCommitResponse):
            asked = waiting.message
            assert isinstance(asked, OffsetCommitRequest)
            self.committed(asked, message)

    def joined(self, client: Client, message: JoinGroupResponse) -> None:
        error = message.error_code
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            client.id = message.member_id
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.id = ""
        elif not error:
            client.id = message.member_id
            client.generation = message.generation_id
            client.leads = bool(message.members) and not message.skip_assignment
            client.members = [member.member_id for member in message.members]
            client.protocol = str(message.protocol_name)
            assert message.generation_id >= self.newest.get(client.group, 0)
            self.newest[client.group] = message.generation_id

    def committed(self, asked: OffsetCommitRequest, answer: OffsetCommitResponse) -> None:
        """A commit that is acknowledged is in the log."""
        found = {
            (decode_key(key), decode_offset(value).offset)
            for key, value in self.log
            if value is not None and type(decode_key(key)) is OffsetKey
        }
        for topic, told in zip(asked.topics, answer.topics, strict=True):
            for one, result in zip(topic.partitions, told.partitions, strict=True):
                key = OffsetKey(asked.group_id, topic.name, one.partition_index)
                assert result.error_code or (key, one.committed_offset) in found

    # The promises

    def offsets(self, stale: Container[int] = ()) -> dict[OffsetKey, CommittedOffset]:
        """Return what the log says, without these records."""
        found: dict[OffsetKey, CommittedOffset] = {}
        for record in self.log:
            key = decode_key(record[0])
            if isinstance(key, OffsetKey):
                found.pop(key, None)
                if record[1] is not None and id(record) not in stale:
                    found[key] = decode_offset(record[1])
        return found

    def check(self) -> None:
        self.check_offsets(self.shard, self.stale)
        for group in self.shard._groups.values():
            self.check_group(group)
        self.check_replay()
        assert self.shard._context.writes_under_way == len(self.under_way)
        groups = self.shard._groups.values()
        weights = [m.weight for group in groups for m in group.members.values()]
        assert all(weight > 0 for weight in weights)
        assert self.budget.used == sum(weights) + sum(group.topics_weight for group in groups)
        pending = {member_id: group for group in groups for member_id in group.pending}
        assert self.shard._rebalancing._pending == pending
        assert len(pending) <= self.settings.max_pending_members

    def check_offsets(self, shard: GroupShard, stale: Container[int] = ()) -> None:
        expected = {key: offset.offset for key, offset in self.offsets(stale).items()}
        found = {}
        for group_id in GROUPS:
            asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
            answer = shard.fetch_offsets(asked, 9, self.now_ms)
            for topic in answer.topics:
                for one in topic.partitions:
                    key = OffsetKey(group_id, topic.name, one.partition_index)
                    found[key] = one.committed_offset
        assert found == expected

    def check_replay(self) -> None:
        replayed = self.replayed()
        replayed.start(self.now, self.now_ms)
        self.check_offsets(replayed)
        written = {
            key.group
            for write in self.under_way
            for key in map(decode_key, dict(write.records))
            if type(key) is GroupKey
        }
        for group in self.shard._groups.values():
            if group.group_id in written | self.unsure or not group.recorded:
                continue
            if group.state in (State.STABLE, State.EMPTY):
                ours = self.shard.describe(group.group_id, 6)
                assert replayed.describe(group.group_id, 6) == ours
                assert replayed._groups[group.group_id].generation == group.generation
            else:
                assert replayed._groups[group.group_id].generation <= group.generation

    def check_group(self, group: ClassicGroup) -> None:
        members = list(group.members.values())
        assert group.joining == sum(member.join_ticket is not None for member in members)
        names = [name for member in members for name, _ in member.terms.protocols]
        assert dict(group.supported) == {name: names.count(name) for name in names}
        assert (group.leader in group.members) if members else group.leader is None
        static = {m.instance_id: m.member_id for m in members if m.instance_id is not None}
        assert group.instances == static
        assert not group.pending.keys() & group.members.keys()
        assert len(group.pending) <= self.settings.max_pending_members
        assert len(members) <= 2 * self.settings.max_size
        assert all(timer.deadline < inf for timer in group.pending.values())
        assert (group.join_timer.deadline < inf) == (group.state is State.PREPARING_REBALANCE)
        assert (group.sync_timer.deadline < inf) == bool(group.unsynced)
        assert bool(members) or group.state in (State.EMPTY, State.PREPARING_REBALANCE)
        for member in members:
            waits = member.join_ticket is not None or member.sync_ticket is not None
            assert waits or member.session.deadline < inf
            assert member.sync_ticket is None or group.state is State.COMPLETING_REBALANCE
            for ticket in (member.join_ticket, member.sync_ticket):
                assert ticket is None or ticket in self.waiting
        waiting = sum(
            w.client.group == group.group_id
            for w in self.waiting.values()
            if isinstance(w.message, JoinGroupRequest | SyncGroupRequest)
        )
        tickets = sum((m.join_ticket is not None) + (m.sync_ticket is not None) for m in members)
        assert waiting == tickets

    def settle_down(self) -> None:
        """Nobody asks for anything any more: in the end nothing is left."""
        for _ in range(400):
            while self.under_way:
                self.settle(0, ErrorCode.NONE)
            self.tick(self.shard.next_deadline)
            self.check()
            if not self.shard._groups and not self.under_way:
                break
        assert not self.waiting
        assert not self.shard._groups
        assert not self.offsets()
        assert len(self.shard._context.timers) < 300
