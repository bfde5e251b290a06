"""IncrementalAlterConfigs (key 44), versions 0 to 1: change some settings of a topic (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append to and 3 subtract from a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from odradek.broker.alter import alter, repeated
from odradek.broker.guard import told
from odradek.config import Config, ConfigType, topic_settings
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


class Operation(IntEnum):
    """What to do with one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(caller: Caller, request: IncrementalAlterConfigsRequest, version: int) -> Message:
    """Change each resource by itself."""
    broker = caller.broker
    twice = repeated([(r.resource_type, r.resource_name) for r in request.resources])
    response = IncrementalAlterConfigsResponse()
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
                broker,
                resource.resource_type,
                resource.resource_name,
                lambda now, configs=configs: _changed(now, configs, broker.config),  # type: ignore[misc]  # bound now
                request.validate_only,
            )
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = told(error)
    return response


def _changed(
    now: Mapping[str, str], configs: list[AlterableConfig], config: Config
) -> dict[str, str]:
    changed = dict(now)
    if len({each.name for each in configs}) != len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is named twice")
    for each in configs:
        if each.config_operation == Operation.DELETE:
            changed.pop(each.name, None)
            continue
        if each.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{each.name}: no value was given")
        if each.config_operation == Operation.SET:
            changed[each.name] = each.value
        elif each.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            changed[each.name] = _list_changed(changed, each, config)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"unknown operation {each.config_operation}"
            )
    return changed


def _list_changed(changed: Mapping[str, str], each: AlterableConfig, config: Config) -> str:
    known = topic_settings().get(each.name)
    if known is None or known.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{each.name} is not a list: append and subtract need one"
        )
    present = _parts(changed.get(each.name, known.text(config.topics)))
    given = _parts(each.value or "")
    if each.config_operation == Operation.APPEND:
        return ",".join([*present, *(item for item in given if item not in present)])
    return ",".join(item for item in present if item not in given)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
