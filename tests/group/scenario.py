"""Group scenarios as text: blocks of commands, `----`, the expected output, a blank line.

    join alice                 JoinGroup with the client's member id, which is none at first
    join bob instance=i version=5 session=10000 rebalance=60000 protocols=range,sticky topics=t,u
    sync alice alice=t0,t1 bob=t2      SyncGroup; the leader's has an assignment
    heartbeat alice
    leave alice bob            LeaveGroup, one request for all of them
    commit alice t-0=5 t-1=7/3:text    OffsetCommit: offset, leader epoch, metadata
    commit - group=g t-0=5     ... of nobody: no member id, generation -1
    fetch g t-0 t-1 | fetch g  OffsetFetch: some offsets, or all
    offset-delete g t-0
    delete g | describe g | list state=Empty type=classic
    forget-topics t
    advance 3000               milliseconds; what happens on the way is shown with its time
    hold                       writes are kept under way until `store` or `fail ERROR` (the oldest)
    release                    no longer
    crash                      the shard is lost, another one replays what was stored
    resign                     the shard resigns, another one replays what was stored
    log                        the records of the log

Any field of a request can be given: `generation=`, `id=`, `group=`, `instance=`, `version=`.
Settings stand in front: `settings max_size=2`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import count
from math import inf
from pathlib import Path

from attrs import define, evolve

from odradek.errors import ErrorCode
from odradek.group.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from odradek.group.effects import Effects, Request, Write
from odradek.group.records import GroupKey, OffsetKey, decode_group, decode_key, decode_offset
from odradek.group.settings import GroupSettings
from odradek.group.shard import GroupShard
from odradek.wire import encode
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.api.a15_describe_groups import DescribedGroup
from odradek.wire.api.a16_list_groups import ListedGroup
from odradek.wire.api.a42_delete_groups import DeletableGroupResult
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from odradek.wire.schema import Message, Struct

WALL = 1_000_000_000_000  # the wall clock at the start; not the monotonic one


@define
class Client:
    name: str
    group: str = "g"
    id: str = ""
    instance: str | None = None
    generation: int = -1
    protocol: str | None = None


class Scenario:
    """Runs commands against a shard and a log, and tells what came of them."""

    def __init__(self) -> None:
        self.settings = GroupSettings()
        self.clients: dict[str, Client] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.held: list[Write] = []
        self.holding = False
        self.ids = count(1)
        self.tickets = count(1)
        self.waiting: dict[int, tuple[str, int]] = {}
        self.ms = 0
        self.out: list[str] = []
        self.shard = self.new_shard()

    @property
    def clock(self) -> tuple[float, int]:
        return self.ms / 1000, WALL + self.ms

    def new_shard(self) -> GroupShard:
        shard = GroupShard(self.settings, lambda: str(next(self.ids)))
        for key, value in self.log:
            shard.replay(key, value, WALL)
        self.shard = shard
        self.effects(shard.start(*self.clock))
        return shard

    def run(self, line: str) -> None:
        command, *words = line.split()
        method = getattr(self, "do_" + command.replace("-", "_"))
        method(words)

    def effects(self, effects: Effects) -> None:
        for ticket, message in effects.replies:
            name, version = self.waiting.pop(ticket)
            if isinstance(message, Message):
                encode(message, version)  # whatever is answered can be sent
            self.out.append(f"{name}: {self.told(name, message)}")
        for write in effects.writes:
            self.held.append(write)
            if self.holding:
                self.out.append(f"write {write.id}: {', '.join(map(shown, write.records))}")
        while self.held and not self.holding:
            self.settle(ErrorCode.NONE)

    def settle(self, error: ErrorCode) -> None:
        write = self.held.pop(0)
        if error:
            self.effects(self.shard.failed(write.id, error, *self.clock))
        else:
            self.log.extend(write.records)
            self.effects(self.shard.stored(write.id, *self.clock))

    def send(self, name: str, message: Message, version: int) -> None:
        ticket = next(self.tickets)
        self.waiting[ticket] = name, version
        request = Request(ticket, message, version, name, "/127.0.0.1")
        self.effects(self.shard.handle(request, *self.clock))
        if ticket in self.waiting:
            self.out.append(f"{name}: waits")

    def told(self, name: str, message: Struct) -> str:
        """Show a response, and let its client learn from it."""
        client = self.clients.get(name) or Client(name)
        if isinstance(message, JoinGroupResponse):
            error = ErrorCode(message.error_code)
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                client.id = message.member_id
                return f"{error.name} id={client.id}"
            if error:
                if error is ErrorCode.UNKNOWN_MEMBER_ID:
                    client.id = ""
                return error.name
            client.id = message.member_id
            client.generation = message.generation_id
            client.protocol = message.protocol_name
            text = f"generation={message.generation_id} protocol={message.protocol_name}"
            text += f" id={message.member_id} leader={message.leader}"
            if message.members:
                text += f" members={','.join(m.member_id for m in message.members)}"
            return text + (" skip_assignment" if message.skip_assignment else "")
        if isinstance(message, SyncGroupResponse):
            error = ErrorCode(message.error_code)
            return error.name if error else f"assignment={message.assignment.decode() or 'none'}"
        if isinstance(message, LeaveGroupResponse) and message.members:
            return " ".join(
                f"{m.group_instance_id or m.member_id}={ErrorCode(m.error_code).name}"
                for m in message.members
            )
        if isinstance(message, OffsetCommitResponse | OffsetDeleteResponse):
            results = " ".join(
                f"{topic.name}-{p.partition_index}={ErrorCode(p.error_code).name}"
                for topic in message.topics
                for p in topic.partitions
            )
            if isinstance(message, OffsetDeleteResponse) and message.error_code:
                return ErrorCode(message.error_code).name
            return results or "NONE"
        if isinstance(message, DeletableGroupResult):
            return f"{message.group_id}={ErrorCode(message.error_code).name}"
        return ErrorCode(getattr(message, "error_code")).name  # noqa: B009  # any response

    # Commands

    def do_settings(self, words: list[str]) -> None:
        self.settings = evolve(
            self.settings, **{k: int(v) for k, v in (word.split("=") for word in words)}
        )
        self.new_shard()

    def options(self, words: list[str]) -> tuple[Client, dict[str, str], list[str]]:
        """Split off the client, options that are fields, and the rest."""
        name, *rest = words
        client = self.clients.setdefault(name, Client(name))
        options = {}
        others = []
        for word in rest:
            key, _, value = word.partition("=")
            if key in FIELDS:
                options[key] = value
            else:
                others.append(word)
        client.group = options.get("group", client.group)
        client.instance = options.get("instance", client.instance)
        client.id = options.get("id", client.id)
        client.generation = int(options.get("generation", client.generation))
        return client, options, others

    def do_join(self, words: list[str]) -> None:
        client, options, _ = self.options(words)
        topics = options.get("topics", "t").split(",")
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=topics))
        names = [name for name in options.get("protocols", "range").split(",") if name]
        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            member_id=client.id,
            group_instance_id=client.instance,
            protocol_type=options.get("type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=n, metadata=metadata) for n in names],
        )
        self.send(client.name, request, int(options.get("version", 9)))

    def do_sync(self, words: list[str]) -> None:
        client, options, others = self.options(words)
        assignments = []
        for word in others:
            name, _, value = word.partition("=")
            member = self.clients[name].id if name in self.clients else name
            assignments.append(
                SyncGroupRequestAssignment(member_id=member, assignment=value.encode())
            )
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=client.generation,
            member_id=client.id,
            group_instance_id=client.instance,
            protocol_type=options.get("type", "consumer"),
            protocol_name=options.get("protocol", client.protocol),
            assignments=assignments,
        )
        self.send(client.name, request, int(options.get("version", 5)))

    def do_heartbeat(self, words: list[str]) -> None:
        client, _, _ = self.options(words)
        request = HeartbeatRequest(
            group_id=client.group,
            generation_id=client.generation,
            member_id=client.id,
            group_instance_id=client.instance,
        )
        self.send(client.name, request, 4)

    def do_leave(self, words: list[str]) -> None:
        """Leave as members, or by `instance=` alone as an administrator has it."""
        version = 5
        members = []
        group = "g"
        for word in words:
            key, _, value = word.partition("=")
            if key == "version":
                version = int(value)
            elif key == "group":
                group = value
            elif key == "instance":
                members.append(MemberIdentity(member_id="", group_instance_id=value))
            else:
                client = self.clients.get(key, Client(key, id=key))
                members.append(
                    MemberIdentity(member_id=client.id, group_instance_id=client.instance)
                )
        if version < 3:
            request = LeaveGroupRequest(group_id=group, member_id=members[0].member_id)
        else:
            request = LeaveGroupRequest(group_id=group, members=members)
        self.send(words[0], request, version)

    def do_commit(self, words: list[str]) -> None:
        client, options, others = self.options(words)
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for word in others:
            partition, _, value = word.partition("=")
            topic, _, number = partition.rpartition("-")
            value, _, metadata = value.partition(":")
            offset, _, epoch = value.partition("/")
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=int(number),
                    committed_offset=int(offset),
                    committed_leader_epoch=int(epoch or -1),
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=client.group,
            generation_id_or_member_epoch=client.generation,
            member_id=client.id,
            group_instance_id=client.instance,
            retention_time_ms=int(options.get("retention", -1)),
            topics=[OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        )
        self.send(client.name, request, int(options.get("version", 9)))

    def do_offset_delete(self, words: list[str]) -> None:
        group, *partitions = words
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for partition in partitions:
            topic, _, number = partition.rpartition("-")
            one = OffsetDeleteRequestPartition(partition_index=int(number))
            topics.setdefault(topic, []).append(one)
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[OffsetDeleteRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        )
        self.send("admin", request, 0)

    def do_fetch(self, words: list[str]) -> None:
        group, *partitions = words
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topic, _, number = partition.rpartition("-")
            topics.setdefault(topic, []).append(int(number))
        asked = OffsetFetchRequestGroup(
            group_id=group,
            topics=[
                OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in topics.items()
            ]
            or None,
        )
        answer = self.fetch(asked)
        found = [
            f"{topic.name}-{p.partition_index}={p.committed_offset}"
            + (f"/{p.committed_leader_epoch}" if p.committed_leader_epoch >= 0 else "")
            + (f":{p.metadata}" if p.metadata else "")
            + (f" {ErrorCode(p.error_code).name}" if p.error_code else "")
            for topic in answer.topics
            for p in topic.partitions
        ]
        error = [ErrorCode(answer.error_code).name] if answer.error_code else []
        self.out.append(" ".join(error + found) or "no offsets")

    def fetch(self, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        return self.shard.fetch_offsets(asked, 9, self.clock[1])

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return self.shard.describe(group_id, version)

    def listed(self, states: list[str], types: list[str]) -> Iterable[ListedGroup]:
        return self.shard.listed(states, types)

    def do_delete(self, words: list[str]) -> None:
        ticket = next(self.tickets)
        self.waiting[ticket] = "admin", 2
        self.effects(self.shard.delete(ticket, words[0], *self.clock))
        if ticket in self.waiting:
            self.out.append("admin: waits")

    def do_describe(self, words: list[str]) -> None:
        version = int(words[1]) if len(words) > 1 else 6
        group = self.describe(words[0], version)
        error = f"{ErrorCode(group.error_code).name} " if group.error_code else ""
        text = f"{group.group_id}: {error}{group.group_state}"
        text += f" type={group.protocol_type or '-'} protocol={group.protocol_data or '-'}"
        self.out.append(text)
        for member in group.members:
            static = f" instance={member.group_instance_id}" if member.group_instance_id else ""
            assignment = member.member_assignment.decode() or "none"
            self.out.append(f"  {member.member_id}{static} assignment={assignment}")

    def do_list(self, words: list[str]) -> None:
        states = [word[6:] for word in words if word.startswith("state=")]
        types = [word[5:] for word in words if word.startswith("type=")]
        for group in self.listed(states, types):
            kind = group.protocol_type or "-"
            self.out.append(f"{group.group_id} {group.group_state} {group.group_type} {kind}")

    def do_forget_topics(self, words: list[str]) -> None:
        self.effects(self.shard.forget_topics(words, *self.clock))

    def do_advance(self, words: list[str]) -> None:
        end = self.ms + int(words[0])
        while (deadline := self.shard.next_deadline) != inf and round(deadline * 1000) <= end:
            self.ms = max(self.ms, round(deadline * 1000))
            now, now_ms = self.clock
            before = len(self.out)
            self.effects(self.shard.tick(max(now, deadline), now_ms))  # binary fractions of a ms
            if len(self.out) > before:
                self.out.insert(before, f"at {self.ms}:")
        self.ms = end

    def do_hold(self, words: list[str]) -> None:
        self.holding = True

    def do_store(self, words: list[str]) -> None:
        self.settle(ErrorCode.NONE)

    def do_fail(self, words: list[str]) -> None:
        self.settle(ErrorCode[words[0]])

    def do_release(self, words: list[str]) -> None:
        self.holding = False
        self.effects(Effects())

    def do_crash(self, words: list[str]) -> None:
        self.out.extend(f"{name}: lost" for name, _ in self.waiting.values())
        self.waiting.clear()
        self.held.clear()
        self.new_shard()

    def do_resign(self, words: list[str]) -> None:
        self.effects(self.shard.resign(ErrorCode.NOT_COORDINATOR))
        if self.waiting or self.shard.next_deadline != inf:
            self.out.append("still waiting")
        self.held.clear()
        self.new_shard()

    def do_log(self, words: list[str]) -> None:
        self.out.extend(map(shown, self.log))


FIELDS = {
    "generation", "group", "id", "instance", "protocol", "protocols", "rebalance", "retention",
    "session", "topics", "type", "version",
}  # fmt: skip


def shown(record: tuple[bytes, bytes | None]) -> str:
    """Show a record of the log."""
    key, value = record
    kind = decode_key(key)
    if isinstance(kind, OffsetKey):
        name = f"{kind.group}/{kind.topic}-{kind.partition}"
        return f"{name} deleted" if value is None else f"{name}={decode_offset(value).offset}"
    assert isinstance(kind, GroupKey)
    if value is None:
        return f"{kind.group} deleted"
    group = decode_group(value)
    members = ",".join(f"{m.member_id}={m.assignment.decode()}" for m in group.members)
    return f"{kind.group} generation={group.generation} [{members}]"


def check(path: Path) -> None:
    """Run a file and compare; with ODRADEK_REWRITE=1 write what came out into it instead."""
    scenario = Scenario()
    rewritten = []
    for block in path.read_text().strip().split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith("#") for line in lines):
            rewritten.append(block)
            continue
        commands = lines[: lines.index("----")] if "----" in lines else lines
        scenario.out = []
        for line in commands:
            if not line.startswith("#"):
                scenario.run(line)
        rewritten.append("\n".join([*commands, "----", *scenario.out]))
    text = "\n\n".join(rewritten) + "\n"
    if os.environ.get("ODRADEK_REWRITE"):
        path.write_text(text)
    assert text == path.read_text()
