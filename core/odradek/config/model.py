"""The sections of a configuration, as classes.

Every field is a `setting`: the reference documentation and `odradek config` are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs

from odradek.config.fields import ConfigError, setting, structure
from odradek.config.groups import GroupsSettings
from odradek.config.topics import TopicSettings
from odradek.config.upkeep import CleanerSettings, RetentionSettings, ScrubSettings

__all__ = [
    "PLAIN_SECTIONS",
    "BrokerSettings",
    "Config",
    "Limits",
    "ListenerSettings",
    "PartSettings",
]

T = TypeVar("T")

KIB = 1024
MIB = 1024 * KIB


def _url(value: str) -> str | None:
    scheme, colon, _ = value.partition(":")
    if not colon or not scheme or not scheme[0].isalpha():
        return f"{value!r} is not a URL; it starts with a scheme, like tcp: or file:"
    return None


def _listener_url(value: str) -> str | None:
    found = _url(value)
    if found is not None or value.partition(":")[0].lower() == "memory":  # a name, no address
        return found
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        return f"{value!r} is not an address: {error}"
    if parts.scheme == "tcp" and (not parts.hostname or parts.port is None):
        return f"{value!r} is not an address: write tcp://host:port"
    return None


def _host_port(value: str) -> str | None:
    try:
        host_port(value)
    except ValueError as error:
        return str(error)
    return None


def host_port(value: str) -> tuple[str, int]:
    """Split `host:port` or `[ipv6]:port`. Raises ValueError."""
    parts = urlsplit(f"//{value}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path or parts.query or parts.username is not None:
        raise ValueError(f'{value!r} is not "host:port"')
    return host, port


@attrs.frozen(kw_only=True)
class BrokerSettings:
    """Section `[broker]`: what this broker is and how it treats topics."""

    id: int = setting(
        1,
        minimum=0,
        maximum=2**31 - 1,
        kafka="node.id",
        doc="The number of this broker, unique in its cluster and the same after each restart.",
    )
    rack: str | None = setting(
        None,
        kafka="broker.rack",
        doc="Where the broker stands (a rack, a zone); told to clients.",
    )
    auto_create_topics: bool = setting(
        True,
        kafka="auto.create.topics.enable",
        doc="Whether a topic that a client asks for by name, and that is missing, is created.",
    )
    default_partitions: int = setting(
        1,
        minimum=1,
        maximum=10_000,
        kafka="num.partitions",
        doc="Partitions of a topic that is created without saying how many.",
    )
    default_replication_factor: int = setting(
        1,
        minimum=1,
        maximum=32_767,
        kafka="default.replication.factor",
        doc="Replicas of a topic that is created without saying how many.",
    )


@attrs.frozen(kw_only=True)
class Limits:
    """Section `[limits]`: what one client may cost, and all of them together."""

    frame_max_bytes: int = setting(
        32 * MIB,
        minimum=64 * KIB,
        maximum=2**31 - 1,
        kafka="socket.request.max.bytes",
        doc="The largest request accepted, in bytes; a longer one closes the connection.",
    )
    connections_max: int = setting(
        10_000,
        minimum=1,
        kafka="max.connections",
        doc="Connections open at once, over all listeners.",
    )
    connections_per_address_max: int = setting(
        1_000,
        minimum=1,
        kafka="max.connections.per.ip",
        doc="Connections open at once from one address.",
    )
    handshake_timeout_s: float = setting(
        10.0,
        minimum=0.001,
        doc="How long a new connection may take until its first request begins, in seconds.",
    )
    request_timeout_s: float = setting(
        30.0,
        minimum=0.001,
        doc="How long a request may take to arrive, from its first byte, in seconds.",
    )
    idle_timeout_s: float = setting(
        600.0,
        minimum=0.001,
        kafka="connections.max.idle.ms",
        doc="How long a connection may be silent before it is closed, in seconds.",
    )
    write_timeout_s: float = setting(
        30.0,
        minimum=0.001,
        doc="How long a client may take to accept a response, in seconds.",
    )
    in_flight_bytes: int = setting(
        256 * MIB,
        minimum=MIB,
        kafka="queued.max.request.bytes",
        doc="Bytes of requests and responses held in memory at once, over all connections; when "
        "they are used up, nothing more is read until some are free.",
    )
    wait_max_ms: int = setting(
        300_000,
        minimum=0,
        maximum=2**31 - 1,
        doc="The longest a request may ask to wait (Fetch, Produce, CreateTopics), in "
        "milliseconds; longer wishes are cut to this.",
    )


@attrs.frozen(kw_only=True)
class PartSettings:
    """Sections `[storage]` and `[coordinator]`: which plugin, by the scheme of its URL.

    Every other key of the section is a setting of that plugin's.
    """

    url: str = setting(
        check=_url,
        doc="Where it is. The scheme chooses the plugin: see `odradek plugins`.",
    )
    options: Mapping[str, object] = attrs.field(
        factory=dict, converter=MappingProxyType, repr=False
    )  # not shown: a secret may have been put there by mistake
    place: str = attrs.field(default="", eq=False)

    @property
    def scheme(self) -> str:
        """The scheme of the URL, in lower case."""
        return self.url.partition(":")[0].lower()

    def settings(self, cls: type[T]) -> T:
        """Return the plugin's own settings as its class. Raises ConfigError, naming the place."""
        return structure(cls, self.options, self.place or self.scheme)


