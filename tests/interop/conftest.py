"""A broker for all tests of a session, and the clients to try it with."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).parents[2]
# The drivers are modules that several tests share: with --import-mode=importlib they can be
# imported only by their path from the root of the repository.
sys.path.insert(0, str(ROOT))

from tests.interop.drivers.base import AdminDriver, Driver  # noqa: E402
from tests.interop.kafka import KAFKA_BROKER_VERSION, LOGGING, KafkaBroker  # noqa: E402
from tests.interop.probe import Probe  # noqa: E402
from tests.interop.process import BrokerProcess  # noqa: E402

if TYPE_CHECKING:
    from tests.interop.drivers.java import Java, Jvm

KAFKA_VERSIONS = ("3.9.2", "4.3.1")
"""Of the Java client and the tools: the last of the 3.x, and the newest whose tools are at Maven
Central (the client alone is there as 4.4.0)."""
CLIENTS = (
    "kcat",
    "confluent-kafka",
    "kafka-python",
    "aiokafka",
    *(f"java-{version}" for version in KAFKA_VERSIONS),
)
ADMINS = tuple(name for name in CLIENTS if name != "kcat")
"""Those that can administrate."""


def missing(what: str) -> None:
    """Skip for want of something foreign, or fail where everything has to be there, as in CI."""
    text = f"{what} is missing: scripts/install_test_tools.sh and `tox run -e interop` install it"
    if os.environ.get("ODRADEK_REQUIRE_ALL") == "1":
        pytest.fail(text)
    pytest.skip(text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("interop")
            # kafka-python and aiokafka leave sockets to the garbage collector when a connection
            # fails. What this project opens in these tests are probes, which close themselves.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


# -- brokers ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that every test may use and none may stop."""
    settings = {
        "groups.initial_rebalance_delay_ms": 0,  # Kafka's 3 s, for each new group
        # Records with times of 1970 are due at once, and a test has them read all the same.
        "retention.check_interval_ms": 2**31 - 1,
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The shared broker, whose log must show no error at the end of the test."""
    since = shared_broker.log_file.stat().st_size
    yield shared_broker
    assert shared_broker.problems(since) == []


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers that only this test uses: `own_broker(**settings)`, `_` for `.` and `-`."""
    started: list[BrokerProcess] = []

    def start(**settings: object) -> BrokerProcess:
        broker = BrokerProcess(
            tmp_path / f"broker{len(started)}",
            {key.replace("__", "."): value for key, value in settings.items()},
        )
        broker.directory.mkdir()
        started.append(broker)
        return broker.start()

    yield start
    gc.collect()  # while what clients have left behind is still ignored
    for broker in started:
        broker.kill()
        assert broker.problems() == []


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of Apache Kafka that every test may use and none may stop."""
    directory = tmp_path_factory.mktemp("kafka")
    broker = KafkaBroker(directory, broker_jars())
    try:
        yield broker.start()
    finally:
        broker.kill()
        shutil.rmtree(directory)  # 20 MB for each partition of an index alone


@pytest.fixture
def probe(broker: BrokerProcess) -> Iterator[Probe]:
    """A connection to the shared broker that sends what a test says."""
    with Probe(broker.address) as probe:
        yield probe


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; nobody has created the topic."""
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:150].strip("-")
    return f"{readable}-{next(_numbers)}"


@pytest.fixture
def topic(topic_name: str, probe: Probe) -> str:
    """A topic of one partition that nobody else uses."""
    probe.create_topic(topic_name)
    return topic_name


# -- clients ---------------------------------------------------------------------------------


def jars(version: str) -> Path:
    """Return the directory with Apache Kafka's jars of a version, or skip the test."""
    directory = ROOT / ".cache" / f"kafka-{version}"
    if shutil.which("java") is None or not (directory / "Member.class").exists():
        missing(f"the Java client {version}")
    return directory


def broker_jars() -> Path:
    """Return the directory with the jars of Apache Kafka's broker, or skip the test."""
    directory = jars(KAFKA_BROKER_VERSION)
    if not any((directory / LOGGING).glob("*.jar")):
        missing(f"the broker of Apache Kafka {KAFKA_BROKER_VERSION}")
    return directory


@pytest.fixture(scope="session")
def jvms() -> Iterator[Callable[[str], Jvm]]:
    """A JVM for each version of the Java client, started when first asked for."""
    from tests.interop.drivers.java import Jvm

    running: dict[str, Jvm] = {}

    def jvm(version: str) -> Jvm:
        if version not in running:
            running[version] = Jvm(jars(version))
        return running[version]

    yield jvm
    for each in running.values():
        each.kill()


NewClient = Callable[[str, str], Driver]


@pytest.fixture
def new_client(jvms: Callable[[str], Jvm]) -> NewClient:
    """Make a client by its name and the address of a broker, or skip the test."""

    def make(name: str, address: str) -> Driver:
        if name.startswith("java-"):
            from tests.interop.drivers.java import Java

            version = name.removeprefix("java-")
            return Java(address, jvms(version), version)
        module, made, command = {
            "kcat": ("confluent_kafka", "kcat.Kcat", "kcat"),
            "confluent-kafka": ("confluent_kafka", "confluent.Confluent", None),
            "kafka-python": ("kafka", "kafka_python.KafkaPython", None),
            "aiokafka": ("aiokafka", "aio.AioKafka", None),
        }[name]
        if find_spec(module) is None or (command is not None and shutil.which(command) is None):
            missing(name)
        file, _, cls = made.partition(".")
        found: Driver = getattr(import_module(f"tests.interop.drivers.{file}"), cls)(address)
        return found

    return make


@pytest.fixture(params=CLIENTS)
def driver(request: pytest.FixtureRequest, broker: BrokerProcess, new_client: NewClient) -> Driver:
    """Each client in turn."""
    return new_client(request.param, broker.address)


@pytest.fixture(params=ADMINS)
def admin(
    request: pytest.FixtureRequest, broker: BrokerProcess, new_client: NewClient
) -> AdminDriver:
    """Each client that administrates in turn."""
    found = new_client(request.param, broker.address)
    assert isinstance(found, AdminDriver)
    return found


@pytest.fixture(params=KAFKA_VERSIONS)
def java(request: pytest.FixtureRequest, broker: BrokerProcess, new_client: NewClient) -> Java:
    """The Java client of each version."""
    found: Java = new_client(f"java-{request.param}", broker.address)  # type: ignore[assignment]
    return found
