"""DescribeCluster (key 60), versions 0 to 2 (KIP-700).

Left out: controllers as endpoints of their own (KIP-919: MISMATCHED_ENDPOINT_TYPE, since there
are none) and authorised operations, which nobody restricts yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

BROKERS = 1
CONTROLLERS = 2


def handle(caller: Caller, request: DescribeClusterRequest, version: int) -> Message:
    """Name the brokers."""
    if request.endpoint_type != BROKERS:
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(error_code=code, error_message=code.text)
    image = caller.broker.image
    response = DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller)
    for live in image.brokers.values():
        endpoint = live.endpoint(caller.listener)
        if endpoint is not None:
            response.brokers.append(
                DescribeClusterBroker(
                    broker_id=live.id, host=endpoint.host, port=endpoint.port, rack=live.rack
                )
            )
    return response
