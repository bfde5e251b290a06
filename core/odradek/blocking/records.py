"""Records one by one, in a thread that is not the consumer's own."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import suppress

import trio

from odradek import client
from odradek.client import (
    CommittedOffset,
    ConsumerRecord,
    FetchedBatch,
    RecordStream,
    TopicPartition,
)
from odradek.errors import OdradekError
from odradek.portal import Portal

__all__ = ["Records"]

SHORTEST_WAIT = 0.001
"""Seconds of a `poll`, at least: a look at what is there takes a moment, too."""


class Records:
    """An endless iterator over records, for one thread at a time; others wait for their turn.

    Batches come from the consumer's thread one at a time, and are taken apart in this one, so
    that a record costs no switch of threads. Asking for a record says that the one before is
    finished. An interrupt (Ctrl-C) while it waits loses nothing.
    """

    def __init__(self, portal: Portal, consumer: client.Consumer, stream: RecordStream) -> None:
        self._portal = portal
        self._consumer = consumer
        self._stream = stream
        self._turn = threading.Lock()  # of the thread that takes records
        self._state = threading.Lock()  # of whatever follows; never held for long
        self._batch: FetchedBatch | None = None
        self._records: Iterator[ConsumerRecord] | None = None  # None: not begun with
        self._last: int | None = None  # the offset of the last one handed out

    def __iter__(self) -> Records:
        return self

    def __next__(self) -> ConsumerRecord:
        record = self._wait(None)
        if record is None:
            raise StopIteration
        return record

    def poll(self, timeout: float) -> ConsumerRecord | None:
        """Return the next record, or None when there is none for `timeout` seconds.

        Otherwise as iterating.
        """
        return self._wait(timeout)

    def batches(self) -> Iterator[FetchedBatch]:
        """Iterate over batches; what is left of one whose records were begun with comes first.

        Asking for the next one says that the one before is finished.
        """
        while True:
            with self._turn:
                batch = self._rest()
                if batch is None:
                    self._drop()
                    self._fetch(None)
                    with self._state:
                        batch, self._batch = self._batch, None
            if batch is None:
                return
            yield batch

    # What of the batch in hand is done: for commits. Safe in any thread.

    def reached(self) -> tuple[TopicPartition, CommittedOffset] | None:
        """The partition in hand and where it goes on: behind the last record handed out."""
        with self._state:
            if self._batch is None:
                return None
            at = self._batch.first_offset if self._last is None else self._last + 1
            return self._batch.partition, CommittedOffset(at, self._batch.meta.leader_epoch)

    def finished(self) -> tuple[TopicPartition, CommittedOffset] | None:
        """The same, but that the last record handed out is not finished yet."""
        with self._state:
            if self._batch is None or self._last is None:
                return None
            return self._batch.partition, CommittedOffset(self._last, self._batch.meta.leader_epoch)

    def forget(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Hand out nothing more of a batch in hand of these partitions; None stands for all."""
        with self._state:
            batch = self._batch
            if batch is not None and (partitions is None or batch.partition in partitions):
                self._batch = self._records = self._last = None

    # Inside

    def _wait(self, timeout: float | None) -> ConsumerRecord | None:
        with self._turn:
            while True:
                record = self._following()
                if record is not None:
                    return record
                self._fetch(timeout)
                if self._batch is None:
                    return None
                self._begin()

    def _following(self) -> ConsumerRecord | None:
        with self._state:
            if self._records is not None:
                for record in self._records:
                    self._last = record.offset
                    return record
                self._batch = self._records = self._last = None
            return None

    def _fetch(self, timeout: float | None) -> None:
        """Have a batch in hand; none after `timeout`, or at the end.

        It is put where it is found again if the thread that waits for it is interrupted when it
        has arrived already.
        """

        async def fetch() -> None:
            seconds = float("inf") if timeout is None else max(timeout, SHORTEST_WAIT)
            with trio.move_on_after(seconds):
                batch = await self._stream.next_batch()
                with self._state:
                    self._batch = batch

        if self._batch is None:
            self._portal.call(fetch)

    def _begin(self) -> None:
        with self._state:
            batch = self._batch
            if batch is None:  # it was given up, or left by a seek, meanwhile
                return
            try:
                self._records = iter(batch.consumer_records())
                return
            except OdradekError as error:
                self._batch = None
                damaged = error
        # As the stream itself would: asked again, it is fetched again.
        with suppress(ValueError):  # unless the partition was given up
            self._portal.call_sync(self._consumer.seek, batch.partition, batch.first_offset)
        raise damaged

    def _rest(self) -> FetchedBatch | None:
        with self._state:
            batch, last = self._batch, self._last
            if batch is None or (last is not None and last + 1 >= batch.end_offset):
                return None
            self._batch = self._records = self._last = None
            return batch if last is None else batch.since(last + 1)

    def _drop(self) -> None:
        with self._state:
            self._batch = self._records = self._last = None
