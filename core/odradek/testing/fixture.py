"""What the pytest plugin's fixture `odradek` is: a broker with conveniences for tests.

For annotations, and for those who test with something else than pytest:

    with open_workshop() as workshop, workshop.broker() as odradek:
        ...

Every test has a broker of its own, on a port of its own: starting one in a process that has
started one before takes about as long as it would take to delete what a test has left in a shared
one, and a client that outlives its test finds nobody at the old address instead of the next test.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from odradek import plugins
from odradek.blocking import Faults, RunningBroker, run_broker
from odradek.client import (
    EARLIEST,
    ClientSettings,
    Cluster,
    ConsumerRecord,
    RecordMetadata,
    Start,
    TopicPartition,
    open_cluster,
    open_producer,
    open_reader,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.portal import Portal, open_portal
from odradek.testing._rebalance import rebalance

if TYPE_CHECKING:
    from odradek.broker import Broker

__all__ = ["Odradek", "Workshop", "open_workshop"]

T = TypeVar("T")

OWN = "memory"
"""The listener that the conveniences come by: its requests meet no fault and are not counted."""

CLIENT = ClientSettings(client_id="odradek-fixture", retry_backoff=0.01)

_numbers = count(1)


class Odradek:
    """A running broker, for one test. Every method blocks, for milliseconds; any thread may call.

    The conveniences (`create_topic`, `produce`, `records`, ...) do not go through the network:
    faults do not meet them, and `faults.requests` does not count them.
    """

    def __init__(self, broker: RunningBroker, partitions: int, stack: ExitStack) -> None:
        self.broker = broker
        self._partitions = partitions
        self._auto_create = broker.config.broker.auto_create_topics
        self._stack = stack
        self._client: tuple[Cluster, Portal] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for a client's bootstrap list, such as `127.0.0.1:40123`."""
        return self.broker.bootstrap

    @property
    def faults(self) -> Faults:
        """Faults on purpose, and counts of the requests seen."""
        return self.broker.faults

    def start(self) -> None:
        """Start it again after `stop`, at the same address, with what it had."""
        self.broker.start()

    def stop(self) -> None:
        """Stop it in good order: connections are closed, and new ones refused."""
        self.broker.stop()

    def restart(self) -> None:
        """Stop and start it: clients are disconnected and come back; nothing is lost."""
        self.broker.restart()

    # Topics and records

    def create_topic(
        self, name: str, partitions: int | None = None, **configs: str | int | bool
    ) -> None:
        """Create a topic. Settings with `_` for `.`: `cleanup_policy="compact"`.

        Raises KafkaError, TOPIC_ALREADY_EXISTS for one.
        """
        settings = {key.replace("_", "."): _setting(value) for key, value in configs.items()}
        number = self._partitions if partitions is None else partitions

        async def create(broker: Broker) -> None:
            await broker.create_topic(name, partitions=number, configs=settings)

        self.broker.call(create)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, by name, without internal ones."""

        async def look(broker: Broker) -> dict[str, int]:
            return {
                name: topic.partitions
                for name, topic in sorted(broker.image.topics.items())
                if not name.startswith("__")
            }

        return self.broker.call(look)

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """Append records, text as UTF-8, and return where each went; the topic may be new.

        With `keys`, one for each value, the key decides on the partition as in Kafka's clients.
        Raises KafkaError, and ValueError when there are not as many keys as values.
        """
        records = [_bytes(value) for value in values]
        names = [None] * len(records) if keys is None else [_bytes(key) for key in keys]
        pairs = list(zip(names, records, strict=True))
        self.broker.call(lambda broker: _partitions(broker, topic, create=self._auto_create))

        async def send(cluster: Cluster) -> list[RecordMetadata]:
            async with open_producer(cluster) as producer:
                deliveries = [
                    await producer.send(topic, value, key=key, partition=partition)
                    for key, value in pairs
                ]
                await producer.flush()
                return [await delivery.wait() for delivery in deliveries]

        return self._ask(send)

    def records(self, topic: str, partition: int | None = None) -> list[ConsumerRecord]:
        """Return every record of a topic, or of one partition, by partition and offset.

        Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION.
        """

        number = self.broker.call(lambda broker: _partitions(broker, topic))
        wanted = range(number) if partition is None else [partition]

        async def read(cluster: Cluster) -> list[ConsumerRecord]:
            start = {TopicPartition(topic, each): Start(timestamp=EARLIEST) for each in wanted}
            async with open_reader(cluster, start, until_end=True) as reader:
                return [record async for record in reader]

        return sorted(self._ask(read), key=lambda record: (record.partition, record.offset))

    # Groups

    def rebalance(self, group: str) -> None:
        """Have a group share out its partitions anew.

        Members learn of it by their next heartbeat. Raises KafkaError GROUP_ID_NOT_FOUND for a
        group without members.
        """
        self._ask(lambda cluster: rebalance(cluster, group))

    def _ask(self, question: Callable[[Cluster], Awaitable[T]]) -> T:
        if self._client is None:
            opening = open_cluster(self.broker.urls[OWN], CLIENT)
            self._client = self._stack.enter_context(self.broker.portal.enter(opening))
        cluster, inside = self._client
        return inside.call(question, cluster)


async def _partitions(broker: Broker, topic: str, create: bool = False) -> int:
    """How many a topic has. Asked of the broker, since a client would wait for it to appear."""
    found = broker.image.topics.get(topic)
    if found is None and create:
        found = await broker.create_topic(topic)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
    return found.partitions


class Workshop:
    """Makes brokers for tests, all in one thread; made by `open_workshop`."""

    def __init__(
        self,
        portal: Portal,
        new_directory: Callable[[], Path],
        storage: str,
        settings: Mapping[str, object],
    ) -> None:
        self._portal = portal
        self._new_directory = new_directory
        self._storage = storage
        self._settings = settings
        self._installed = plugins.load()

    @contextmanager
    def broker(
        self,
        *,
        partitions: int = 1,
        auto_create_topics: bool = True,
        port: int = 0,
        storage: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Iterator[Odradek]:
        """Run a broker while the context is open.

        `partitions`: of topics that are created without saying how many. `auto_create_topics`:
        whether a topic that a client asks for is created. `port`: 0 takes a free one, which
        tests that run at the same time need. `storage`: "memory", "file" for a directory of its
        own (odradek-storage-file has to be installed), or a URL. `settings`: any others, such as
        `{"limits.connections_max": 5}`; they win over those of the project.
        """
        name = f"fixture-{os.getpid()}-{next(_numbers)}"
        with ExitStack() as stack:
            broker = stack.enter_context(
                run_broker(
                    listen=[f"tcp://127.0.0.1:{port}", f"memory://{name}"],
                    storage=self._storage_url(storage or self._storage),
                    overrides={
                        **self._settings,
                        **(settings or {}),
                        "broker.default_partitions": partitions,
                        "broker.auto_create_topics": auto_create_topics,
                    },
                    installed=self._installed,
                    portal=self._portal,
                    exempt=[OWN],
                )
            )
            _ = broker.faults  # so that requests are counted from the first one on
            yield Odradek(broker, partitions, stack)

    def _storage_url(self, storage: str) -> str | None:
        if storage == "memory":
            return None
        return self._new_directory().as_uri() if storage == "file" else storage


@contextmanager
def open_workshop(
    *,
    new_directory: Callable[[], Path] | None = None,
    storage: str = "memory",
    settings: Iterable[str] = (),
) -> Iterator[Workshop]:
    """Have a thread for brokers while the context is open.

    `new_directory` gives an empty one at each call; left out, they are temporary. `storage` and
    `settings` are defaults of `Workshop.broker`; a setting is a line of TOML, such as
    `limits.connections_max = 5`. Raises tomllib.TOMLDecodeError.
    """
    with ExitStack() as stack:
        if new_directory is None:
            root = Path(stack.enter_context(TemporaryDirectory(prefix="odradek-")))
            numbers = count(1)

            def directory() -> Path:
                made = root / str(next(numbers))
                made.mkdir()
                return made

            new_directory = directory
        table = _flat(tomllib.loads("\n".join(settings)))
        portal = stack.enter_context(open_portal("odradek-testing"))
        yield Workshop(portal, new_directory, storage, table)


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _setting(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
