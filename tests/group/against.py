"""The commands of scenarios, sent to a real broker; its answers, to compare the machine's with."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from itertools import count
from select import select
from time import monotonic
from uuid import uuid4

from tests.group.scenario import Scenario

from odradek.group.shard import GroupShard
from odradek.wire import API, Message, decode_response, encode_request
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from odradek.wire.api.a16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from odradek.wire.api.a42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

UUID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ANSWER_WITHIN = 0.4
"""Seconds after which a request is taken to wait. A broker that is slower than that makes the
comparison fail; none that is faster lets a wrong one pass."""


class Local(Scenario):
    """The machine, with ids such as a broker gives."""

    def new_shard(self) -> GroupShard:
        self.shard = GroupShard(self.settings, lambda: str(uuid4()))
        self.effects(self.shard.start(*self.clock))
        return self.shard


class Remote(Scenario):
    """A broker. Groups get names of their own, so that a broker serves many scenarios."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.prefix = f"{uuid4().hex}_"
        self.correlation = count(1)
        self.sent: dict[socket.socket, tuple[str, type[Message], int]] = {}
        super().__init__()

    def new_shard(self) -> GroupShard:
        return GroupShard(self.settings, str)  # not asked

    def name(self, group: str) -> str:
        return self.prefix + group if group else ""

    def open(self, message: Message, version: int, client_id: str) -> socket.socket:
        connection = socket.create_connection(self.address, 10)
        correlation = next(self.correlation)
        parts = encode_request(
            message, version=version, correlation_id=correlation, client_id=client_id
        )
        connection.sendall(b"".join(parts))  # type: ignore[arg-type]  # no records in it
        return connection

    def receive(self, connection: socket.socket, response: type[Message], version: int) -> Message:
        with connection, connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            return decode_response(response, version, memoryview(stream.read(size)))

    def call(self, message: Message, version: int) -> Message:
        connection = self.open(message, version, "admin")
        return self.receive(connection, API[message.api_key].response, version)

    def ready(self) -> None:
        """Wait until the broker coordinates groups."""
        end = monotonic() + 30
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
            answer = self.call(request, 4)
            assert isinstance(answer, FindCoordinatorResponse)
            fetched = self.fetch(OffsetFetchRequestGroup(group_id="any", topics=None))
            if not answer.coordinators[0].error_code and not fetched.error_code:
                return
            assert monotonic() < end

    def send(self, name: str, message: Message, version: int) -> None:
        message.group_id = self.name(message.group_id)  # type: ignore[attr-defined]
        connection = self.open(message, version, name)
        self.sent[connection] = name, API[message.api_key].response, version
        self.collect(ANSWER_WITHIN, connection)
        if connection in self.sent:
            self.out.append(f"{name}: waits")

    def do_advance(self, words: list[str]) -> None:
        self.collect(int(words[0]) / 1000, None)

    def collect(self, seconds: float, awaited: socket.socket | None) -> None:
        """Take the answers that come, until shortly after the awaited one."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            for connection in select(list(self.sent), [], [], left)[0]:
                name, response, version = self.sent.pop(connection)
                told = self.told(name, self.receive(connection, response, version))
                self.out.append(f"{name}: {told}")
                if connection is awaited:
                    end = min(end, monotonic() + 0.1)

    def fetch(self, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        asked.group_id = self.name(asked.group_id)
        answer = self.call(OffsetFetchRequest(groups=[asked]), 8)
        assert isinstance(answer, OffsetFetchResponse)
        return answer.groups[0]

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        answer = self.call(DescribeGroupsRequest(groups=[self.name(group_id)]), version)
        assert isinstance(answer, DescribeGroupsResponse)
        return answer.groups[0]

    def listed(self, states: list[str], types: list[str]) -> Iterable[ListedGroup]:
        answer = self.call(ListGroupsRequest(states_filter=states, types_filter=types), 5)
        assert isinstance(answer, ListGroupsResponse)
        return [group for group in answer.groups if group.group_id.startswith(self.prefix)]

    def do_delete(self, words: list[str]) -> None:
        answer = self.call(DeleteGroupsRequest(groups_names=[self.name(words[0])]), 2)
        assert isinstance(answer, DeleteGroupsResponse)
        self.out.append(f"admin: {self.told('admin', answer.results[0])}")

    def close(self) -> None:
        for connection in self.sent:
            connection.close()


def compare(local: Local, remote: Remote, command: str) -> None:
    """Give both the same command, and as much time, and compare what comes of it."""
    local.out, remote.out = [], []
    began = monotonic()
    remote.run(command)
    if not command.startswith("advance"):
        local.run(command)
    local.run(f"advance {round((monotonic() - began) * 1000)}")
    ours = [line for line in local.out if not line.startswith("at ")]
    for waits in [line for line in ours if line.endswith(": waits")]:
        if any(line.startswith(waits.split(":")[0] + ": ") for line in ours if line != waits):
            ours.remove(waits)  # it was answered while the broker's answer was waited for
    assert plain(ours) == plain(remote.out, remote.prefix), command


def plain(lines: list[str], prefix: str = "") -> list[str]:
    """Return lines without what may differ: ids, and the order of members and of answers."""

    def sorted_members(match: re.Match[str]) -> str:
        return "members=" + ",".join(sorted(match[1].split(",")))

    return sorted(
        re.sub(r"members=(\S+)", sorted_members, UUID.sub("-#", line).replace(prefix or "\0", ""))
        for line in lines
    )
