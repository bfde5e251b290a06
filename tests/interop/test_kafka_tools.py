"""Apache Kafka's own command line tools, against a broker and the files it writes."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from tests.interop.conftest import jars
from tests.interop.drivers.base import Record
from tests.interop.probe import Probe, batch_of
from tests.interop.process import BrokerProcess

from odradek.broker.dispatch import OFFERED
from odradek.contracts.storage import Chunk, Claim, LogEdit, parse_header
from odradek.record import (
    BatchBuilder,
    Cleaned,
    CompressionType,
    OffsetMap,
    assign,
    clean_window,
    note_window,
)
from odradek.types import PartitionKey
from odradek_storage_file import open_file_store

if TYPE_CHECKING:
    from tests.interop.drivers.java import Java

OLD = {
    "org.apache.kafka.tools.BrokerApiVersionsCommand": "kafka.admin.BrokerApiVersionsCommand",
    "org.apache.kafka.tools.ConsoleProducer": "kafka.tools.ConsoleProducer",
    "org.apache.kafka.tools.DumpLogSegments": "kafka.tools.DumpLogSegments",
}
"""Where the tools' classes were before Kafka 4."""

Tool = Callable[..., str]
TIME = 1_700_000_000_000


@pytest.fixture
def tool(java: Java, broker: BrokerProcess) -> Tool:
    """Run `tool("TopicCommand", arguments...)`, on the shared broker where `server` is true."""
    old = java.name.startswith("java-3")

    def run(name: str, *arguments: str, stdin: str = "", server: bool = True) -> str:
        main = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
        where = ("--bootstrap-server", broker.address) if server else ()
        main = OLD.get(main, main) if old else main
        return java.tool(main, *where, *arguments, stdin=stdin)

    return run


