"""Consumer groups: heartbeats of many groups, a storm of joins, commits, loading.

The driver speaks the protocol over plain sockets and encodes what it repeats only once, so that
it takes little of the machine from the broker. Each member has a connection of its own, as every
client library does it. What the broker uses is read from its process.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from attrs import define, field

from bench.target import Started, started
from odradek.wire import Message, decode_response, encode_request
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.api.a19_create_topics import CreatableTopic, CreateTopicsRequest

__all__ = [
    "Wire",
    "answered",
    "commits",
    "encoded",
    "fill_offsets",
    "heartbeats",
    "joins",
    "loading",
]

Figures = dict[str, float]

HEARTBEAT_S = 3.0
"""What Java's client, librdkafka and kafka-python wait between two heartbeats by default."""

JOIN, SYNC, HEARTBEAT, COMMIT = 3, 3, 3, 7
"""Versions: those of librdkafka, or near; of JoinGroup the last that lets a member in at once."""

REBALANCE_IN_PROGRESS = 27
ASSIGNMENT = bytes(60)
SUBSCRIPTION = bytes(40)


class Wire:
    """One blocking connection; non-blocking once it is given to a selector."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()

    def send(self, request: Message, version: int) -> None:
        """Send a request."""
        self.socket.sendall(encoded(request, version))

    def frame(self) -> bytes:
        """Return the next whole frame without its size, once it is here."""
        while True:
            found = self.buffered()
            if found is not None:
                return found
            self.fill()

    def fill(self) -> None:
        """Take what has arrived, or wait for it. Raises ConnectionError at the end."""
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError("the broker closed the connection")
        self.received += more

    def buffered(self) -> bytes | None:
        """Return the next whole frame without its size, if it is here."""
        if len(self.received) < 4:
            return None
        end = 4 + int.from_bytes(self.received[:4])
        if len(self.received) < end:
            return None
        frame = bytes(self.received[4:end])
        del self.received[:end]
        return frame


def encoded(request: Message, version: int) -> bytes:
    """Return a request as the bytes of its frame."""
    return b"".join(encode_request(request, version, 1, "bench"))  # type: ignore[arg-type]  # no part is a range of a file


@define
class Member:
    """A member as a client library behaves: join, sync, rejoin when told, heartbeat."""

    group: str
    wire: Wire
    id: str = ""
    generation: int = -1
    state: str = field(default="new")
    joins: int = 0

    def join(self) -> None:
        self.state = "joining"
        self.joins += 1
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        )
        self.wire.send(request, JOIN)

    def heartbeat(self) -> bytes:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )
        return encoded(request, HEARTBEAT)

    def take(self, frame: bytes) -> None:
        """Take a response; go on as the protocol wants."""
        if self.state == "joining":
            joined = decode_response(JoinGroupResponse, JOIN, frame)
            if joined.error_code:
                raise RuntimeError(f"JoinGroup: error {joined.error_code}")
            self.id = joined.member_id
            self.generation = joined.generation_id
            self.state = "syncing"
            assignments = [
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=ASSIGNMENT)
                for each in joined.members
            ]
            request = SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                assignments=assignments,
            )
            self.wire.send(request, SYNC)
        elif self.state == "syncing":
            error = decode_response(SyncGroupResponse, SYNC, frame).error_code
            if error == REBALANCE_IN_PROGRESS:
                self.join()
            elif error:
                raise RuntimeError(f"SyncGroup: error {error}")
            else:
                self.state = "stable"
        elif frame[-2:] == b"\0\0":
            pass  # a heartbeat that found nothing new
        elif int.from_bytes(frame[-2:]) == REBALANCE_IN_PROGRESS:
            self.join()
        else:
            raise RuntimeError(f"Heartbeat: error {int.from_bytes(frame[-2:])}")


class Crowd:
    """Members on one selector."""

    def __init__(self, address: str, groups: Sequence[str]) -> None:
        self.members = [Member(group, Wire(address)) for group in groups]
        self._selector = selectors.DefaultSelector()
        for member in self.members:
            self._selector.register(member.wire.socket, selectors.EVENT_READ, member)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.close()
        for member in self.members:
            member.wire.socket.close()

    def serve(self, timeout: float) -> None:
        """Take what is there, waiting at most `timeout` seconds for it."""
        for key, _ in self._selector.select(timeout):
            member: Member = key.data
            member.wire.fill()
            while (frame := member.wire.buffered()) is not None:
                member.take(frame)

    @property
    def settled(self) -> bool:
        """Whether every group is stable, in one generation."""
        generations: dict[str, int] = {}
        return all(
            member.state == "stable"
            and generations.setdefault(member.group, member.generation) == member.generation
            for member in self.members
        )

    def settle(self, patience: float = 60) -> float:
        """Join all at once and return the seconds until every group is stable."""
        begun = time.perf_counter()
        for member in self.members:
            member.join()
        beat = begun + HEARTBEAT_S
        while not self.settled:
            now = time.perf_counter()
            if now - begun > patience:
                raise RuntimeError("the groups do not settle")
            if now >= beat:
                beat += HEARTBEAT_S
                for member in self.members:
                    if member.state == "stable":
                        member.wire.socket.sendall(member.heartbeat())
            self.serve(min(0.05, max(beat - now, 0)))
        return time.perf_counter() - begun

    def beat(self, seconds: float) -> int:
        """Heartbeat evenly for a while; return how many were sent."""
        begun = time.perf_counter()
        step = HEARTBEAT_S / len(self.members)
        due = [
            (begun + number * step, number, member.heartbeat(), member)
            for number, member in enumerate(self.members)
        ]
        heapq.heapify(due)
        sent = 0
        while (now := time.perf_counter()) - begun < seconds:
            while due[0][0] <= now:
                at, number, frame, member = due[0]
                member.wire.socket.sendall(frame)
                heapq.heapreplace(due, (at + HEARTBEAT_S, number, frame, member))
                sent += 1
            self.serve(max(due[0][0] - time.perf_counter(), 0))
        return sent


@contextmanager
def coordinator(*settings: str) -> Iterator[Started]:
    """A broker that has its offsets topic, and room for many connections of one address."""
    with started(settings=["limits.connections_per_address_max=10000", *settings]) as broker:
        wire = Wire(broker.bootstrap)
        wire.send(FindCoordinatorRequest(key="any"), 2)
        wire.frame()
        wire.socket.close()
        yield broker


def heartbeats(groups: int = 1000, members: int = 3, seconds: float = 30) -> Figures:
    """What stable groups cost: every member heartbeats each 3 s."""
    names = [f"group-{number % groups}" for number in range(groups * members)]
    with coordinator() as broker, Crowd(broker.bootstrap, names) as crowd:
        settled = crowd.settle()
        crowd.beat(HEARTBEAT_S)
        cpu = broker.cpu_seconds() or 0.0
        begun = time.perf_counter()
        sent = crowd.beat(seconds)
        took = time.perf_counter() - begun
        used = (broker.cpu_seconds() or 0.0) - cpu
        time.sleep(1)
        return {
            "heartbeats/s": sent / took,
            "broker CPU %": 100 * used / took,
            "CPU us/heartbeat": 1e6 * used / sent,
            "all groups settled s": settled,
            "resident MB": (broker.resident_bytes() or 0) / 1e6,
        }


def joins(members: int = 100) -> Figures:
    """Members of one group that all start at once, until each has its assignment."""
    figures: Figures = {}
    for delay in (0, 3000):
        with (
            coordinator(f"groups.initial_rebalance_delay_ms={delay}") as broker,
            Crowd(broker.bootstrap, ["group"] * members) as crowd,
        ):
            cpu = broker.cpu_seconds() or 0.0
            took = crowd.settle()
            used = (broker.cpu_seconds() or 0.0) - cpu
            figures[f"settled s, delay {delay} ms"] = took
            figures[f"generations, delay {delay} ms"] = crowd.members[0].generation
            figures[f"broker CPU s, delay {delay} ms"] = used
    return figures


def _commit(group: str) -> bytes:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=12345, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name="topic", partitions=[partition])
    return encoded(OffsetCommitRequest(group_id=group, topics=[topic]), COMMIT)


def _create_topic(broker: Started) -> None:
    wire = Wire(broker.bootstrap)
    topic = CreatableTopic(name="topic", num_partitions=1, replication_factor=1)
    wire.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
    wire.frame()
    wire.socket.close()


def _pump(wires: Sequence[Wire], frames: Sequence[bytes], window: int, seconds: float) -> int:
    """Commit by each of the connections, `window` of them under way; return how many in all."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for wire, frame in zip(wires, frames, strict=True):
            selector.register(wire.socket, selectors.EVENT_READ, (wire, frame))
            wire.socket.sendall(frame * window)
        until = time.perf_counter() + seconds
        owed = window * len(wires)
        while owed:
            for key, _ in selector.select(1):
                wire, frame = key.data
                wire.fill()
                count = 0
                while (answer := wire.buffered()) is not None:
                    if answer[-2:] != b"\0\0":
                        raise RuntimeError(
                            f"OffsetCommit: error {struct.unpack('!h', answer[-2:])}"
                        )
                    count += 1
                done += count
                if time.perf_counter() < until:
                    wire.socket.sendall(frame * count)
                else:
                    owed -= count
    return done


