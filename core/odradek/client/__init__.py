"""A client of Kafka's protocol on trio: administration, a producer, a reader of partitions.

    async with open_cluster("127.0.0.1:9092") as cluster:
        await Admin(cluster).create_topic(NewTopic(name="events", partitions=3))

        async with open_producer(cluster) as producer:
            delivery = await producer.send("events", b"value", key=b"key")
            print(await delivery.wait())

        start = {TopicPartition("events", n): Start(timestamp=EARLIEST) for n in range(3)}
        async with open_reader(cluster, start, until_end=True) as reader:
            async for record in reader:
                print(record.offset, record.value)

A `Cluster` is shared by whatever talks to one cluster. Everything that runs is owned by one of
the three context managers; leaving it ends it.
"""

from odradek.client.admin import Admin, ClusterInfo, CreatedTopic, LogDir, NewTopic, ReplicaInfo
from odradek.client.cluster import Cluster, bootstrap_urls, open_cluster
from odradek.client.configs import ConfigAlteration, ConfigEntry, ConfigResource, ConfigSource
from odradek.client.consume import ConsumerRecord, FetchedBatch, Reader, Start, open_reader
from odradek.client.errors import (
    ClientClosed,
    ClientError,
    DeliveryTimedOut,
    Disconnected,
    NotOffered,
    NotReachable,
    OutcomeUnknown,
    RequestTimedOut,
    is_retriable,
)
from odradek.client.metadata import Broker, Metadata, PartitionInfo, TopicInfo, TopicPartition
from odradek.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset, list_offsets
from odradek.client.produce import (
    BatchOutcome,
    Delivery,
    Producer,
    RecordMetadata,
    open_producer,
)
from odradek.client.settings import ClientSettings, ProducerSettings, ReaderSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BatchOutcome",
    "Broker",
    "ClientClosed",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "ClusterInfo",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConsumerRecord",
    "CreatedTopic",
    "Delivery",
    "DeliveryTimedOut",
    "Disconnected",
    "FetchedBatch",
    "FoundOffset",
    "LogDir",
    "Metadata",
    "NewTopic",
    "NotOffered",
    "NotReachable",
    "OutcomeUnknown",
    "PartitionInfo",
    "Producer",
    "ProducerSettings",
    "Reader",
    "ReaderSettings",
    "RecordMetadata",
    "ReplicaInfo",
    "RequestTimedOut",
    "Start",
    "TopicInfo",
    "TopicPartition",
    "bootstrap_urls",
    "is_retriable",
    "list_offsets",
    "open_cluster",
    "open_producer",
    "open_reader",
]
