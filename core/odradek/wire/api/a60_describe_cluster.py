"""DescribeCluster (API key 60): brokers and controller of the cluster.

Versions 0 to 2; all are flexible.

    v0   the first one, flexible (KIP-700)
    v1   endpoint_type (KIP-919)
    v2   include_fenced_brokers, and is_fenced in the response (KIP-1073)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int8, int16, int32, string

__all__ = ["DescribeClusterBroker", "DescribeClusterRequest", "DescribeClusterResponse"]


class DescribeClusterRequest(Message, api_key=60, versions="0-2", flexible="0+"):
    """What a client sends."""

    include_cluster_authorized_operations: bool = bool_("0+")
    endpoint_type: int = int8("1+", default=1)  # 1 brokers, 2 controllers
    include_fenced_brokers: bool = bool_("2+")


class DescribeClusterBroker(Struct):
    """An element of `DescribeClusterResponse.brokers`."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = bool_("2+")


class DescribeClusterResponse(Message, api_key=60, versions="0-2", flexible="0+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)  # 1 brokers, 2 controllers
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    # Bits; the default is "not asked".
    cluster_authorized_operations: int = int32("0+", default=-(2**31))