def commits(seconds: float = 5) -> Figures:
    """Offset commits with durability = ack: one after the other, of many groups, pipelined."""
    figures: Figures = {}
    with ExitStack() as stack:
        broker = stack.enter_context(coordinator())
        _create_topic(broker)
        for name, groups, window in (
            ("one by one", 1, 1),
            ("100 groups", 100, 1),
            ("8 groups, 64 pipelined", 8, 64),
        ):
            wires = [Wire(broker.bootstrap) for _ in range(groups)]
            frames = [_commit(f"group-{number}") for number in range(groups)]
            cpu = broker.cpu_seconds() or 0.0
            begun = time.perf_counter()
            done = _pump(wires, frames, window, seconds)
            took = time.perf_counter() - begun
            used = (broker.cpu_seconds() or 0.0) - cpu
            figures[f"commits/s, {name}"] = done / took
            figures[f"CPU us/commit, {name}"] = 1e6 * used / done
            for wire in wires:
                wire.socket.close()
    return figures


def fill_offsets(broker: Started, records: int) -> int:
    """Commit at least so many offsets, of few groups; return how many."""
    _create_topic(broker)
    wires = [Wire(broker.bootstrap) for _ in range(8)]
    wires[0].send(FindCoordinatorRequest(key="any"), 2)
    wires[0].frame()
    frames = [_commit(f"group-{number}") for number in range(8)]
    written = 0
    while written < records:
        written += _pump(wires, frames, 64, 1.0)
    for wire in wires:
        wire.socket.close()
    return written


def answered(broker: Started) -> tuple[float, list[float]]:
    """Ask for a group until its coordinator is loaded.

    Returns how long it took, and how long each answer did, in seconds.
    """
    begun = time.perf_counter()
    wire = Wire(broker.bootstrap)
    answers: list[float] = []
    while True:
        asked = time.perf_counter()
        wire.socket.sendall(_commit("group-0"))
        error = int.from_bytes(wire.frame()[-2:])
        answers.append(time.perf_counter() - asked)
        if not error:
            wire.socket.close()
            return time.perf_counter() - begun, answers
        time.sleep(0.01)


def loading(records: int = 200_000) -> Figures:
    """A start with a long log of commits: how soon its groups are answered for."""
    import shutil
    import tempfile
    from pathlib import Path

    root = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    settings = ["groups.offsets_partitions=1"]
    try:
        with started(directory=root, settings=settings) as broker:
            written = fill_offsets(broker, records)
        with started(directory=root, settings=settings) as broker:
            took, answers = answered(broker)
        return {
            "ready s": broker.to_ready,
            "loaded s": took,
            "records/s": written / took,
            "answer while loading, median ms": 1000 * median(answers),
            "answer while loading, longest ms": 1000 * max(answers),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)
