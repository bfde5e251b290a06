"""AlterConfigs (key 33), versions 0 to 2: replace all settings of a topic.

What is not named goes back to its default: that is why Kafka deprecates this API in favour of
IncrementalAlterConfigs (KIP-339), and why it is served: old tools know nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.alter import alter, repeated
from odradek.broker.guard import told
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a33_alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: AlterConfigsRequest, version: int) -> Message:
    """Change each resource by itself."""
    twice = repeated([(r.resource_type, r.resource_name) for r in request.resources])
    response = AlterConfigsResponse()
    for resource in request.resources:
        result = AlterConfigsResourceResponse(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        response.responses.append(result)
        configs = resource.configs
        try:
            if (resource.resource_type, resource.resource_name) in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "named twice in the request")
            await alter(
                caller.broker,
                resource.resource_type,
                resource.resource_name,
                lambda _, configs=configs: _replaced(configs),  # type: ignore[misc]  # bound now
                request.validate_only,
            )
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = told(error)
    return response


def _replaced(configs: list[AlterableConfig]) -> dict[str, str]:
    changed: dict[str, str] = {}
    for config in configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name}: no value was given")
        changed[config.name] = config.value
    return changed
