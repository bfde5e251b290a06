"""Settings of topics and brokers, read and changed over the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

from attrs import frozen

from odradek.client.cluster import Cluster
from odradek.client.errors import error_of
from odradek.errors import KafkaError
from odradek.wire.api.a32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["ConfigAlteration", "ConfigEntry", "ConfigResource", "ConfigSource", "Configs"]

_TOPIC = 2
_BROKER = 4
_OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}


class ConfigResource(NamedTuple):
    """What has settings: a topic by name, or a broker by id."""

    kind: Literal["topic", "broker"]
    name: str

    @property
    def code(self) -> int:
        """Its kind on the wire (Apache Kafka, `ConfigResource.Type`)."""
        return _TOPIC if self.kind == "topic" else _BROKER


class ConfigSource(IntEnum):
    """Where a value comes from (Apache Kafka, `ConfigEntry.ConfigSource`)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6

    @classmethod
    def of(cls, code: int) -> ConfigSource:
        """Return the source of a code; UNKNOWN for one of a newer Kafka."""
        return cls(code) if code in cls._value2member_map_ else cls.UNKNOWN


@frozen(slots=True)
class ConfigEntry:
    """One setting: `value` is None where it is null or sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.source is ConfigSource.DEFAULT


@frozen(slots=True)
class ConfigAlteration:
    """A change of one setting; append and subtract are for lists. Delete restores the default."""

    name: str
    value: str | None = None
    operation: Literal["set", "delete", "append", "subtract"] = "set"


class Configs:
    """Reads and changes settings. Raises as `Admin` does; results are per resource."""

    def __init__(self, cluster: Cluster, *, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout

    async def describe(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """Return the settings of each resource by name."""
        found: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
        for node, group in self._by_node(resources).items():
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=each.code, resource_name=each.name, configuration_keys=None
                    )
                    for each in group
                ],
                include_documentation=documentation,
            )

            async def attempt(
                request: DescribeConfigsRequest = request, node: int | None = node
            ) -> DescribeConfigsResponse:
                return await self._cluster.call(request, DescribeConfigsResponse, node=node)

            answer = await self._cluster.retrying(attempt, timeout=self._timeout)
            for each in answer.results:
                found[_resource(each.resource_type, each.resource_name)] = (
                    error_of(each.error_code, each.error_message)
                    if each.error_code
                    else {config.name: _entry(config) for config in each.configs}
                )
        return found

    async def alter(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigAlteration]],
        *,
        validate_only: bool = False,
    ) -> dict[ConfigResource, KafkaError | None]:
        """Change single settings and leave the others (KIP-339); None stands for done.

        The changes of one resource are made together or not at all.
        """
        outcome: dict[ConfigResource, KafkaError | None] = {}
        for node, group in self._by_node(changes).items():
            request = IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=each.code,
                        resource_name=each.name,
                        configs=[
                            AlterableConfig(
                                name=change.name,
                                config_operation=_OPERATIONS[change.operation],
                                value=change.value,
                            )
                            for change in changes[each]
                        ],
                    )
                    for each in group
                ],
                validate_only=validate_only,
            )

            async def attempt(
                request: IncrementalAlterConfigsRequest = request, node: int | None = node
            ) -> IncrementalAlterConfigsResponse:
                return await self._cluster.call(request, IncrementalAlterConfigsResponse, node=node)

            answer = await self._cluster.retrying(attempt, timeout=self._timeout)
            for each in answer.responses:
                outcome[_resource(each.resource_type, each.resource_name)] = (
                    error_of(each.error_code, each.error_message) if each.error_code else None
                )
        return outcome

    def _by_node(
        self, resources: Iterable[ConfigResource]
    ) -> dict[int | None, list[ConfigResource]]:
        """A broker answers for itself; any broker answers for topics."""
        groups: dict[int | None, list[ConfigResource]] = {}
        for each in resources:
            node = int(each.name) if each.kind == "broker" else None
            groups.setdefault(node, []).append(each)
        return groups


def _resource(code: int, name: str) -> ConfigResource:
    return ConfigResource("topic" if code == _TOPIC else "broker", name)


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource.of(config.config_source),
        config.read_only,
        config.is_sensitive,
        config.documentation,
    )
