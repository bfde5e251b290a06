"""URLs of the form `tcp://host:port`, and the text for the addresses that sockets report."""

from __future__ import annotations

import re
from typing import NamedTuple

from odradek.contracts.transport import BadAddress

__all__ = ["HostPort", "format_address", "parse_address"]

SCHEME = "tcp"
_URL = re.compile(r"tcp://(?:\[(?P<v6>[^\[\]/?#@]*)\]|(?P<host>[^\[\]/?#@:]*)):(?P<port>\d+)/?")
_MAPPED = "::ffff:"


class HostPort(NamedTuple):
    """A host name or address without brackets, and a port; 0 is any free one."""

    host: str
    port: int


def parse_address(url: str) -> HostPort:
    """Split `url`. Raises BadAddress, saying what is expected instead."""
    match = _URL.fullmatch(url)
    if match is None:
        raise BadAddress(
            f"{url!r} is not an address of the TCP transport: write tcp://host:port,"
            " and an IPv6 address in brackets, as in tcp://[::1]:9092"
        )
    host = match["host"] if match["v6"] is None else match["v6"]
    if not host:
        raise BadAddress(
            f"{url!r} names no host: write tcp://127.0.0.1:{match['port']} for this machine"
            f" alone, tcp://0.0.0.0:{match['port']} or tcp://[::]:{match['port']} for every"
            " interface"
        )
    if len(match["port"]) > 5 or int(match["port"]) > 0xFFFF:
        raise BadAddress(f"{url!r} has a port above 65535")
    return HostPort(host, int(match["port"]))


def format_address(sockaddr: object) -> str:
    """Return the URL of a socket address as Python reports it.

    An IPv4 peer of a socket that listens on `[::]` is given as the IPv4 address that it is, so
    that logs and limits per address see one peer and not two.
    """
    if not isinstance(sockaddr, tuple):
        return f"{SCHEME}://{sockaddr}"
    host, port = sockaddr[0], sockaddr[1]
    if host.startswith(_MAPPED) and "." in host:
        host = host[len(_MAPPED) :]
    return f"{SCHEME}://[{host}]:{port}" if ":" in host else f"{SCHEME}://{host}:{port}"
