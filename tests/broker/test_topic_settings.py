"""What each topic setting does, seen through a broker; what is not done is refused, everywhere.

A test says which settings it shows, and the last one that none was forgotten. Those that retention
and compaction go by are in test_topic_settings_upkeep.py.
"""

from __future__ import annotations

import pytest
from attrs import evolve
from tests.broker.peer import (
    NOW,
    FixedHost,
    Peer,
    batch,
    code,
    connected,
    metas_of,
    records_of,
    running,
)
from tests.broker.settings import TOPIC, alter, log_of, shown, shows

from odradek.broker import Broker
from odradek.config import NOT_OFFERED, ConfigError, config_from_table, topic_settings
from odradek.memory.storage import MemoryStore
from odradek.record import CompressionType
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.api.a33_alter_configs import AlterableConfig as Replaced
from odradek.wire.api.a33_alter_configs import AlterConfigsRequest, AlterConfigsResponse
from odradek.wire.api.a33_alter_configs import AlterConfigsResource as ReplacedResource

REFUSED = {**NOT_OFFERED, "unclean.leader.election.enable": "only false is supported"}


# -- batches on their way in -----------------------------------------------------------------


@shows("compression.type")
async def test_batches_are_stored_with_the_topics_codec(peer: Peer) -> None:
    await peer.create("events", compression_type="zstd")
    await peer.produce("events", batch(3, 1000, compression=CompressionType.LZ4))
    assert await alter(peer, "compression.type", "uncompressed") == ("NONE", None)
    await peer.produce("events", batch(3, 1000, compression=CompressionType.LZ4))
    assert await alter(peer, "compression.type", "producer") == ("NONE", None)
    await peer.produce("events", batch(3, 1000, compression=CompressionType.LZ4))
    stored = [meta.compression for meta in metas_of(await peer.fetch("events"))]
    assert stored == [CompressionType.ZSTD, CompressionType.NONE, CompressionType.LZ4]


@shows("max.message.bytes")
async def test_larger_batches_are_refused(peer: Peer) -> None:
    data = batch(1, 500)
    await peer.create("events", max_message_bytes=str(len(data)))
    assert code((await peer.produce("events", bytes(data))).error_code) == "NONE"
    assert await alter(peer, "max.message.bytes", str(len(data) - 1)) == ("NONE", None)
    assert code((await peer.produce("events", bytes(data))).error_code) == "MESSAGE_TOO_LARGE"


@shows(
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type"
)
async def test_timestamps_outside_of_the_bounds_are_refused(peer: Peer) -> None:
    await peer.create(
        "events", message_timestamp_before_max_ms="100", message_timestamp_after_max_ms="50"
    )

    async def error(timestamp: int) -> str:
        return code((await peer.produce("events", batch(timestamp=timestamp))).error_code)

    assert [await error(NOW - 100), await error(NOW - 101)] == ["NONE", "INVALID_TIMESTAMP"]
    assert [await error(NOW + 50), await error(NOW + 51)] == ["NONE", "INVALID_TIMESTAMP"]
    assert await alter(peer, "message.timestamp.type", "LogAppendTime") == ("NONE", None)
    assert [await error(NOW - 101), await error(NOW + 51)] == ["NONE", "NONE"]
    times = [record.timestamp for record in records_of(await peer.fetch("events"))]
    assert times == [NOW - 100, NOW + 50, NOW, NOW]


@shows("min.insync.replicas")
async def test_too_few_replicas_refuse_what_all_of_them_should_have(peer: Peer) -> None:
    await peer.create("events", min_insync_replicas="2")
    assert code((await peer.produce("events", acks=-1)).error_code) == "NOT_ENOUGH_REPLICAS"
    assert code((await peer.produce("events", acks=1)).error_code) == "NONE"
    assert await alter(peer, "min.insync.replicas", "1") == ("NONE", None)
    assert code((await peer.produce("events", acks=-1)).error_code) == "NONE"


@shows("cleanup.policy")
async def test_a_compacted_topic_takes_no_record_without_a_key(peer: Peer) -> None:
    await peer.create("events", cleanup_policy="compact,delete")
    assert code((await peer.produce("events", batch(keys=[None]))).error_code) == "INVALID_RECORD"
    assert code((await peer.produce("events", batch(keys=[b"k"]))).error_code) == "NONE"
    assert await alter(peer, "cleanup.policy", "delete") == ("NONE", None)
    assert code((await peer.produce("events", batch(keys=[None]))).error_code) == "NONE"


# -- segments --------------------------------------------------------------------------------


