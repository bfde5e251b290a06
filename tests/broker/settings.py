"""What the tests of topic settings share."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.broker.peer import Peer, code

from odradek.broker import Broker
from odradek.log.partition import PartitionLog
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["TOPIC", "alter", "log_of", "shown", "shows"]

T = TypeVar("T", bound=Callable[..., Any])

TOPIC = 2


def shows(*names: str) -> Callable[[T], T]:
    """Say which settings a test shows the effect of."""
    assert names
    return lambda test: test


def shown() -> set[str]:
    """The settings that tests of this folder show the effect of."""
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_topic_settings*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "shows":
                        found.update(ast.literal_eval(each) for each in call.args)
    return found


def log_of(broker: Broker, topic: str) -> PartitionLog:
    """The log of the topic's first partition."""
    return broker.hosting.by_name[topic].log(0)


async def alter(peer: Peer, name: str, value: str) -> tuple[str, str | None]:
    """Set one setting of the topic `events`; return the error and its message."""
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="events",
        configs=[AlterableConfig(name=name, config_operation=0, value=value)],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = (await peer.ask(request, 1, IncrementalAlterConfigsResponse)).responses
    return code(result.error_code), result.error_message