def test_kafka_topics(tool: Tool, topic_name: str) -> None:
    def topics(*arguments: str) -> str:
        return tool("TopicCommand", *arguments)

    topics("--create", "--topic", topic_name, "--partitions", "3", "--config", "retention.ms=5000")
    assert topic_name in topics("--list").split()
    described = topics("--describe", "--topic", topic_name)
    assert re.search(r"PartitionCount: 3\b", described)
    assert re.search(r"ReplicationFactor: 1\b", described)
    assert "retention.ms=5000" in described
    assert re.search(r"Partition: 2\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)
    topics("--alter", "--topic", topic_name, "--partitions", "5")
    assert re.search(r"PartitionCount: 5\b", topics("--describe", "--topic", topic_name))
    topics("--delete", "--topic", topic_name)
    assert topic_name not in topics("--list").split()


def test_kafka_console_producer_and_consumer(tool: Tool, topic: str) -> None:
    lines = [f"key{number}:h={number}:line {number}" for number in range(100)]
    tool(
        "ConsoleProducer", "--topic", topic, "--compression-codec", "zstd",
        "--property", "parse.key=true", "--property", "key.separator=:",
        stdin="\n".join(lines) + "\n",
    )  # fmt: skip
    printed = tool(
        "consumer.ConsoleConsumer", "--topic", topic, "--partition", "0",
        "--offset", "earliest", "--max-messages", "100", "--timeout-ms", "20000",
        "--property", "print.key=true", "--property", "key.separator=:",
        "--property", "print.offset=true",
    )  # fmt: skip
    got = [line for line in printed.splitlines() if "line" in line]
    assert got == [f"Offset:{number}:{line}" for number, line in enumerate(lines)]


def test_kafka_configs(tool: Tool, topic: str) -> None:
    def configs(*arguments: str, kind: str = "topics", name: str = topic) -> str:
        return tool(
            "kafka.admin.ConfigCommand", "--entity-type", kind, "--entity-name", name, *arguments
        )

    configs("--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    described = configs("--describe")
    assert "retention.ms=5000" in described
    assert "cleanup.policy=compact,delete" in described
    configs("--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in configs("--describe")
    everything = configs("--describe", "--all")
    assert "retention.ms=604800000" in everything
    assert "node.id=1" in configs("--describe", "--all", kind="brokers", name="1")


def test_kafka_get_offsets_and_delete_records(
    tool: Tool, probe: Probe, topic: str, tmp_path: Path
) -> None:
    def offsets(when: str) -> str:
        return tool("GetOffsetShell", "--topic", topic, "--time", when).strip()

    for stamp in (1_700_000_000_000, 1_700_000_002_000, 1_700_000_001_000):
        probe.produce(topic, batch_of([b"x"] * 10, timestamp=stamp))
    assert offsets("latest") == f"{topic}:0:30"
    assert offsets("earliest") == f"{topic}:0:0"
    assert offsets("max-timestamp") == f"{topic}:0:10"
    assert offsets("1700000000001") == f"{topic}:0:10"
    plan = tmp_path / "plan.json"
    plan.write_text(
        f'{{"partitions": [{{"topic": "{topic}", "partition": 0, "offset": 7}}], "version": 1}}'
    )
    printed = tool("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert re.search(rf"{topic}-0\s+low_watermark: 7", printed)
    assert offsets("earliest") == f"{topic}:0:7"


def test_kafka_log_dirs_and_cluster(tool: Tool, broker: BrokerProcess, topic: str) -> None:
    printed = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in printed
    assert str(broker.data) in printed
    where = ("--bootstrap-server", broker.address)
    printed = tool("ClusterTool", "cluster-id", *where, server=False)
    assert re.search(r"Cluster ID: \S{22}\n", printed)


def test_kafka_broker_api_versions_can_use_every_api(tool: Tool) -> None:
    printed = tool("BrokerApiVersionsCommand")
    usable = {int(key) for key in re.findall(r"\t\w+\((\d+)\): .*\[usable: \d+\]", printed)}
    assert usable >= set(OFFERED), printed
    assert not re.search(r"\((\d+)\): \d.*UNSUPPORTED", printed)


def test_kafka_producer_perf_test(
    tool: Tool, probe: Probe, broker: BrokerProcess, topic: str
) -> None:
    printed = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", "20000", "--record-size", "200",
        "--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.address}", "acks=all",
        "compression.type=lz4", server=False,
    )  # fmt: skip
    assert "20000 records sent" in printed
    assert probe.end_offset(topic) == 20_000


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafka_dump_log_reads_segments_and_indexes(
    codec: str, tool: Tool, java: Java, broker: BrokerProcess, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, segment_bytes="200000", index_interval_bytes="4096")
    noise = random.Random(0)
    records = [Record(noise.randbytes(1000), b"key") for _ in range(500)]
    java.produce(topic_name, records, compression=codec, settings={"batch.size": 8000})
    first, second, *_ = broker.segments(topic_name)
    end = int(second.stem)
    dumped = tool("DumpLogSegments", "--deep-iteration", "--files", str(first), server=False)
    stored = [batch for batch in broker.batches(topic_name) if batch.base_offset < end]
    assert dumped.count("isvalid: true") == len(stored)
    assert dumped.count("| offset: ") == sum(batch.record_count for batch in stored) == end
    assert f"compresscodec: {codec}" in dumped
    assert "isvalid: false" not in dumped
    for suffix, rows in ((".index", end // 10), (".timeindex", 1)):
        file = first.with_suffix(suffix)
        printed = tool("DumpLogSegments", "--files", str(file), server=False)
        assert not re.search("Mismatches|Found|error", printed), printed
        assert len(re.findall(r"^(?:timestamp: \d+ )?offset: \d+", printed, re.MULTILINE)) >= rows


async def compacted_segment(root: Path, compression: CompressionType) -> tuple[Path, Cleaned]:
    """Have `file:` storage hold a compacted segment; return its path and what it was made from.

    It has batches that are untouched, that lost records, that hold tombstones with a delete
    horizon, and one that lost all records and stays for its producer's sake.
    """
    noise = random.Random(0)
    batches = []
    for number in range(60):
        last_of_first = number == 30
        builder = BatchBuilder(
            1 << 20, compression=compression, producer_id=7 + (number > 30), producer_epoch=0,
            base_sequence=10 * number,
        )  # fmt: skip
        for record in range(10):
            key = b"last" if last_of_first else b"%d" % noise.randrange(300)
            value = None if noise.random() < 0.1 else noise.randbytes(500)
            builder.append(TIME + 10 * number + record, b"last" if number == 40 else key, value)
        batch = bytearray(builder.build())
        assign(batch, 0, 10 * number, 1)
        batches.append(bytes(batch))
    whole = memoryview(b"".join(batches))
    offsets = OffsetMap(1 << 20, 0, bytes(16))
    assert note_window(whole, offsets, 600).next_offset == 600
    cleaned = clean_window(
        whole, offsets, end_offset=600, now_ms=TIME, delete_retention_ms=1000,
        last_of_producers={309, 599},
    )  # fmt: skip
    partition = PartitionKey(uuid.UUID(int=1), 0)

    async def chunks() -> AsyncIterator[Chunk]:
        yield Chunk(cleaned.metas, cleaned.buffers)

    async with open_file_store(root.as_uri()) as store:
        writer = await store.open_writer(partition, Claim(1, 1))
        writer.append(Chunk([parse_header(batch) for batch in batches], batches))
        old = writer.roll()
        built = await writer.build(chunks())
        await writer.commit(LogEdit((old.id,), (built,)))
    return root / str(partition) / f"{cleaned.metas[0].base_offset:020d}.log", cleaned


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_kafka_dump_log_reads_compacted_segments_and_their_indexes(
    codec: str, tool: Tool, tmp_path: Path
) -> None:
    file, cleaned = trio.run(compacted_segment, tmp_path, CompressionType[codec.upper()])
    assert cleaned.changed
    dumped = tool("DumpLogSegments", "--deep-iteration", "--files", str(file), server=False)
    assert "isvalid: false" not in dumped
    assert dumped.count("isvalid: true") == len(cleaned.metas)
    assert dumped.count("| offset: ") == cleaned.records_out < cleaned.records_in
    printed = re.findall(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (\d+) lastSequence: (\d+) "
        r"producerId: (\d+) .*deleteHorizonMs: (\S+) .*CreateTime: (\d+)", dumped
    )  # fmt: skip
    assert printed == [
        (
            *map(str, (meta.base_offset, meta.last_offset, meta.record_count, meta.base_sequence)),
            str(meta.base_sequence + meta.last_offset - meta.base_offset),
            str(meta.producer_id),
            "OptionalLong.empty"
            if meta.delete_horizon is None
            else f"OptionalLong[{meta.delete_horizon}]",
            str(meta.max_timestamp),
        )
        for meta in cleaned.metas
    ]
    counts = [meta.record_count for meta in cleaned.metas]
    assert 0 in counts
    assert any(meta.delete_horizon is not None for meta in cleaned.metas)
    for suffix in (".index", ".timeindex"):
        index = file.with_suffix(suffix)
        printed_index = tool("DumpLogSegments", "--files", str(index), server=False)
        assert not re.search("Mismatches|Found|error", printed_index), printed_index
        rows = re.findall(r"^(?:timestamp: \d+ )?offset: \d+", printed_index, re.MULTILINE)
        assert len(rows) >= (5 if suffix == ".index" else 1)
        sane = tool("DumpLogSegments", "--index-sanity-check", "--files", str(index), server=False)
        assert "passed sanity check" in sane


def test_the_versions_are_those_that_are_asked_for(java: Java) -> None:
    wanted = java.name.removeprefix("java-")
    assert java.version() == wanted
    assert (jars(wanted) / f"kafka-tools-{wanted}.jar").exists()
