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
from odradek.client.bootstrap import bootstrap_urls
from odradek.client.cluster import Cluster, open_cluster
from odradek.client.configs import ConfigAlteration, ConfigEntry, ConfigResource, ConfigSource
from odradek.client.consume import ConsumerRecord, FetchedBatch, Reader, Start, open_reader
from odradek.client.consumer import Consumer, ConsumerCallback, open_consumer
from odradek.client.consumer_health import ConsumerHealth, Lag
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.consumer_stream import RecordStream
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
from odradek.client.group_info import GroupDescription, GroupListing, GroupMember
from odradek.client.health import BrokerHealth, ClusterHealth, ProducerHealth
from odradek.client.membership import CommitFailed, CommittedOffset
from odradek.client.metadata import Broker, Metadata, PartitionInfo, TopicInfo, TopicPartition
from odradek.client.offset_reset import (
    LogRange,
    OffsetChange,
    OffsetReset,
    ResetImpossible,
    ShiftBy,
    ToOffset,
    ToOffsets,
    ToTime,
)
from odradek.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset, list_offsets
from odradek.client.partitioner import Partitioner, consistent
from odradek.client.produce import (
    BatchOutcome,
    Deliveries,
    Delivery,
    FailedRange,
    Producer,
    RecordMetadata,
    RecordRange,
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
    "BrokerHealth",
    "ClientClosed",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "ClusterHealth",
    "ClusterInfo",
    "CommitFailed",
    "CommittedOffset",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "ConsumerCallback",
    "ConsumerHealth",
    "ConsumerRecord",
    "ConsumerSettings",
    "CreatedTopic",
    "Deliveries",
    "Delivery",
    "DeliveryTimedOut",
    "Disconnected",
    "FailedRange",
    "FetchedBatch",
    "FoundOffset",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "Lag",
    "LogDir",
    "LogRange",
    "Metadata",
    "NewTopic",
    "NotOffered",
    "NotReachable",
    "OffsetChange",
    "OffsetReset",
    "OutcomeUnknown",
    "PartitionInfo",
    "Partitioner",
    "Producer",
    "ProducerHealth",
    "ProducerSettings",
    "Reader",
    "ReaderSettings",
    "RecordMetadata",
    "RecordRange",
    "RecordStream",
    "ReplicaInfo",
    "RequestTimedOut",
    "ResetImpossible",
    "ShiftBy",
    "Start",
    "ToOffset",
    "ToOffsets",
    "ToTime",
    "TopicInfo",
    "TopicPartition",
    "bootstrap_urls",
    "consistent",
    "is_retriable",
    "list_offsets",
    "open_cluster",
    "open_consumer",
    "open_producer",
    "open_reader",
]