@attrs.frozen(kw_only=True)
class ListenerSettings(PartSettings):
    """Section `[[listeners]]`, once for each address clients connect to."""

    url: str = setting(
        check=_listener_url,
        doc="The address to listen on, like `tcp://127.0.0.1:9092`. Port 0 takes a free one.",
        kafka="listeners",
    )
    advertised: str | None = setting(
        None,
        check=_host_port,
        kafka="advertised.listeners",
        doc="The `host:port` that clients are told to connect to; needed when the listener's own "
        "address cannot be reached from where they are (always for `0.0.0.0` and `[::]`).",
    )
    name: str = setting(
        "",
        doc="A name for the listener, unique among them. When left out: the scheme, with `-2`, "
        "`-3` and so on behind it for those after the first.",
    )

    def __attrs_post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.scheme)

    @property
    def advertised_address(self) -> tuple[str, int] | None:
        """The advertised host and port, or None: the address listened on."""
        return None if self.advertised is None else host_port(self.advertised)

    @property
    def host(self) -> str | None:
        """The host of the URL, or None where the scheme has none that is an address."""
        try:
            return host_port(urlsplit(self.url).netloc)[0]
        except ValueError:
            return None

    @property
    def wildcard(self) -> bool:
        """Whether it listens on every address of the machine."""
        return self.host is not None and _address_is(self.host, "is_unspecified")

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        host = self.host
        if host is None:
            return self.scheme == "memory"
        return host == "localhost" or _address_is(host, "is_loopback")


def _address_is(host: str, quality: str) -> bool:
    try:
        return bool(getattr(ip_address(host), quality))
    except ValueError:
        return False


PLAIN_SECTIONS: Mapping[str, type[Any]] = {
    "broker": BrokerSettings,
    "limits": Limits,
    "groups": GroupsSettings,
    "retention": RetentionSettings,
    "cleaner": CleanerSettings,
    "scrub": ScrubSettings,
}
"""The sections that are the broker's own, and no plugin's or topic's."""


@attrs.frozen(kw_only=True)
class Config:
    """A whole deployment. Build it with `load_config` or `config_from_options`."""

    broker: BrokerSettings = attrs.field(factory=BrokerSettings)
    listeners: tuple[ListenerSettings, ...]
    storage: PartSettings
    coordinator: PartSettings
    limits: Limits = attrs.field(factory=Limits)
    groups: GroupsSettings = attrs.field(factory=GroupsSettings)
    retention: RetentionSettings = attrs.field(factory=RetentionSettings)
    cleaner: CleanerSettings = attrs.field(factory=CleanerSettings)
    scrub: ScrubSettings = attrs.field(factory=ScrubSettings)
    topics: TopicSettings = attrs.field(factory=TopicSettings)
    topics_set: frozenset[str] = frozenset()
    """Names of the topic settings that the configuration gives (STATIC_BROKER_CONFIG in Kafka)."""
    source: str = "the defaults"
    """Where it was read, for messages."""

    def __attrs_post_init__(self) -> None:
        problems = [] if self.listeners else [f"{self.source}: there is no listener"]
        place = f"{self.source}: [[listeners]]"
        names = [listener.name for listener in self.listeners]
        problems += [
            f"{place}: two listeners are called {name!r}: give each a `name` of its own"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        problems += [
            f"{place}: {listener.url} listens on every address, none of which clients can be "
            "told: say which host:port they use by `advertised`"
            for listener in self.listeners
            if listener.wildcard and listener.advertised is None
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but should be known, one sentence each."""
        return tuple(
            f"{listener.url} can be reached from other machines, and whoever reaches it may read "
            "and write everything: connections are neither encrypted nor authenticated"
            for listener in self.listeners
            if not listener.loopback
        )

    def sections(self) -> dict[str, Any]:
        """Return the parts by the name of their section."""
        return {
            "broker": self.broker,
            "listeners": self.listeners,
            "storage": self.storage,
            "coordinator": self.coordinator,
            "limits": self.limits,
            "groups": self.groups,
            "retention": self.retention,
            "cleaner": self.cleaner,
            "scrub": self.scrub,
            "topics": self.topics,
        }
