"""A small program to be tested: it copies paid orders from one topic to another."""

from confluent_kafka import Consumer, Message, Producer


class Copier:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "copier",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(["orders"])
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "retry.backoff.ms": 10,
            }
        )

    def copy(self, count: int) -> None:
        """Handle `count` orders."""
        while count:
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                self._handle(message)
                count -= 1

    def _handle(self, message: Message) -> None:
        value = message.value() or b""
        if value.startswith(b"paid"):
            self._producer.produce("paid", value)
            self._producer.flush()
        self._consumer.commit(message=message, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()
