"""A producer, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from odradek import client
from odradek.blocking.facade import Closable, blocking, within
from odradek.client import FailedRange, ProducerHealth, RecordMetadata, RecordRange, TopicPartition
from odradek.portal import Portal

__all__ = ["Deliveries", "Delivery", "Producer"]

Header = tuple[str, bytes | None]


class Delivery:
    """A record on its way. Records of a batch share their fate."""

    __slots__ = ("_delivery", "_portal")

    def __init__(self, portal: Portal, delivery: client.Delivery) -> None:
        self._portal = portal
        self._delivery = delivery

    @property
    def partition(self) -> TopicPartition:
        """Where the record goes."""
        return self._delivery.partition

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._delivery.done

    def wait(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is once it is acknowledged as `acks` says.

        Raises TimeoutError after `timeout` seconds, which changes nothing: the record is still on
        its way. Otherwise as `odradek.client.Delivery.wait`.
        """
        return within(self._portal, timeout, self._delivery.wait)


class Deliveries:
    """Records that were handed over at once, on their way in one batch or in several."""

    __slots__ = ("_deliveries", "_portal")

    def __init__(self, portal: Portal, deliveries: client.Deliveries) -> None:
        self._portal = portal
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def done(self) -> bool:
        """Whether the fate of every record is known."""
        return self._deliveries.done

    def wait(self, timeout: float | None = None) -> list[RecordRange]:
        """Return where the records are once all are acknowledged as `acks` says.

        Raises TimeoutError as `Delivery.wait`; when any failed, what became of the first that
        did, once the fate of all is known: `delivered` and `failed` have the rest.
        """
        return within(self._portal, timeout, self._deliveries.wait)

    @property
    def delivered(self) -> list[RecordRange]:
        """The records acknowledged so far, in ranges; in each partition in order."""
        return self._deliveries.delivered

    @property
    def failed(self) -> list[FailedRange]:
        """The records that failed so far, and why."""
        return self._deliveries.failed


class Producer(Closable):
    """Sends records in batches; see `odradek.client.Producer`. Any thread may use it.

    Each call goes to the client's thread and back, which takes some hundred microseconds: records
    that come in numbers are better handed over by `send_many`. Closing flushes; leaving by an
    exception gives up what is not sent.
    """

    _behind: client.Producer

    def __init__(self, portal: Portal, producer: client.Producer, outside: Portal) -> None:
        super().__init__(portal, producer)
        self._outside = outside  # for deliveries, which may be asked after the producer is closed

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Take a record to send; wait only for room, and for a topic's metadata the first time.

        Interrupted: the record may be taken or not. Otherwise as `odradek.client.Producer.send`.
        """
        delivery = self._portal.call(
            partial(
                self._behind.send,
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
            )
        )
        return Delivery(self._outside, delivery)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Deliveries:
        """Take many records at once, at a fraction of the cost of as many calls of `send`.

        Interrupted: all of them may be taken or none. Otherwise as
        `odradek.client.Producer.send_many`.
        """
        deliveries = self._portal.call(
            partial(
                self._behind.send_many,
                topic,
                values,
                keys=keys,
                partition=partition,
                timestamp=timestamp,
            )
        )
        return Deliveries(self._outside, deliveries)

    flush = blocking(client.Producer.flush)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffer that records hold whose fate is open."""
        return self._portal.call_sync(lambda: self._behind.buffered_bytes)

    @property
    def health(self) -> ProducerHealth:
        """How the producer is doing now."""
        return self._portal.call_sync(lambda: self._behind.health)
