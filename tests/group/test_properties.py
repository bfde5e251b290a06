"""Properties of the group machine under any sequence of requests, times, failures and crashes.

The promises G1 to G6 of `odradek.group.shard` are checked after every step; see `world`.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.group.world import GROUPS, Client, Waiting, World

from odradek.errors import ErrorCode
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

clients = st.integers(0, 7)
generations = st.sampled_from([0, 0, 0, 0, -1, 1])
errors = st.sampled_from(
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]
)


class Groups(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()
        self.clients = [
            Client("a", "g"),
            Client("b", "g"),
            Client("c", "g"),
            Client("d", "g"),
            Client("s", "g", instance="S"),
            Client("s2", "g", instance="S"),  # the same process, started twice
            Client("t", "g", instance="T"),
            Client("e", "h"),
        ]

    @rule(
        number=clients,
        version=st.sampled_from([0, 3, 4, 8, 9]),
        protocols=st.sampled_from([["range"], ["range", "sticky"], ["sticky", "range"], ["odd"]]),
        topics=st.sampled_from([["t"], ["t"], ["t", "u"]]),
        session=st.sampled_from([6_000, 10_000, 30_000, 5_000]),
    )
    def join(self, number, version, protocols, topics, session):
        self.world.join(self.clients[number], version, protocols, topics, session)

    @rule(
        numbers=st.lists(clients, max_size=8, unique=True),
        shares=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    )
    def rebalance(self, numbers, shares):
        """Several clients do what clients do, so that groups become Stable at all."""
        for number in numbers:
            self.world.join(self.clients[number], 9, ["range"], ["t"], 10_000)
        for number in numbers:
            if self.clients[number].id:
                self.world.join(self.clients[number], 9, ["range"], ["t"], 10_000)
        self.world.tick(self.world.now + 6)
        for number in numbers:
            client = self.clients[number]
            self.world.sync(client, client.generation, shares)

    @rule(
        number=clients,
        off=generations,
        shares=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    )
    def sync(self, number, off, shares):
        client = self.clients[number]
        self.world.sync(client, client.generation + off, shares)

    @rule(number=clients, off=generations)
    def heartbeat(self, number, off):
        client = self.clients[number]
        request = HeartbeatRequest(
            group_id=client.group,
            generation_id=client.generation + off,
            member_id=client.id,
            group_instance_id=client.instance,
        )
        self.world.send(client, request, 4)

    @rule(numbers=st.lists(clients, max_size=3), as_admin=st.booleans())
    def leave(self, numbers, as_admin):
        members = [
            MemberIdentity(
                member_id="" if as_admin else self.clients[number].id,
                group_instance_id=self.clients[number].instance,
            )
            for number in numbers
        ]
        self.world.send(self.clients[0], LeaveGroupRequest(group_id="g", members=members), 5)

    @rule(
        number=clients,
        off=generations,
        alone=st.booleans(),
        topic=st.sampled_from(["t", "u"]),
        partition=st.integers(0, 2),
        offset=st.integers(0, 50),
        text=st.sampled_from(["", "note", "much too long a text"]),
    )
    def commit(self, number, off, alone, topic, partition, offset, text):
        client = self.clients[number]
        generation = -1 if alone else client.generation + off
        group = self.world.shard._groups.get(client.group)
        fenced = generation >= 0 and (
            group is None or group.generation != generation or client.id not in group.members
        )
        writes = len(self.world.under_way)
        request = OffsetCommitRequest(
            group_id=client.group,
            generation_id_or_member_epoch=generation,
            member_id="" if alone else client.id,
            group_instance_id=None if alone else client.instance,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=text,
                        )
                    ],
                )
            ],
        )
        self.world.send(client, request, 9)
        if fenced:  # stale commits are never even written
            assert len(self.world.under_way) == writes

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(["t", "u"]))
    def delete_offsets(self, group, topic):
        partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in range(3)]
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)],
        )
        self.world.send(self.clients[0], request, 0)

    @rule(group=st.sampled_from(GROUPS))
    def delete(self, group):
        world = self.world
        ticket = next(world.tickets)
        world.waiting[ticket] = Waiting(self.clients[0], None, "")
        world.take(world.shard.delete(ticket, group, world.now, world.now_ms))

    @rule(topic=st.sampled_from(["t", "u"]))
    def forget_topic(self, topic):
        self.world.forget(topic)

    @rule(writes=st.integers(1, 5))
    def store(self, writes):
        for _ in range(min(writes, len(self.world.under_way))):
            self.world.settle(0, ErrorCode.NONE)

    @rule(writes=st.integers(2, 4))
    def store_backwards(self, writes):
        self.world.settle_backwards(writes)

    @rule(error=errors)
    def fail(self, error):
        if self.world.under_way:
            self.world.settle(0, error)

    @rule(milliseconds=st.sampled_from([1, 500, 3_000, 6_000, 10_000, 60_000, 700_000]))
    def advance(self, milliseconds):
        self.world.tick(self.world.now + milliseconds / 1000)

    @rule(times=st.integers(1, 5))
    def advance_to_the_deadline(self, times):
        for _ in range(times):
            self.world.tick(max(self.world.now, self.world.shard.next_deadline))

    @rule(kept=st.integers(0, 4))
    def crash(self, kept):
        self.world.crash(kept)

    @rule()
    def resign(self):
        self.world.resign()

    @rule()
    def compact(self):
        self.world.compact()

    @invariant()
    def promises_are_kept(self):
        self.world.check()

    def teardown(self):
        self.world.settle_down()


# A failing run is 40 readable lines as it is; shrinking one takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)


def test_the_promises_hold_on_any_history():
    run_state_machine_as_test(
        Groups, settings=settings(COMMON, max_examples=100, stateful_step_count=40)
    )


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_promises_hold_on_long_histories():
    run_state_machine_as_test(
        Groups, settings=settings(COMMON, max_examples=1000, stateful_step_count=100)
    )