@shows("segment.bytes")
async def test_a_segment_ends_at_its_size(peer: Peer, broker: Broker) -> None:
    size = len(batch(1, 1000))
    await peer.create("events", segment_bytes=str(2 * size))
    for _ in range(5):
        await peer.produce("events", batch(1, 1000))
    log = log_of(broker, "events")
    assert [segment.size // size for segment in log.segments] == [2, 2, 1]
    assert await alter(peer, "segment.bytes", str(10 * size)) == ("NONE", None)
    for _ in range(5):
        await peer.produce("events", batch(1, 1000))
    assert [segment.size // size for segment in log.segments] == [2, 2, 6]


async def test_no_segment_is_larger_than_the_storage_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = MemoryStore.traits
    size = len(batch(1, 1000))
    small = property(lambda store: evolve(whole.__get__(store), segment_bytes=2 * size))
    monkeypatch.setattr(MemoryStore, "traits", small)
    async with running() as broker, connected(broker) as peer:
        await peer.create("events")
        for _ in range(5):
            assert code((await peer.produce("events", batch(1, 1000))).error_code) == "NONE"
        log = log_of(broker, "events")
        assert [segment.size // size for segment in log.segments] == [2, 2, 1]
        answer = await peer.produce("events", batch(1, 3000))
        assert code(answer.error_code) == "RECORD_LIST_TOO_LARGE"


@shows("segment.ms")
async def test_a_segment_ends_at_its_age(peer: Peer, broker: Broker, host: FixedHost) -> None:
    await peer.create("events", segment_ms="1000")
    for age in (0, 1000, 1001, 2001):
        host.now = NOW + age
        await peer.produce("events", batch(timestamp=host.now))
    assert [segment.base_offset for segment in log_of(broker, "events").segments] == [0, 2]


@shows("index.interval.bytes")
async def test_the_index_of_the_active_segment_is_as_dense_as_asked(
    peer: Peer, broker: Broker
) -> None:
    rows = {}
    for interval in (0, 2000):
        topic = f"every-{interval}"
        await peer.create(topic, index_interval_bytes=str(interval))
        await peer.produce(topic, batch(1, 900))
        await peer.fetch(topic)  # the first reader has the index made
        for _ in range(9):
            await peer.produce(topic, batch(1, 900))
        log = log_of(broker, topic)
        rows[interval] = list((await log.index_of(log.segments[-1])).offsets)
        offset = records_of(await peer.fetch(topic, 7, partition_max_bytes=1))[0].offset
        assert offset == 7
    assert rows == {0: list(range(10)), 2000: [0, 3, 6, 9]}


@shows("segment.jitter.ms")
async def test_segments_end_before_their_age_each_at_its_own_time(
    peer: Peer, broker: Broker, host: FixedHost
) -> None:
    await peer.create("events", 20, segment_ms="1000", segment_jitter_ms="1000")
    logs = [broker.hosting.by_name["events"].log(number) for number in range(20)]
    for age in (0, 500, 1001):
        host.now = NOW + age
        for number in range(20):
            await peer.produce("events", batch(timestamp=host.now), partition=number)
    begun = [tuple(segment.base_offset for segment in log.segments) for log in logs]
    assert len(set(begun)) > 1, "all end at the same time"
    assert all(len(bases) > 1 for bases in begun), "one is older than segment.ms"


# -- refusals --------------------------------------------------------------------------------


@shows("unclean.leader.election.enable")
async def test_what_is_not_done_is_refused_with_the_reason_by_every_request(peer: Peer) -> None:
    await peer.create("events")
    for name, reason in REFUSED.items():
        config = CreatableTopicConfig(name=name, value="true")
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, configs=[config])
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
        (created,) = (await peer.ask(request, 7, CreateTopicsResponse)).topics
        resource = ReplacedResource(
            resource_type=TOPIC,
            resource_name="events",
            configs=[Replaced(name=name, value="true")],
        )
        replacing = AlterConfigsRequest(resources=[resource])
        (replaced,) = (await peer.ask(replacing, 2, AlterConfigsResponse)).responses
        for error, message in (
            (code(created.error_code), created.error_message),
            (code(replaced.error_code), replaced.error_message),
            await alter(peer, name, "true"),
        ):
            assert error == "INVALID_CONFIG", name
            assert name in (message or "")
            assert reason in (message or "")
    assert await alter(peer, "unclean.leader.election.enable", "false") == ("NONE", None)


def test_what_is_not_done_is_refused_with_the_reason_in_the_configuration() -> None:
    for name, reason in REFUSED.items():
        with pytest.raises(ConfigError) as caught:
            config_from_table({"topics": {name: True}})
        (problem,) = caught.value.problems
        assert name in problem
        assert reason in problem


async def test_a_broken_setting_of_a_topic_leaves_the_others_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As another version may have stored them: see `TopicSettings.salvage`."""
    from odradek.cluster import keys

    async with running(topics={"retention.ms": 5}) as broker, connected(broker) as peer:
        await peer.create("events", max_message_bytes="100")
        entry = await broker.coordinator.get("topics/events")
        assert entry is not None
        stored = {"max.message.bytes": "100", "unclean.leader.election.enable": "true"}
        value = keys.load(entry) | {"configs": stored}
        await broker.coordinator.put("topics/events", keys.dump(value))
        await broker.view.wait_until(
            lambda image: dict(image.topics["events"].configs) == stored,
        )
        await peer.create("after")  # what came before it has been taken up as well
        settings = broker.hosting.by_name["events"].settings
        assert (settings.max_message_bytes, settings.retention_ms) == (100, 5)
        assert not settings.unclean_leader_election_enable
        assert "only false is supported" in caplog.text


def test_every_setting_is_shown() -> None:
    assert set(topic_settings()) == shown()
