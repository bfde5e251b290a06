"""Which APIs are declared, at which versions, and where their messages are.

What a broker advertises is its own affair (and part of these ranges). A module of
`odradek.wire.api` is imported when its messages are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.wire.schema import Message

__all__ = ["API", "Api"]

NEVER = 32768  # above every version: they are int16


class Api:
    """One API of the protocol.

    `min` and `max` are the first and last declared version; `flexible_from` the first flexible
    one (KIP-482), larger than every version where there is none.
    """

    def __init__(self, key: int, name: str, min_: int, max_: int, flexible: int = NEVER) -> None:
        self.key = key
        self.name = name
        self.min = min_
        self.max = max_
        self.flexible_from = flexible

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} v{self.min}-{self.max}>"

    def has(self, version: int) -> bool:
        """Whether `version` is declared."""
        return self.min <= version <= self.max

    @cached_property
    def module(self) -> str:
        """The name of the module that declares the messages."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name)
        return f"odradek.wire.api.a{self.key:02d}{words}"

    @cached_property
    def request(self) -> type[Message]:
        """The class of the requests; imports its module."""
        cls: type[Message] = getattr(import_module(self.module), f"{self.name}Request")
        return cls

    @cached_property
    def response(self) -> type[Message]:
        """The class of the responses; imports its module."""
        cls: type[Message] = getattr(import_module(self.module), f"{self.name}Response")
        return cls


_TABLE = (
    Api(0, "Produce", 3, 13, 9),
    Api(1, "Fetch", 4, 18, 12),
    Api(2, "ListOffsets", 1, 11, 6),
    Api(3, "Metadata", 0, 13, 9),
    Api(8, "OffsetCommit", 2, 10, 8),
    Api(9, "OffsetFetch", 1, 10, 6),
    Api(10, "FindCoordinator", 0, 6, 3),
    Api(11, "JoinGroup", 0, 9, 6),
    Api(12, "Heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", 0, 5, 4),
    Api(14, "SyncGroup", 0, 5, 4),
    Api(15, "DescribeGroups", 0, 6, 5),
    Api(16, "ListGroups", 0, 5, 3),
    Api(17, "SaslHandshake", 0, 1),
    Api(18, "ApiVersions", 0, 4, 3),
    Api(19, "CreateTopics", 2, 7, 5),
    Api(20, "DeleteTopics", 1, 6, 4),
    Api(21, "DeleteRecords", 0, 2, 2),
    Api(22, "InitProducerId", 0, 6, 2),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", 0, 5, 3),
    Api(25, "AddOffsetsToTxn", 0, 4, 3),
    Api(26, "EndTxn", 0, 5, 3),
    Api(28, "TxnOffsetCommit", 0, 5, 3),
    Api(29, "DescribeAcls", 1, 3, 2),
    Api(30, "CreateAcls", 1, 3, 2),
    Api(31, "DeleteAcls", 1, 3, 2),
    Api(32, "DescribeConfigs", 1, 4, 4),
    Api(33, "AlterConfigs", 0, 2, 2),
    Api(35, "DescribeLogDirs", 1, 5, 2),
    Api(36, "SaslAuthenticate", 0, 2, 2),
    Api(37, "CreatePartitions", 0, 3, 2),
    Api(42, "DeleteGroups", 0, 2, 2),
    Api(43, "ElectLeaders", 0, 2, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1),
    Api(45, "AlterPartitionReassignments", 0, 1, 0),
    Api(46, "ListPartitionReassignments", 0, 0, 0),
    Api(47, "OffsetDelete", 0, 0),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0, 0),
    Api(60, "DescribeCluster", 0, 2, 0),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0),
)

API: Mapping[int, Api] = MappingProxyType({api.key: api for api in _TABLE})
"""Every declared API by its key, in ascending order."""
