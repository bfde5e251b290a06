"""The committed offsets of every group of a shard, whatever machine the group is run by.

An offset is in force once the write that carries it is stored. Until then it is only counted as
pending, so that neither expiry nor deletion overlooks it: a tombstone must be written for an
offset whose record comes before it in the log.

An offset whose topic was deleted is *doomed*: out of force, but a tombstone for it is not in the
log yet. Deletions are numbered, and a group takes note of them when it is next looked at; the
number tells a commit that was under way when its topic went from one to the next topic of that
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.group.records import CommittedOffset, encode_offset_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["NO_OFFSETS", "GroupOffsets", "OffsetStore", "tombstones"]


class GroupOffsets:
    """The offsets of one group, by topic and partition.

    `deletions` is the number of the last deletion of topics that it has taken note of; `doomed`
    has, for each offset, the number of the one that it fell to.
    """

    __slots__ = ("committed", "deletions", "doomed", "pending")

    def __init__(self, deletions: int = 0) -> None:
        self.deletions = deletions
        self.doomed: dict[tuple[str, int], int] = {}
        self.committed: dict[str, dict[int, CommittedOffset]] = {}
        self.pending: dict[tuple[str, int], int] = {}  # how many commits are under way

    def __len__(self) -> int:
        """How many partitions have an offset in force, are about to, or had: each by itself."""
        return sum(map(len, self.committed.values())) + len(self.pending) + len(self.doomed)

    def __bool__(self) -> bool:
        return bool(self.committed or self.pending or self.doomed)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return the offset in force, or None."""
        partitions = self.committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, offset: CommittedOffset, since: int) -> None:
        """Put an offset in force, unless its topic was deleted after deletion number `since`."""
        if self.doomed:
            if self.doomed.get((topic, partition), 0) > since:
                return
            self.doomed.pop((topic, partition), None)
        self.committed.setdefault(topic, {})[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        """Remove an offset; nothing when there is none."""
        partitions = self.committed.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.committed[topic]

    def begin(self, topic: str, partition: int) -> None:
        """Count a commit that is under way."""
        key = topic, partition
        self.pending[key] = self.pending.get(key, 0) + 1

    def finish(self, topic: str, partition: int) -> None:
        """Count it no more."""
        key = topic, partition
        left = self.pending[key] - 1
        if left:
            self.pending[key] = left
        else:
            del self.pending[key]

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Name each partition of which the log has an offset, or is about to."""
        for topic, partitions in self.committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self.pending:
            if self.get(topic, partition) is None:
                yield topic, partition
        for key in self.doomed:
            if key not in self.pending:
                yield key

    def forget(self, deleted: Mapping[str, int], deletions: int) -> None:
        """Take note of deleted topics, each with the number of its deletion."""
        for topic in [name for name in self.committed if deleted.get(name, 0) > self.deletions]:
            for partition in self.committed.pop(topic):
                self.doomed[topic, partition] = deleted[topic]
        for topic, partition in self.pending:
            if deleted.get(topic, 0) > self.deletions:
                self.doomed[topic, partition] = deleted[topic]
        self.deletions = deletions

    def buried(self, topic: str, partition: int, since: int) -> None:
        """A tombstone that was written after deletion number `since` is in the log."""
        if self.doomed.get((topic, partition), since + 1) <= since:
            del self.doomed[topic, partition]

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        since_ms: int | None,
        subscribed: Callable[[str], bool],
        counts_from: Callable[[int], int] = int,
    ) -> list[tuple[str, int]]:
        """Name the partitions whose offsets have expired.

        An offset with an expiry of its own expires then; any other `retention_ms` after
        `since_ms`, or after its commit where that is None. Offsets of subscribed topics do not
        expire, nor do those with a commit under way. `counts_from` is told a commit's time, and
        says what that is by the clock of `now_ms`.
        """
        found = []
        for topic, partitions in self.committed.items():
            if subscribed(topic):
                continue
            for partition, offset in partitions.items():
                committed_ms = counts_from(offset.commit_timestamp_ms)
                if offset.expire_timestamp_ms != -1:
                    own_ms = offset.expire_timestamp_ms - offset.commit_timestamp_ms
                    over = now_ms - committed_ms >= own_ms
                else:
                    since = committed_ms if since_ms is None else since_ms
                    over = now_ms - since >= retention_ms
                if over and (topic, partition) not in self.pending:
                    found.append((topic, partition))
        return found


NO_OFFSETS = GroupOffsets()
"""What a group without offsets has; not to be changed."""


class OffsetStore:
    """The offsets of all groups; one that has none takes no room.

    `deletions` counts the times that topics were forgotten.
    """

    __slots__ = ("_deleted", "_groups", "_round", "deletions")

    def __init__(self) -> None:
        self._groups: dict[str, GroupOffsets] = {}
        self._deleted: dict[str, int] = {}  # topics that some group has not forgotten yet
        self._round = 0
        self.deletions = 0

    def of(self, group_id: str) -> GroupOffsets:
        """Return the offsets of a group, to be read."""
        offsets = self._groups.get(group_id, NO_OFFSETS)
        if offsets.deletions != self.deletions and offsets is not NO_OFFSETS:
            offsets.forget(self._deleted, self.deletions)
        return offsets

    def to_change(self, group_id: str) -> GroupOffsets:
        """Return the offsets of a group, to be changed; `tidy` it afterwards."""
        if group_id in self._groups:
            return self.of(group_id)
        offsets = self._groups[group_id] = GroupOffsets(self.deletions)
        return offsets

    def forget(self, names: Iterable[str]) -> None:
        """Put all offsets of deleted topics out of force, however many groups have some."""
        self.deletions += 1
        self._deleted.update(dict.fromkeys(names, self.deletions))

    def begin_round(self) -> None:
        """Each group is looked at from now on, until `end_round`."""
        self._round = self.deletions

    def end_round(self) -> None:
        """Each group has forgotten what was deleted before the round."""
        self._deleted = {name: at for name, at in self._deleted.items() if at > self._round}

    def tidy(self, group_id: str) -> None:
        """Give back the room of a group that has no offsets left."""
        offsets = self.of(group_id)
        if not offsets and offsets is not NO_OFFSETS:
            del self._groups[group_id]

    def group_ids(self) -> Iterable[str]:
        """Return the groups that have offsets, in force or pending."""
        return self._groups.keys()


def tombstones(group_id: str, partitions: Iterable[tuple[str, int]]) -> list[tuple[bytes, None]]:
    """Return the records that delete the offsets of these partitions."""
    return [(encode_offset_key(group_id, topic, number), None) for topic, number in partitions]
