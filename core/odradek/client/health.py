"""How a client is doing: a snapshot, cheap enough to be asked for often. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from odradek.errors import OdradekError

__all__ = ["BrokerHealth", "ClusterHealth", "ProducerHealth"]


@frozen(slots=True, kw_only=True)
class BrokerHealth:
    """A broker as this client reaches it.

    `node_id`: None for a bootstrap address that is no broker's advertised one (or not known to
    be). `since`: for how long it has been connected, or not; None when it was never tried.
    `outstanding`: requests made and not answered. `last_error`: why the latest attempt to connect
    failed, or the latest connection ended; kept after it is connected again.
    """

    node_id: int | None
    url: str
    connected: bool
    since: float | None
    outstanding: int
    last_error: OdradekError | None


@frozen(slots=True, kw_only=True)
class ClusterHealth:
    """A client's connections and what it knows.

    `brokers`: by URL; those that metadata names, and whatever else was tried. `metadata_age`:
    since metadata was fetched last, None before the first time. `metadata_error`: why the latest
    attempt to fetch it failed; None after one that succeeded.
    """

    brokers: Mapping[str, BrokerHealth]
    metadata_age: float | None
    metadata_error: OdradekError | None

    @property
    def connected(self) -> bool:
        """Whether any broker is connected."""
        return any(broker.connected for broker in self.brokers.values())


@frozen(slots=True, kw_only=True)
class ProducerHealth:
    """How a producer is doing.

    `connected`: whether any broker is. `buffered_bytes`: of `buffer_bytes`. `last_error`: the
    latest failure, of an attempt or for good, and `last_error_age` how long ago it was; None
    when there was none. `closed`: nothing is sent any more, and `last_error` says why.
    """

    connected: bool
    buffered_bytes: int
    requests_in_flight: int
    last_error: OdradekError | None
    last_error_age: float | None
    closed: bool
