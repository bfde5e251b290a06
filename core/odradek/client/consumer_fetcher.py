"""Fetching ahead: the tasks that fill the buffers of many partitions.

One task (`run`) starts the others: fetches (at most two for each broker, so that partitions whose
position is new need not wait until a fetch that waits for news returns), look-ups of offsets,
renewals of metadata, and checks of leader epochs (KIP-320: after a change of leader the broker is
asked whether the last record read is still in its log).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast
from uuid import UUID

import trio

from odradek.client.cluster import Cluster
from odradek.client.consumer_buffers import PartitionBuffers
from odradek.client.consumer_requests import (
    EpochEnd,
    answered,
    ask_epoch_ends,
    batches_of,
    fetch_request,
)
from odradek.client.errors import (
    ClientClosed,
    NotOffered,
    error_of,
    is_retriable,
    is_stale,
    raise_for,
)
from odradek.client.positions import Position, locate
from odradek.errors import CorruptBatch, ErrorCode, KafkaError, OdradekError
from odradek.types import Buffer
from odradek.wire.api.a01_fetch import FetchResponse, PartitionData

__all__ = ["Fetcher"]

_NO_ID = UUID(int=0)
"""Of every topic, to brokers without topic ids."""
_PURPOSES = "fetch", "fetch-2"
_SHORT_WAIT = 0.02
"""Seconds a broker may wait in the second fetch while other partitions of it are left out,
because their records are not taken yet: they should not wait for the others' news."""

Asked = list[tuple[Position, int]]
"""Positions with the version that was asked for."""


