"""Odradek plugin: TCP transport with scatter-gather sends and sendfile."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.contracts.transport import Transport
from odradek.hookspecs import Factory, hookimpl

from .address import SCHEME
from .settings import TcpSettings
from .transport import TcpTransport, open_transport

__all__ = ["TcpSettings", "TcpTransport", "odradek_transport"]


@hookimpl
def odradek_transport() -> Sequence[Factory[Transport]]:
    """Serve `tcp://host:port`."""
    return [Factory(SCHEME, TcpSettings, open_transport)]
