"""DescribeConfigs (key 32), versions 1 to 4: the settings of topics and of this broker.

Settings of the broker are read-only: they are in its configuration file. Left out: loggers,
groups and client metrics (INVALID_REQUEST).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.configs import Resource, Row, broker_configs, topic_configs
from odradek.broker.guard import told
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]


def handle(caller: Caller, request: DescribeConfigsRequest, version: int) -> Message:
    """Describe each resource."""
    response = DescribeConfigsResponse()
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            rows = _rows(caller.broker, resource)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = told(error)
        else:
            wanted = resource.configuration_keys
            result.configs = [
                _config(row, resource.resource_type, request)
                for row in rows
                if wanted is None or row.name in wanted
            ]
        response.results.append(result)
    return response


def _rows(broker: Broker, resource: DescribeConfigsResource) -> list[Row]:
    name = resource.resource_name
    if resource.resource_type == Resource.TOPIC:
        topic = broker.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic_configs(broker.config, topic.configs)
    if resource.resource_type == Resource.BROKER:
        if not name:
            return []  # settings of all brokers at once: there are none
        if name != str(broker.id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {broker.id}, not {name[:40]!r}"
            )
        return broker_configs(broker)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"no settings of resource type {resource.resource_type}"
    )


def _config(
    row: Row, resource_type: int, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = row.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=resource_type == Resource.BROKER,
        config_source=row.source,
        is_sensitive=False,
        synonyms=[
            DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms
        ],
        config_type=row.type,
        documentation=row.doc if request.include_documentation else None,
    )
