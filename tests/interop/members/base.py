"""What the members have in common: their options, and how they tell what happens."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

from attrs import frozen

__all__ = ["Options", "options", "stopping", "tell"]


@frozen
class Options:
    """What the test asks for."""

    bootstrap: str
    group: str
    topics: list[str]
    strategy: str
    instance: str | None
    session_ms: int
    settings: dict[str, str]


def options() -> Options:
    """Read the command line."""
    return Options(**json.loads(sys.argv[1]))


def tell(event: str, **what: Any) -> None:
    """Say what happens."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def tell_assigned(partitions: Iterable[tuple[str, int]]) -> None:
    """Say what is owned now."""
    tell("assigned", partitions=sorted([topic, number] for topic, number in partitions))


def stopping() -> threading.Event:
    """Return an event that is set when the test closes standard input."""
    event = threading.Event()

    def read() -> None:
        sys.stdin.read()
        event.set()

    threading.Thread(target=read, daemon=True).start()
    return event