class Fetcher:
    """Fills `buffers` from `cluster`.

    `reset`: where to go on (EARLIEST or LATEST) when a position is not in the log; None raises
    OFFSET_OUT_OF_RANGE. `missing_timeout`: seconds a partition may have no leader. `last_error`:
    why the latest attempt of anything failed; None after a fetch that succeeded.
    """

    def __init__(
        self,
        cluster: Cluster,
        buffers: PartitionBuffers,
        nursery: trio.Nursery,
        *,
        reset: int | None,
        missing_timeout: float,
    ) -> None:
        self.last_error: OdradekError | None = None
        self._settings = buffers.settings
        self._buffers = buffers
        self._cluster = cluster
        self._nursery = nursery
        self._reset = reset
        self.missing_timeout = missing_timeout
        self._lanes: dict[int, dict[int, int]] = {}  # node -> lane -> bytes that may come
        self._renewing = False
        self._stale = False
        self._locating: set[int] = set()
        self._checking: set[int] = set()
        self._backoff = cluster.backoff()

    async def run(self) -> None:
        """Keep fetching; until cancelled or failed."""
        with self._cluster.following(self._topics):
            while self._buffers.failure is None:
                changed = self._buffers.changed
                again = self._start_what_is_due(trio.current_time())
                with trio.move_on_at(again):
                    await changed.wait()

    def _topics(self) -> set[str]:
        return {partition.topic for partition in self._buffers.positions}

    def _start_what_is_due(self, now: float) -> float:
        """Start tasks, and return when to look again if nothing happens."""
        again = float("inf")
        leaderless: set[str] = set()
        to_locate: dict[int, list[Position]] = {}
        to_check: dict[int, list[Position]] = {}
        wanted: dict[int, list[Position]] = {}
        leader_of, topics = self._cluster.metadata.leader, self._cluster.metadata.topics
        for position in self._buffers.positions.values():
            if position.in_flight or position.closing or position.finished:
                continue
            if position.paused or position.buffered >= self._settings.partition_bytes:
                continue
            if position.not_before > now:
                again = min(again, position.not_before)
                continue
            if position.fetched < 0 and position.sought is None:
                continue
            leader = leader_of(position.partition)
            if leader is None:
                leaderless.add(position.partition.topic)
                continue
            topic_id = topics[position.partition.topic].topic_id
            if position.topic_id != topic_id:
                self._meet(position, topic_id)
            if position.fetched < 0:
                to_locate.setdefault(leader.node_id, []).append(position)
            elif position.epoch >= 0 and position.checked < leader.epoch:
                to_check.setdefault(leader.node_id, []).append(position)
            else:
                wanted.setdefault(leader.node_id, []).append(position)
        for node, positions in to_locate.items():
            if node not in self._locating:
                self._locating.add(node)
                self._nursery.start_soon(self._locate, node, _asked(positions))
        for node, positions in to_check.items():
            if node not in self._checking:
                self._checking.add(node)
                self._nursery.start_soon(self._check_epochs, node, _asked(positions))
        self._start_fetches(wanted)
        if (self._stale or leaderless) and not self._renewing:
            self._renewing = True
            self._nursery.start_soon(self._renew, leaderless)
        return again

    def _start_fetches(self, wanted: Mapping[int, list[Position]]) -> None:
        self._buffers.starved = False
        nodes = len(wanted.keys() | self._lanes.keys())
        for node, positions in wanted.items():
            lanes = self._lanes.setdefault(node, {})
            lane = next((lane for lane in range(len(_PURPOSES)) if lane not in lanes), None)
            if lane is None:
                continue
            # half of the buffer at most is on its way, so that every broker has its turn
            share = self._settings.buffer_bytes // (2 * len(_PURPOSES) * nodes)
            size = min(self._settings.fetch_bytes, max(share, 1))
            if not self._has_room(size):
                self._buffers.starved = True
                continue
            left_out = lane > 0 and self._leaves_out(node, positions)
            wait = (
                min(_SHORT_WAIT, self._settings.max_wait) if left_out else self._settings.max_wait
            )
            lanes[lane] = size
            asked = _asked(positions)
            for position in positions:
                position.in_flight = True
            self._nursery.start_soon(self._fetch, node, lane, asked, wait)

    def _has_room(self, size: int) -> bool:
        on_its_way = sum(sum(lanes.values()) for lanes in self._lanes.values())
        if self._buffers.buffered + on_its_way + size <= self._settings.buffer_bytes:
            return True
        self._buffers.discard_paused()  # it must not hold up the others
        return self._buffers.buffered == 0 or not (on_its_way or self._buffers.to_hand_out)

    def _leaves_out(self, node: int, positions: list[Position]) -> bool:
        asked = set(positions)
        for each in self._buffers.positions.values():
            if each not in asked and not (each.in_flight or each.finished or each.paused):
                leader = self._cluster.metadata.leader(each.partition)
                if leader is not None and leader.node_id == node:
                    return True
        return False

    # Tasks

    async def _fetch(self, node: int, lane: int, asked: Asked, wait: float) -> None:
        """Fetch once from one broker and sort in what came."""
        try:
            connection = await self._cluster.connection(node, _PURPOSES[lane])
            metadata = self._cluster.metadata
            epochs: dict[Position, int] = {}
            for position, version in asked:
                leader = metadata.leader(position.partition)
                # Connecting took its time: the offset may be one of a topic that is gone by now.
                if (
                    position.version == version
                    and leader is not None
                    and position.topic_id == metadata.topics[position.partition.topic].topic_id
                ):
                    epochs[position] = leader.epoch
            if epochs:
                request = fetch_request(
                    metadata,
                    epochs,
                    self._settings,
                    max_wait=wait,
                    max_bytes=self._lanes[node][lane],
                )
                timeout = wait + self._cluster.settings.request_timeout
                answer = await connection.call(request, FetchResponse, timeout=timeout)
                raise_for(answer.error_code)
                self.last_error = None
                self._backoff.reset()
                self._sort_in(asked, epochs, answer)
        except OdradekError as error:
            self._failed(asked, error)
        finally:
            lanes = self._lanes[node]
            del lanes[lane]
            if not lanes:
                del self._lanes[node]
            self._settle(asked)

    def _sort_in(self, asked: Asked, epochs: Mapping[Position, int], answer: FetchResponse) -> None:
        current = {
            position.partition: position
            for position, version in asked
            if position.version == version and position in epochs
        }
        for partition, part in answered(self._cluster.metadata, answer):
            position = current.get(partition)
            if position is None:
                continue
            if part.error_code:
                self._refused(position, part)
                continue
            position.missing_since = None
            position.checked = max(position.checked, epochs[position])
            position.high_watermark = part.high_watermark
            position.log_start = part.log_start_offset
            view = memoryview(cast("Buffer", part.records or b""))
            batches, problem = batches_of(position, view, self._settings.check_crcs)
            self._buffers.fill(position, batches)
            if problem is not None:
                where = f"partition {partition} at offset {position.fetched}"
                self._buffers.fail(CorruptBatch(f"{where}: {problem}"))

    def _refused(self, position: Position, part: PartitionData) -> None:
        error = error_of(part.error_code, f"partition {position.partition}")
        now = trio.current_time()
        position.not_before = now + self._cluster.settings.retry_backoff
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(position, f"has no offset {position.fetched}")
            return
        if not _may_pass(error):
            self._buffers.fail(error)
            return
        self.last_error = error
        if is_stale(error):
            self._stale = True
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._missing(position, now)

    def _meet(self, position: Position, topic_id: UUID) -> None:
        """Note which topic a position is in; an offset in another one of its name says nothing."""
        before, position.topic_id = position.topic_id, topic_id
        if position.fetched >= 0 and before not in (None, _NO_ID) and topic_id != _NO_ID:
            self._out_of_range(position, "is of a topic that was deleted and created again")

    def _out_of_range(self, position: Position, what: str) -> None:
        """Begin where the settings say, after what was fetched before is handed out."""
        if self._reset is None:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            self._buffers.fail(KafkaError(code, f"partition {position.partition} {what}"))
            return
        position.version += 1
        position.in_flight = False
        position.fetched, position.epoch, position.checked = -1, -1, -1
        position.sought = self._reset

    async def _locate(self, node: int, asked: Asked) -> None:
        """Look up where positions are that are known by a time only."""
        try:
            times = {each.partition: each.sought for each, _ in asked if each.sought is not None}
            found = await locate(self._cluster, times)
            for position, version in asked:
                if position.version == version and position.partition in found:
                    fresh = position.taken < 0 or not position.ready
                    position.fetched = found[position.partition].offset
                    position.sought = None
                    if fresh and position.holder is None:
                        position.taken = position.fetched
        except OdradekError as error:
            self._failed(asked, error)
        finally:
            self._locating.discard(node)
            self._settle(asked)

    async def _check_epochs(self, node: int, asked: Asked) -> None:
        """Ask a new leader whether its log holds what was read from the old one (KIP-320)."""
        try:
            leaders = {each: self._cluster.metadata.leader(each.partition) for each, _ in asked}
            try:
                ends = await ask_epoch_ends(self._cluster, node, [each for each, _ in asked])
            except NotOffered:
                ends = {}
            for position, version in asked:
                leader = leaders[position]
                if position.version != version or leader is None:
                    continue
                end = ends.get(position.partition)
                if isinstance(end, KafkaError):
                    self._failed([(position, version)], end)
                    continue
                position.checked = leader.epoch
                if end is not None:
                    self._compare(position, end)
        except OdradekError as error:
            self._failed(asked, error)
        finally:
            self._checking.discard(node)
            self._settle(asked)

    def _compare(self, position: Position, end: EpochEnd) -> None:
        if end.end_offset < 0 or end.end_offset >= position.fetched:
            return  # the log agrees, or knows nothing of epochs: OFFSET_OUT_OF_RANGE would tell
        what = (
            f"was cut at offset {end.end_offset}, in front of {position.fetched}: its leader "
            f"changed, and records that were read are gone"
        )
        if self._reset is None:
            where = f"partition {position.partition}"
            self._buffers.fail(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{where} {what}"))
        elif position.next_offset <= end.end_offset:
            if position.holder is not None:
                position.holder.cut()
            self._buffers.discard(position)
            position.fetched, position.epoch = position.next_offset, end.leader_epoch
        else:
            self._buffers.move(position.partition, end.end_offset, end.leader_epoch)

    async def _renew(self, leaderless: set[str]) -> None:
        self._stale = False
        try:
            await self._cluster.renew(leaderless)
        except OdradekError as error:
            self.last_error = error
            if not is_retriable(error):
                self._buffers.fail(error)
        else:
            self._check_missing(leaderless)
            self._buffers.notify()
        await trio.sleep(self._backoff.next())
        self._renewing = False
        self._buffers.notify()

    def _check_missing(self, topics: set[str]) -> None:
        """Give up on partitions that the cluster has not known for too long."""
        now = trio.current_time()
        for position in self._buffers.positions.values():
            if position.partition.topic not in topics:
                continue
            if self._cluster.metadata.leader(position.partition) is not None:
                position.missing_since = None
                continue
            code = self._cluster.metadata.errors.get(position.partition.topic)
            if code is not None and not code.retriable:
                self._buffers.fail(KafkaError(code, f"topic {position.partition.topic!r}"))
            self._missing(position, now)

    def _missing(self, position: Position, now: float) -> None:
        if position.missing_since is None:
            position.missing_since = now
        elif now - position.missing_since > self.missing_timeout:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if position.partition.topic in self._cluster.metadata.topics:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            where = f"partition {position.partition}"
            self._buffers.fail(
                KafkaError(code, f"{where} had no leader for {self.missing_timeout:g} s")
            )

    def _failed(self, asked: Asked, error: OdradekError) -> None:
        self.last_error = error
        if not _may_pass(error) and not self._by_another(error):
            self._buffers.fail(error)
        self._stale = True
        wait = trio.current_time() + self._cluster.settings.retry_backoff
        for position, version in asked:
            if position.version == version:
                position.not_before = wait

    def _by_another(self, error: OdradekError) -> bool:
        """Whether somebody closed the connection, and not the cluster: another may be made."""
        return isinstance(error, ClientClosed) and not self._cluster.closed

    def _settle(self, asked: Asked) -> None:
        for position, version in asked:
            if position.version == version:
                position.in_flight = False
        if self._buffers.finished:
            self._buffers.announce()
        self._buffers.notify()


def _may_pass(error: OdradekError) -> bool:
    """Whether to ask again. Kafka's table has UNKNOWN_SERVER_ERROR as final, since a request that
    writes may have written; a broker that failed once to answer a question may answer it yet."""
    if isinstance(error, KafkaError) and error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return True
    return is_retriable(error)


def _asked(positions: Iterable[Position]) -> Asked:
    return [(position, position.version) for position in positions]
