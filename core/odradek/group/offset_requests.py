"""OffsetCommit, OffsetFetch and OffsetDelete, for groups of any kind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from odradek.errors import ErrorCode
from odradek.group.offsets import tombstones
from odradek.group.records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    encode_offset,
    encode_offset_key,
)
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from odradek.group.context import Context
    from odradek.group.effects import LogRecord
    from odradek.group.offsets import GroupOffsets, OffsetStore

__all__ = ["OffsetRequests", "Subscribed", "commit_refused"]

_LONGEST_TEXT = 32_767
"""Bytes of UTF-8 that a string of the record can have, whatever the setting allows."""


class Subscribed(Protocol):
    """What a group of any kind says to those who change its offsets."""

    @property
    def group_id(self) -> str:
        """Whose offsets they are."""

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads `topic`."""


class OffsetRequests:
    """Handles offsets; whether a member may is its group's affair, and asked before.

    `idle` is called with the id of a group whose commit failed: it may have been its first.
    """

    def __init__(self, context: Context, store: OffsetStore, idle: Callable[[str], None]) -> None:
        self._context = context
        self._store = store
        self._idle = idle

    def commit(self, ticket: int, group_id: str, message: OffsetCommitRequest) -> None:
        """Write the offsets of a request that is accepted; it is answered when they are stored."""
        now_ms = self._context.now_ms
        retention = message.retention_time_ms
        expires = -1 if retention < 0 else now_ms + retention
        records: list[LogRecord] = []
        offsets: list[tuple[str, int, CommittedOffset]] = []
        topics = []
        for topic in message.topics:
            results = []
            for asked in topic.partitions:
                number = asked.partition_index
                text = asked.committed_metadata or ""
                error = self._metadata_error(text)
                if not error:
                    offset = CommittedOffset(
                        asked.committed_offset, asked.committed_leader_epoch, text, now_ms, expires
                    )
                    key = encode_offset_key(group_id, topic.name, number)
                    records.append((key, encode_offset(offset)))
                    offsets.append((topic.name, number, offset))
                results.append(
                    OffsetCommitResponsePartition(partition_index=number, error_code=error)
                )
            topics.append(
                OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=results
                )
            )
        response = OffsetCommitResponse(topics=topics)
        if not records:
            self._context.reply(ticket, response)
            return
        pending = self._store.to_change(group_id)
        for name, number, _ in offsets:
            pending.begin(name, number)
        since = self._store.deletions
        self._context.write(
            records, partial(self._committed, ticket, group_id, offsets, since, response)
        )

    def _metadata_error(self, text: str) -> ErrorCode:
        size = len(text)
        if size > self._context.settings.offset_metadata_max_bytes or (
            size > _LONGEST_TEXT // 4 and len(text.encode()) > _LONGEST_TEXT
        ):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(
        self,
        ticket: int,
        group_id: str,
        offsets: Sequence[tuple[str, int, CommittedOffset]],
        since: int,
        response: OffsetCommitResponse,
        error: ErrorCode,
    ) -> None:
        known = self._store.to_change(group_id)
        for name, number, offset in offsets:
            known.finish(name, number)
            if not error:
                known.put(name, number, offset, since)
        if error:
            for topic in response.topics:
                for result in topic.partitions:
                    result.error_code = error
            self._store.tidy(group_id)
            self._idle(group_id)
        self._context.reply(ticket, response)

    def fetch(
        self, asked: OffsetFetchRequestGroup, offsets: GroupOffsets
    ) -> OffsetFetchResponseGroup:
        """Return the offsets in force: all of them where the request's topics are null.

        What was never committed has offset -1 and no error.
        """
        topics = []
        if asked.topics is None:
            for name, partitions in offsets.committed.items():
                found = [_found(number, offset) for number, offset in partitions.items()]
                topics.append(OffsetFetchResponseTopics(name=name, partitions=found))
        else:
            for topic in asked.topics:
                partitions = offsets.committed.get(topic.name, {})
                found = [_found(n, partitions.get(n)) for n in topic.partition_indexes]
                topics.append(
                    OffsetFetchResponseTopics(
                        name=topic.name, topic_id=topic.topic_id, partitions=found
                    )
                )
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)

    def delete(self, ticket: int, group: Subscribed, message: OffsetDeleteRequest) -> None:
        """Delete offsets, except those of topics the group is subscribed to."""
        group_id = group.group_id
        known = set(self._store.of(group_id).partitions())
        doomed: dict[tuple[str, int], None] = {}
        topics = []
        for topic in message.topics:
            error = ErrorCode.NONE
            if group.is_subscribed(topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            results = []
            for asked in topic.partitions:
                number = asked.partition_index
                if not error and (topic.name, number) in known:
                    doomed[topic.name, number] = None
                results.append(
                    OffsetDeleteResponsePartition(partition_index=number, error_code=error)
                )
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
        if not doomed:
            self._context.reply(ticket, OffsetDeleteResponse(topics=topics))
            return

        def deleted(error: ErrorCode) -> None:
            response = OffsetDeleteResponse(error_code=error)
            if not error:
                response.topics = topics
            self._context.reply(ticket, response)

        self.remove(group_id, doomed, deleted)

    def remove(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]],
        outcome: Callable[[ErrorCode], None],
        last: Sequence[LogRecord] = (),
    ) -> None:
        """Write tombstones for these offsets, and `last` behind them."""
        records: list[LogRecord] = [*tombstones(group_id, partitions), *last]
        self._context.write_many(
            records,
            partial(self._removed, group_id, self._store.deletions),
            partial(self._settled, group_id, outcome),
        )

    def _removed(self, group_id: str, since: int, records: Sequence[LogRecord]) -> None:
        offsets = self._store.to_change(group_id)
        for raw, _ in records:
            key = decode_key(raw)
            if isinstance(key, OffsetKey):
                offsets.remove(key.topic, key.partition)
                offsets.buried(key.topic, key.partition, since)

    def _settled(
        self, group_id: str, outcome: Callable[[ErrorCode], None], error: ErrorCode
    ) -> None:
        # A group that loses its last offset so stays until expired ones are looked for, as in
        # Kafka: the request may come again, because its answer was lost.
        self._store.tidy(group_id)
        outcome(error)


def _found(number: int, offset: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if offset is None:
        return OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=-1, metadata=""
        )
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def commit_refused(message: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """Return the answer to a commit that is refused as a whole."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=error
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
