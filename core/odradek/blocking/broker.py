"""A broker in a thread of its own, for programs that are not written on trio."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import attrs

from odradek import plugins
from odradek.blocking.faults import Faults
from odradek.broker import Broker, open_broker
from odradek.broker.faults import Faults as Rules
from odradek.config import Config, config_from_options
from odradek.errors import OdradekError
from odradek.memory.storage import forget_memory_store
from odradek.portal import Portal, open_portal

__all__ = ["NotRunning", "RunningBroker", "embedded_config", "run_broker"]

T = TypeVar("T")

EMBEDDED: Mapping[str, object] = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.min_session_timeout_ms": 1,
    "groups.offsets_partitions": 1,
}
"""Settings that differ from those of a broker that others depend on: groups form at once, may
notice a dead member at once, and keep what they know in one log instead of several."""

_numbers = count(1)


class NotRunning(OdradekError):
    """The broker is stopped: `start` it first."""


def embedded_config(
    *,
    file: str | Path | None = None,
    listen: Sequence[str] = (),
    advertised: Sequence[str] = (),
    storage: str | None = None,
    coordinator: str | None = None,
    overrides: Mapping[str, object] | None = None,
    name: str | None = None,
) -> Config:
    """Return the configuration of a broker inside a program. Raises ConfigError.

    The options are those of `odradek.config.config_from_options`. What they leave open is not
    what `odradek serve` would take: records and topics are kept in memory, under `name`, at most
    256 MiB of them, and gone with the broker; it listens on a free TCP port of 127.0.0.1; and
    groups rebalance without a delay. (Memory, because there is then nothing to sync, to clean up
    after a crash, or to install. A `storage` that is named keeps its own defaults, `durability`
    among them.) With a `file`, only what it leaves open about groups is filled in.
    """
    settings = dict(overrides or {})
    if file is None:
        listen = listen or ("tcp://127.0.0.1:0",)
        storage = storage or f"memory://{name or 'embedded'}"
        if coordinator is None and storage.partition(":")[0].lower() == "memory":
            coordinator = f"memory:{name or 'embedded'}"
        settings = {**EMBEDDED, **settings}
    return config_from_options(
        file=file,
        listen=listen,
        advertised=advertised,
        storage=storage,
        coordinator=coordinator,
        overrides=settings,
    )


class RunningBroker:
    """A broker in another thread; made by `run_broker`. Any thread may use it."""

    def __init__(
        self,
        portal: Portal,
        config: Config,
        installed: plugins.Plugins,
        exempt: Iterable[str] = (),
    ) -> None:
        self.portal = portal
        self.config = config
        self._installed = installed
        self._exempt = frozenset(exempt)
        self._rules: Rules | None = None
        self._changing = threading.Lock()
        self._stack = ExitStack()
        self._port = ExitStack()
        self._broker: Broker | None = None
        self._inside: Portal | None = None
        self._addresses: Mapping[str, str] = {}
        self._urls: Mapping[str, str] = {}

    @property
    def bootstrap(self) -> str:
        """The address for a client's bootstrap list, such as `127.0.0.1:40123`.

        Of the first listener. It stays the same for as long as the context is open.
        """
        return next(iter(self._addresses.values()))

    @property
    def addresses(self) -> Mapping[str, str]:
        """Bootstrap address of each listener, by its name."""
        return self._addresses

    @property
    def urls(self) -> Mapping[str, str]:
        """URL that each listener is bound to, by its name."""
        return self._urls

    @property
    def running(self) -> bool:
        """Whether it is started."""
        return self._broker is not None

    @property
    def faults(self) -> Faults:
        """Faults on purpose. From the first use on every request is counted, and looked at."""
        with self._changing:
            if self._rules is None:
                self._rules = Rules(self._exempt)
                if self._broker is not None:
                    self.portal.call_sync(self._rules.attach, self._broker)
            return Faults(self.portal, self._rules)

    def call(self, function: Callable[[Broker], Awaitable[T]]) -> T:
        """Run `await function(broker)` in the broker's thread. Raises NotRunning, PortalClosed.

        What it returns must be nothing that only that thread may touch.
        """
        broker, inside = self._broker, self._inside
        if broker is None or inside is None:
            raise NotRunning("the broker is stopped")
        return inside.call(function, broker)

    def start(self) -> None:
        """Serve, at the same addresses as before. Nothing happens when it does already.

        Raises what `open_broker` raises.
        """
        with self._changing:
            if self._broker is not None:
                return
            self._port.close()
            opening = open_broker(self.config, installed=self._installed)
            with ExitStack() as stack:
                broker, inside = stack.enter_context(self.portal.enter(opening))
                if self._rules is not None:
                    self.portal.call_sync(self._rules.attach, broker)
                self._addresses, self._urls = broker.addresses, broker.urls
                self.config = _at(self.config, self._urls)
                self._broker, self._inside = broker, inside
                self._stack = stack.pop_all()

    def stop(self) -> None:
        """Answer what was read, close the logs and every connection; keep the address.

        What is in memory stays there for `start`, as well as what is on disk. Nothing happens
        when it is stopped already.
        """
        with self._changing:
            if self._broker is None:
                return
            broker, self._broker, self._inside = self._broker, None, None
            try:
                if self._rules is not None:
                    self.portal.call_sync(self._rules.detach, broker)
            finally:
                self._stack.close()
            self._port.enter_context(_reserved(self._urls.values()))

    def restart(self) -> None:
        """`stop`, then `start`: clients are disconnected, and find it again where it was."""
        self.stop()
        self.start()

    def close(self) -> None:
        """`stop`, for good."""
        try:
            self.stop()
        finally:
            self._port.close()


@contextmanager
def run_broker(
    config: Config | None = None,
    *,
    file: str | Path | None = None,
    listen: Sequence[str] = (),
    advertised: Sequence[str] = (),
    storage: str | None = None,
    coordinator: str | None = None,
    overrides: Mapping[str, object] | None = None,
    installed: plugins.Plugins | None = None,
    portal: Portal | None = None,
    exempt: Iterable[str] = (),
) -> Iterator[RunningBroker]:
    """Run a broker in a thread while the context is open.

    With a `config` exactly that one, else the one that `embedded_config` makes of the options.
    `portal`: run it in that thread, not in one of its own; brokers that share a `memory:`
    coordinator must share it. `installed` are the plugins, those of this Python if left out.
    `exempt` are names of listeners whose requests meet no fault and are not counted.

    When the context is left, by an exception too, the broker has answered what it had read,
    closed its logs, and its thread has ended. In asyncio it may be entered directly, which blocks
    the loop for some ten milliseconds, or by `asyncio.to_thread` and an `ExitStack`. A child
    process that was forked inside and leaves it ends nothing: the broker is its parent's.

    Raises what `open_broker` raises.
    """
    owner = os.getpid()
    name = f"embedded-{owner}-{next(_numbers)}"
    if config is None:
        config = embedded_config(
            file=file,
            listen=listen,
            advertised=advertised,
            storage=storage,
            coordinator=coordinator,
            overrides=overrides,
            name=name,
        )
    elif file or listen or advertised or storage or coordinator or overrides:
        raise TypeError("run_broker takes a config or options, not both")
    installed = installed or plugins.load()
    thread = open_portal() if portal is None else nullcontext(portal)
    with ExitStack() as stack:
        stack.callback(forget_memory_store, name)
        used = stack.enter_context(thread)
        stack.enter_context(_kept(used, config, installed))
        broker = RunningBroker(used, config, installed, exempt)
        broker.start()
        stack.callback(broker.close)
        try:
            yield broker
        finally:
            if os.getpid() != owner:
                stack.pop_all()  # this child has a copy of it all, and nothing of its own to end


def _kept(
    portal: Portal, config: Config, installed: plugins.Plugins
) -> AbstractContextManager[object]:
    """Hold on to a coordinator in memory, which otherwise goes with its last client."""
    if config.coordinator.scheme != "memory":
        return nullcontext()
    return portal.enter(installed.parts(config).coordinator.open())


def _at(config: Config, urls: Mapping[str, str]) -> Config:
    """The configuration with the addresses that were found free, in place of port 0."""
    listeners = [
        attrs.evolve(each, url=urls[each.name]) if _port(each.url) == 0 else each
        for each in config.listeners
    ]
    return attrs.evolve(config, listeners=tuple(listeners))


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


@contextmanager
def _reserved(urls: Iterable[str]) -> Iterator[None]:
    """Keep the system from giving a stopped broker's ports to others.

    A socket that is bound and does not listen refuses connections, as if nobody were there, and
    is left out when a free port is looked for.
    """
    with ExitStack() as stack:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
                continue
            family = socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # somebody was quicker, and `start` will say so
                sock.bind((parts.hostname, parts.port))
        yield
