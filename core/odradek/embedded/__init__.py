"""The embedded coordinator, the default of a single node: ``embedded:/path/to/directory``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import unquote

from odradek.config import ConfigError
from odradek.contracts.coordinator import Coordinator
from odradek.embedded.settings import EmbeddedCoordinatorSettings
from odradek.hookspecs import CoordinatorFactory, hookimpl

__all__ = ["odradek_coordinator"]


def _open(
    url: str, settings: EmbeddedCoordinatorSettings
) -> AbstractAsyncContextManager[Coordinator]:
    # Imported here because it brings sqlite3, which a broker with another coordinator never needs.
    from odradek.embedded.coordinator import open_embedded_coordinator

    path = Path(unquote(url.removeprefix("embedded:").removeprefix("//")))
    if not path.is_absolute():
        raise ConfigError([f"coordinator {url!r}: want embedded:/path, an absolute directory"])
    return open_embedded_coordinator(path, settings)


@hookimpl
def odradek_coordinator() -> Sequence[CoordinatorFactory]:
    """Serve `embedded:`."""
    return [CoordinatorFactory("embedded", EmbeddedCoordinatorSettings, _open)]
