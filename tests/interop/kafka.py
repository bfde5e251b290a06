"""A real Apache Kafka broker: one node that is its own controller (KRaft), in a process of its own.

What holds against Odradek alone may be a dialect; what holds here too is the protocol. To have
one at hand: `python -m tests.interop.kafka` from the repository's root, until it is interrupted.
"""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

__all__ = ["KAFKA_BROKER_VERSION", "LOGGING", "KafkaBroker"]

KAFKA_BROKER_VERSION = "4.3.1"
LOGGING = "logging"
"""Folder beside the jars with a back end for SLF4J: without one a broker that does not start
says nothing. Not on the classpath of the clients, who are to be quiet."""
START_TIMEOUT = 120.0
STOP_TIMEOUT = 30.0
STARTED = "Kafka Server started"
JVM = (
    "-XX:TieredStopAtLevel=1",  # lives for minutes: compile less,
    "-XX:+UseSerialGC",  # with fewer threads,
    "-Xshare:auto",
    "-Xms96m",
    "-Xmx320m",  # and with little memory: 170 MB resident after the start
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": 1,
    "default.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    # its 128 MiB by default are most of the heap
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "background.threads": 2,
}


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class KafkaBroker:
    """One broker with its directory; started again, it has the same port and the same logs."""

    def __init__(
        self, directory: Path, jars: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        """`jars`: as scripts/install_test_tools.sh made it. `settings`: over SETTINGS."""
        self.directory = directory
        self.log_file = directory / "broker.log"
        self.port = 0
        self._classpath = f"{jars}/*:{jars}/{LOGGING}/*"
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port` for a client's bootstrap list."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def start(self) -> KafkaBroker:
        """Start it and return when it serves. Raises RuntimeError with what it said."""
        if self.port:
            self._run()
            return self
        for attempt in range(3):
            shutil.rmtree(self.directory / "data", ignore_errors=True)
            self._format(*_free_ports(2))
            try:
                self._run()
                return self
            except RuntimeError as error:
                # somebody else took a port between our looking and its binding
                if attempt == 2 or "BindException" not in str(error):
                    raise
        raise AssertionError

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *JVM, "-cp", self._classpath, main, *arguments]

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _format(self, port: int, controller: int) -> None:
        self.port = port
        settings = {
            **self._settings,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": self.directory / "data",
        }
        self._properties.write_text("".join(f"{key}={settings[key]}\n" for key in settings))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = subprocess.run(
            self._java(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster_id}",  # it may begin with a hyphen
                f"--config={self._properties}",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"kafka-storage format failed:\n{done.stdout.decode()}")

    def _run(self) -> None:
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while STARTED not in (said := self.log_file.read_text(errors="replace")):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Apache Kafka did not start:\n{said}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order (SIGTERM), or by force when that takes too long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None


def main() -> None:
    """Run a broker until this is interrupted; its address is the one line of output."""
    jars = Path(__file__).parents[2] / ".cache" / f"kafka-{KAFKA_BROKER_VERSION}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="kafka-") as directory:
        broker = KafkaBroker(Path(directory), jars)
        try:
            broker.start()
            print(broker.address, flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
