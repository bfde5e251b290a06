"""A member of a group by somebody else's client, in a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

__all__ = ["ConfluentMember"]


class ConfluentMember:
    """confluent-kafka in a group; a context manager, left by leaving the group.

    `owned`: what it is assigned now. `seen`: (partition, offset, value) of what it was given.
    Read them, and wait for them to change, from any thread.
    """

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        """`settings`: librdkafka's, `_` for `.`."""
        self.owned: set[int] = set()
        self.seen: list[tuple[int, int, bytes | None]] = []
        self._failure: Exception | None = None
        self._leave = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 200,
                "auto.commit.interval.ms": 100,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._leave.is_set():
                message: Message | None = self._consumer.poll(0.02)
                self.owned = {each.partition for each in self._consumer.assignment()}
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    self.seen.append((partition, offset, message.value()))
                elif error.code() not in (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT):
                    raise KafkaException(error)
        except Exception as error:
            self._failure = error
        finally:
            self._consumer.close()

    def leave(self) -> None:
        """Leave the group, after its last commit. Raises what went wrong with it."""
        self._leave.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "confluent-kafka does not leave"
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> ConfluentMember:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()
