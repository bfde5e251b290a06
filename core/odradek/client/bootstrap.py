"""Addresses as people write them, made URLs of."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["bootstrap_urls"]

DEFAULT_PORT = 9092


def bootstrap_urls(bootstrap: str | Iterable[str]) -> tuple[str, ...]:
    """Return the URLs of a bootstrap list: "host", "host:port" or "scheme://..." each.

    A string may name several, separated by commas. All have one scheme, by which the brokers'
    advertised addresses are reached too. Raises ValueError, also for an address of the scheme tcp
    that has no host, or a port that is no number from 1 to 65535.
    """
    items = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    urls = []
    for item in (item.strip() for item in items):
        if not item:
            continue
        if "://" in item:
            urls.append(item)
            continue
        host = f"[{item}]" if item.count(":") > 1 and not item.startswith("[") else item
        port = "" if ":" in host.rpartition("]")[2] else f":{DEFAULT_PORT}"
        urls.append(f"tcp://{host}{port}")
    for url in urls:
        _check(url)
    if not urls:
        raise ValueError("no bootstrap address was given; for example 127.0.0.1:9092")
    schemes = {urlsplit(url).scheme for url in urls}
    if len(schemes) > 1:
        raise ValueError(f"bootstrap addresses of several transports: {', '.join(sorted(schemes))}")
    return tuple(urls)


def _check(url: str) -> None:
    """Refuse what would fail at every attempt to connect."""
    wrong = ""
    try:
        parts = urlsplit(url)
        if parts.scheme == "tcp":
            if not parts.hostname:
                wrong = "it has no host"
            elif parts.port == 0 or parts.netloc.endswith(":"):
                wrong = "it has no port"
            elif parts.path.strip("/"):
                wrong = "nothing follows the port"
    except ValueError as error:  # of a port, or of brackets
        wrong = str(error)
    if wrong:
        raise ValueError(f"the bootstrap address {url.removeprefix('tcp://')!r}: {wrong}")
