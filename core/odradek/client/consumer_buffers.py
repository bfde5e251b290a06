"""Positions, and what was fetched from them and not taken yet.

Partitions may be added, removed, moved, paused and resumed at any time, between two awaits of
whoever does it. A `Position` carries a version that grows when it is moved; an answer to what was
asked for another version is dropped (see `consumer_fetcher`), so no record of a partition that was
removed, or from before a move, is handed out afterwards.

A partition with batches to hand out is in a rotation, at most once, so that each has its turn. Of
one partition at most one batch is in hand at a time, however many take them: the order of its
records is kept, and what is finished is one offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

import trio

from odradek.client.metadata import TopicPartition
from odradek.client.positions import FetchedBatch, Holder, Position
from odradek.client.settings import ReaderSettings
from odradek.errors import OdradekError

__all__ = ["PartitionBuffers"]


class PartitionBuffers:
    """What a fetcher fills and streams empty. All but `take` and `close` is synchronous.

    `endless`: there may be more partitions to come, so nobody is told that all are finished.
    `changed` is set when something else may be fetched than before; `starved` says that a fetch
    waits for room. While `gate` says no, nothing is handed out, until `announce`.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        *,
        endless: bool,
        gate: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        self.positions: dict[TopicPartition, Position] = {}
        self.failure: OdradekError | None = None
        self.buffered = 0
        """Bytes of batches that were fetched and not taken yet."""
        self.starved = False
        self.changed = trio.Event()
        self.gate = gate
        self.callback: trio.lowlevel.Task | None = None
        """The task that is in one of the application's callbacks."""
        self._endless = endless
        self._rotation: deque[Position] = deque()
        self._arrived = trio.Event()

    @property
    def finished(self) -> bool:
        """Whether every partition's end, where one was set, was reached and taken."""
        return all(each.finished and not each.ready for each in self.positions.values())

    @property
    def to_hand_out(self) -> bool:
        """Whether there may be something to take right now."""
        return bool(self._rotation)

    def refuse_in_callback(self, what: str) -> None:
        """Raise RuntimeError in a callback of the application, which would wait for itself."""
        if self.callback is not None and self.callback is trio.lowlevel.current_task():
            raise RuntimeError(
                f"{what} waits for the rebalance, and the rebalance for its callback"
            )

    # Positions

    def add(self, positions: Iterable[Position]) -> None:
        """Fetch from these, from now on, or once they are moved where their offset is unknown."""
        for position in positions:
            self.positions[position.partition] = position
        self.notify()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of these and forget them."""
        for partition in partitions:
            position = self.positions.pop(partition, None)
            if position is not None:
                self._clear(position)
        self.announce()
        self.notify()

    def move(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Go on at `offset`; nothing fetched before is handed out. KeyError: not known."""
        position = self.positions[partition]
        self._clear(position)
        position.fetched = position.taken = offset
        position.epoch = position.taken_epoch = leader_epoch
        position.checked = -1
        position.topic_id = None  # whoever moves it means the topic that there is now
        self.notify()

    def move_to_time(self, partition: TopicPartition, time: int) -> None:
        """Go on at the first record of `time` (ms, EARLIEST, LATEST) or later, once it is found."""
        self.move(partition, -1)
        self.positions[partition].sought = time

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`; what was fetched stays, room permitting.

        The rest of a batch in hand stays where it is: a stream goes on with it afterwards.
        """
        for partition in partitions:
            position = self.positions[partition]
            position.paused = True
            if position.holder is not None:
                self._shelve(position, position.holder)
            for batch in position.ready:
                batch.detach()  # or it would keep a whole answer, for as long as the pause is
        self.notify()

    def _shelve(self, position: Position, holder: Holder) -> None:
        """Take what was not handed out yet back out of somebody's hand."""
        rest = holder.rest()
        if rest is not None:
            holder.cut()
            position.ready.appendleft(rest)
            position.buffered += rest.meta.size
            self.buffered += rest.meta.size

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End the pause."""
        for partition in partitions:
            position = self.positions[partition]
            position.paused = False
            self.offer(position)
        self.notify()

    async def close(self, partitions: Collection[TopicPartition], timeout: float) -> bool:
        """Hand out nothing more, and wait until what was handed out is finished.

        Returns whether it was, within `timeout` seconds. The positions stay, for their offsets.
        """
        held: list[trio.Event] = []
        for partition in partitions:
            position = self.positions[partition]
            position.closing = True
            if position.holder is not None:
                position.holder.cut()
                position.released = position.released or trio.Event()
                held.append(position.released)
        self.announce()
        with trio.move_on_after(timeout):
            for released in held:
                await released.wait()
        return all(released.is_set() for released in held)

    def stop_waiting(self) -> None:
        """End every wait of `close`: nobody will finish what is in hand."""
        for position in self.positions.values():
            if position.released is not None:
                position.released.set()
                position.released = None

    def _clear(self, position: Position) -> None:
        position.version += 1
        self.discard(position)
        position.in_flight = False
        position.not_before = 0.0
        position.sought = None
        if position.holder is not None:
            position.holder.drop()
            self.release(position)

    def discard(self, position: Position) -> None:
        """Throw away what was fetched and not taken."""
        position.ready.clear()
        self.buffered -= position.buffered
        position.buffered = 0

    def discard_paused(self) -> None:
        """Throw away what paused partitions have; it is fetched again after the pause."""
        for position in self.positions.values():
            if position.paused and position.ready:
                position.fetched = position.ready[0].first_offset
                position.epoch = position.taken_epoch
                position.version += 1
                position.in_flight = False
                self.discard(position)

    # Handing out

    def fill(self, position: Position, batches: Collection[FetchedBatch]) -> None:
        """Add what was fetched."""
        for batch in batches:
            if position.paused:
                batch.detach()
            position.buffered += batch.meta.size
            self.buffered += batch.meta.size
        position.ready += batches
        self.offer(position)

    async def take(self, holder: Holder) -> tuple[Position, FetchedBatch] | None:
        """Return the next batch, which `holder` has in hand from now on; None: all is finished.

        Cancelled: none was taken. Raises the failure, once all fetched before it is taken.
        """
        while True:
            while self._rotation and self.gate():
                position = self._rotation.popleft()
                position.offered = False
                if self._eligible(position):
                    return position, self._hand_out(position, holder)
            if self.failure is not None:
                raise self.failure.with_traceback(None)  # or it would collect them
            if not self._endless and self.finished:
                return None
            if self.starved:
                self.notify()
            await self._arrived.wait()

    async def wait_for_gate(self) -> None:
        """Return when `gate` says yes, or something changed that whoever waits has to look at."""
        if not self.gate():
            await self._arrived.wait()

    def _hand_out(self, position: Position, holder: Holder) -> FetchedBatch:
        batch = position.ready.popleft()
        size = batch.meta.size
        full = position.buffered >= self.settings.partition_bytes
        position.buffered -= size
        self.buffered -= size
        if self.starved or (full and position.buffered < self.settings.partition_bytes):
            self.notify()
        position.taken = batch.end_offset
        position.taken_epoch = batch.meta.leader_epoch
        position.holder = holder
        return batch

    def release(self, position: Position) -> None:
        """Learn that what was handed out of a partition is finished, or dropped."""
        position.holder = None
        if position.released is not None:
            position.released.set()
            position.released = None
        self.offer(position)

    def put_back(self, position: Position, batch: FetchedBatch) -> None:
        """Fetch a batch again that cannot be read."""
        if self.positions.get(position.partition) is position:
            self.move(position.partition, batch.first_offset, position.epoch)

    def offer(self, position: Position) -> None:
        """Put a partition into the rotation if it has something to hand out."""
        if not position.offered and self._eligible(position):
            position.offered = True
            self._rotation.append(position)
            self.announce()

    def _eligible(self, position: Position) -> bool:
        return bool(
            position.ready
            and position.holder is None
            and not position.paused
            and not position.closing
            and self.positions.get(position.partition) is position
        )

    # Telling one another

    def notify(self) -> None:
        """Wake the fetcher."""
        self.changed.set()
        self.changed = trio.Event()

    def announce(self) -> None:
        """Wake whoever waits for batches."""
        self._arrived.set()
        self._arrived = trio.Event()

    def fail(self, error: OdradekError) -> None:
        """End it all; whoever takes batches gets `error` when there are none left."""
        if self.failure is None:
            self.failure = error
        self.announce()
        self.notify()
