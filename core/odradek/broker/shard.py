"""A shard at work: the groups of one partition of `__consumer_offsets`, and that partition's log.

    loading  -> active       every record of the log is replayed
    loading  -> closed       the log was closed or cannot be read
    active   -> closed       the log was closed, is offline or another writer's, or a defect

The machine (`odradek.group.GroupShard`) decides; here its writes become batches in the log, and
the log's high watermark becomes `stored`. Nothing waits here: a request is answered at once, or
by a `PendingReply` that the machine answers later. All writes of one moment are in flight at the
same time and share the log's sync.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import trio
from attrs import evolve

from odradek.broker.group_errors import failed_append, refusal
from odradek.broker.waiting import Pending
from odradek.contracts.storage import Corrupt, Fenced, Full, StorageError, Unavailable
from odradek.errors import ErrorCode, KafkaError
from odradek.group.effects import NOTHING, Effects, Request, Write
from odradek.group.records import GroupKey, OffsetKey, decode_key
from odradek.group.shard import GroupShard
from odradek.record import BatchBuilder, decode_records, parse_header, scan
from odradek.wire import Message, Struct
from odradek.wire.api.a11_join_group import JoinGroupRequest
from odradek.wire.api.a14_sync_group import SyncGroupRequest
from odradek.wire.api.a42_delete_groups import DeletableGroupResult

if TYPE_CHECKING:
    from odradek.broker.groups import Groups
    from odradek.log.partition import PartitionLog

__all__ = ["PendingReply", "Shard"]

logger = logging.getLogger(__name__)

READ_BYTES = 128 * 1024
"""Read from the log at once while it is replayed: checking as much takes some 10 ms at most."""

RECORDS_PER_TURN = 200
"""Records replayed before other tasks get a turn: about a millisecond."""

WARN_EVERY_S = 60.0
"""Between two warnings of one kind: clients can bring them about as often as they like."""

SHOWN_ID = 200
"""Characters of a group's id that a log line shows."""

REPLY_BYTES = 500
"""Memory that a waiting request takes besides what it carries, about."""


class PendingReply(Pending):
    """A request that its group has not answered yet."""

    __slots__ = ("_answered", "_on_reply", "_request", "_shard", "_ticket", "_version",
                 "group_id", "reply", "weight")  # fmt: skip

    def __init__(
        self, shard: Shard, ticket: int, request: Message | str, version: int, weight: int
    ) -> None:
        """`request`: or the id of a group that is to be deleted."""
        self._shard = shard
        self._ticket = ticket
        self._request = request
        self._version = version
        self._answered: trio.Event | None = None
        self._on_reply: Callable[[Message], Message] | None = None
        self.group_id: str | None = None
        self.weight = weight
        self.reply: Struct | None = None

    def answer(self, reply: Struct) -> None:
        """Take the reply; the first one counts."""
        if self.reply is None:
            self.reply = reply
            if self._answered is not None:
                self._answered.set()

    def refuse(self, error: ErrorCode) -> None:
        """Answer with an error."""
        request = self._request
        self.answer(
            DeletableGroupResult(group_id=request, error_code=error)
            if isinstance(request, str)
            else refusal(request, self._version, error)
        )

    def then(self, change: Callable[[Message], Message]) -> PendingReply:
        """Have the response changed by a function before it is sent."""
        self._on_reply = change
        return self

    def response(self) -> Message | PendingReply:
        """Return the response if it is there, and otherwise this, for a handler to return."""
        return self if self.reply is None else self._response()

    def _response(self) -> Message:
        assert isinstance(self.reply, Message)
        return self.reply if self._on_reply is None else self._on_reply(self.reply)

    def ready(self) -> bool:
        """Whether the reply is there."""
        return self.reply is not None

    async def wait(self) -> None:
        """Wait for it. Its group bounds that: by the time a rebalance may take, or the log's."""
        if self.reply is not None:
            return
        self._answered = trio.Event()
        try:
            await self._answered.wait()
        except BaseException:
            self._shard.abandon(self._ticket)  # the connection is gone
            raise

    def hurry(self) -> None:
        """Send those away who wait for other members; a write is soon done by itself."""
        if isinstance(self._request, (JoinGroupRequest, SyncGroupRequest)):
            self.refuse(ErrorCode.NOT_COORDINATOR)
            self._shard.abandon(self._ticket)

    async def finish(self) -> Message:
        """Return the response."""
        return self._response()


class _Flight(NamedTuple):
    """A write whose fate the machine does not know: `end_offset` once committed, or an error."""

    write_id: int
    end_offset: int
    error: ErrorCode = ErrorCode.NONE


class Shard:
    """One shard. `active`: it answers; `loading`: it will. Built by `Groups`."""

    def __init__(self, groups: Groups, number: int, log: PartitionLog) -> None:
        self._groups = groups
        limit = min(log.settings.max_message_bytes, log.settings.segment_bytes)
        settings = groups.settings
        batch = min(settings.batch_max_bytes, limit // 4)
        self._machine = GroupShard(
            evolve(settings, batch_max_bytes=batch),
            groups.new_id,
            groups.member_budget,
            groups.counts_from,
        )
        self._warned: dict[str, float] = {}
        self._waiting: dict[int, PendingReply] = {}
        self._flights: deque[_Flight] = deque()
        self._telling = False
        self._loading = trio.CancelScope()
        self._forget: set[str] = set()
        self.number = number
        self.log = log
        self.loading = True
        self.active = False
        self.failure: Exception | None = None
        """Why it could not be loaded."""
        self.position = log.log_start_offset
        """How far the log is replayed."""

    @property
    def next_deadline(self) -> float:
        """When `tick` is to be called, on trio's clock."""
        return self._machine.next_deadline

    @property
    def machine(self) -> GroupShard:
        """The groups, to be read. Raises KafkaError while they cannot be."""
        self.check()
        return self._machine

    def check(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless it is active."""
        if not self.active:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if self.loading
                else ErrorCode.NOT_COORDINATOR
            )

    # -- opening and closing -----------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether there is nothing to replay."""
        return self.log.log_start_offset == self.log.high_watermark

    def start(self) -> None:
        """Answer requests from now on: everything is replayed."""
        self.loading = False
        self.active = True
        self.log.watch(self)
        groups = self._groups
        self._call(self._machine.start, trio.current_time(), groups.now_ms(), groups.topic_exists)
        if self._forget and self.active:
            self.forget_topics(self._forget)
        if self.log.failure is not None:
            self.close(ErrorCode.NOT_COORDINATOR)

    async def load(self) -> None:
        """Replay the log and start. Raises StorageError and KafkaError for what is in its way.

        Returns without having started when the shard is closed meanwhile.
        """
        with self._loading:
            records = 0
            began = trio.current_time()
            self.position = self.log.log_start_offset
            while self.position < self.log.high_watermark:
                self.position, count = await self._replay_from(self.position)
                records += count
            if self.loading:
                self.start()
                logger.info(
                    "partition %d of %s: %d records of groups loaded in %.2f s",
                    self.number,
                    self.log.topic,
                    records,
                    trio.current_time() - began,
                )

    async def _replay_from(self, offset: int) -> tuple[int, int]:
        """Replay one read; return where the next begins, and how many records it had."""
        found = await self.log.read(offset, READ_BYTES)
        if found.data is None:
            raise Corrupt(f"nothing to read at offset {offset}, before the end of the log")
        with found.data as data:
            view = memoryview(b"".join(data.views()))
        batches = scan(view, verify=True)
        if not batches.metas:
            assert batches.problem is not None
            raise Corrupt(f"at offset {offset}: {batches.problem.text}")
        count = 0
        for meta, position in zip(batches.metas, batches.positions, strict=True):
            if meta.control:
                continue
            for record in decode_records(view, position, verify=False):
                if record.offset < offset or record.key is None:
                    continue
                self._machine.replay(record.key, record.value, record.timestamp)
                count += 1
                if count % RECORDS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        return batches.metas[-1].next_offset, count

    def close(self, error: ErrorCode) -> None:
        """Answer everybody who waits with `error`, and nobody any more. Idempotent."""
        if not (self.active or self.loading):
            return
        was_active = self.active
        self.active = self.loading = False
        self._loading.cancel()
        self.log.unwatch(self)
        self._flights.clear()
        if was_active:
            try:
                for reply in self._machine.resign(error).replies:
                    self._reply(reply.ticket, reply.message)
            except Exception as defect:
                logger.error("a defect while groups are let go", exc_info=defect)
        for ticket in tuple(self._waiting):
            self._waiting[ticket].refuse(error)
            self.abandon(ticket)

    # -- requests ----------------------------------------------------------------------------

    def submit(
        self, request: Message, version: int, client_id: str, client_host: str, size: int
    ) -> PendingReply:
        """Hand a request to its group; it may be answered already when this returns.

        `size`: bytes that the request carries. Raises KafkaError: what `check` raises, and for a
        JoinGroup or SyncGroup, which may wait long, COORDINATOR_NOT_AVAILABLE when too much of its
        group, or altogether, waits for other members already.
        """
        self.check()
        group_id = None
        if isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
            group_id = request.group_id
            if not self._groups.may_wait(group_id, REPLY_BYTES + size):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait")
        waiting = self._wait_for(request, version, size, group_id)
        asked = Request(waiting._ticket, request, version, client_id, client_host)
        groups = self._groups
        self._call(self._machine.handle, asked, trio.current_time(), groups.now_ms())
        return waiting

    def delete(self, group_id: str) -> PendingReply:
        """Delete a group; the reply is a DeletableGroupResult. Raises as `submit`."""
        self.check()
        waiting = self._wait_for(group_id, 0, len(group_id))
        now_ms = self._groups.now_ms()
        self._call(self._machine.delete, waiting._ticket, group_id, trio.current_time(), now_ms)
        return waiting

    def _wait_for(
        self, request: Message | str, version: int, size: int, group_id: str | None = None
    ) -> PendingReply:
        """Count the request as waiting; in the account of `group_id`, where one is given."""
        ticket = next(self._groups.tickets)
        waiting = PendingReply(self, ticket, request, version, REPLY_BYTES + size)
        self._waiting[ticket] = waiting
        if group_id is not None:
            self._groups.count_waiting(group_id, waiting.weight)
            waiting.group_id = group_id
        return waiting

    def abandon(self, ticket: int) -> None:
        """Nobody waits for this reply any more. Idempotent."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None and waiting.group_id is not None:
            self._groups.count_waiting(waiting.group_id, -waiting.weight)

    def forget_topics(self, names: set[str]) -> None:
        """Drop the offsets of deleted topics, now or when everything is replayed."""
        if self.loading:
            self._forget |= names
        elif self.active:
            now_ms = self._groups.now_ms()
            self._call(self._machine.forget_topics, names, trio.current_time(), now_ms)

    def tick(self, now: float) -> None:
        """Let pass what is due."""
        self._call(self._machine.tick, now, self._groups.now_ms())

    # -- effects -----------------------------------------------------------------------------

    def _call(self, method: Callable[..., Effects], *args: object) -> None:
        """Call the machine and do what it says.

        A defect in it must not take the broker down, and its state is not to be trusted after
        one: the shard is closed, and built again from its log.
        """
        try:
            self._carry_out(method(*args))
        except Exception as defect:
            logger.error(
                "a defect: the groups of partition %d are loaded again", self.number,
                exc_info=defect,
            )  # fmt: skip
            self.close(ErrorCode.NOT_COORDINATOR)
            self._groups.reopen(self)

    def _carry_out(self, effects: Effects) -> None:
        for reply in effects.replies:
            self._reply(reply.ticket, reply.message)
        for write in effects.writes:
            self._append(write)
            if not self.active:
                return
        self._tell()
        if self.active and self._machine.next_deadline < self._groups.wake_at:
            self._groups.wake(self._machine.next_deadline)

    def _reply(self, ticket: int, message: Struct) -> None:
        waiting = self._waiting.get(ticket)
        if waiting is not None:
            waiting.answer(message)
            self.abandon(ticket)

    def _append(self, write: Write) -> None:
        """Append a write as one batch. Its fate comes in the order of the writes, by `_tell`."""
        log = self.log
        settings = log.settings
        builder = BatchBuilder(min(settings.max_message_bytes, settings.segment_bytes))
        for key, value in write.records:
            if not builder.append(write.timestamp_ms, key, value):
                # MESSAGE_TOO_LARGE in the log; Kafka tells a group's client of it by this code.
                self._warn(
                    "the records of group %r in partition %d take %d bytes, more than "
                    "max.message.bytes of %s: the request is refused",
                    _group_of(write)[:SHOWN_ID],
                    self.number,
                    sum(len(k) + len(v or b"") for k, v in write.records),
                    log.topic,
                )
                self._flights.append(_Flight(write.id, -1, ErrorCode.UNKNOWN_SERVER_ERROR))
                return
        batch = builder.build()
        try:
            done = log.append(parse_header(batch), batch, self._groups.now_ms())
        except (Full, Unavailable) as error:
            self._flights.append(_Flight(write.id, -1, failed_append(error)))
        except StorageError as error:
            if isinstance(error, Fenced):
                logger.warning("partition %d of %s has another leader", self.number, log.topic)
            self.close(failed_append(error))
        else:
            self._flights.append(_Flight(write.id, done.end_offset))

    def _tell(self) -> None:
        """Tell the machine of writes whose fate is known, in their order."""
        if self._telling:
            return  # what it answers may append again: the loop below comes to that
        self._telling = True
        try:
            flights = self._flights
            now = trio.current_time()
            now_ms = self._groups.now_ms()
            while flights and self.active:
                write_id, end_offset, error = flights[0]
                if error is ErrorCode.NONE:
                    if self.log.high_watermark < end_offset:
                        break
                    flights.popleft()
                    effects = self._machine.stored(write_id, now, now_ms)
                else:
                    flights.popleft()
                    effects = self._machine.failed(write_id, error, now, now_ms)
                    if self._machine.forgetting:
                        self._warn(
                            "partition %d of %s: the offsets of deleted topics in %d groups "
                            "cannot be removed yet (%s); it is tried again",
                            self.number,
                            self.log.topic,
                            self._machine.forgetting,
                            error.name,
                        )
                self._carry_out(effects)
        finally:
            self._telling = False

    def _warn(self, text: str, *args: object) -> None:
        """Log a warning, unless the same was told a moment ago."""
        now = trio.current_time()
        if now >= self._warned.get(text, now):
            self._warned[text] = now + WARN_EVERY_S
            logger.warning(text, *args)

    def advanced(self, log: PartitionLog) -> None:
        """See `Watcher`: writes were committed, or the log failed."""
        if self._flights:
            self._call(_nothing)
        if log.failure is not None:
            # Whether the writes in flight survived is unknown: the next replay tells.
            self.close(ErrorCode.NOT_COORDINATOR)


def _nothing() -> Effects:
    return NOTHING


def _group_of(write: Write) -> str:
    key = decode_key(write.records[0][0])
    return key.group if isinstance(key, (OffsetKey, GroupKey)) else ""
