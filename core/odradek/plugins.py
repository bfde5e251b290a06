"""Finding the plugins that are installed, and choosing among them by URL scheme.

`load` builds a pluggy manager of its own, never a global one, from the entry points of the group
`odradek`. Every plugin's module is imported, because only then is it known which schemes it
serves and whether two plugins serve the same; a module is expected to import little until its
factory is used. A plugin that fails is set aside with the reason, and matters only when it is
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import metadata
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import attrs
import pluggy

from odradek import hookspecs
from odradek.config import Config, ConfigError, PartSettings, Setting, nearest, settings_of
from odradek.contracts.coordinator import Coordinator
from odradek.contracts.storage import SegmentStore
from odradek.contracts.transport import Transport
from odradek.errors import OdradekError
from odradek.hookspecs import PROJECT, Factory

__all__ = ["Part", "Parts", "PluginError", "PluginInfo", "Plugins", "load"]

T = TypeVar("T")

KINDS = ("storage", "coordinator", "transport")

DISTRIBUTIONS: Mapping[tuple[str, str], str] = {
    ("storage", "file"): "odradek-storage-file",
    ("storage", "s3"): "odradek-storage-s3",
    ("storage", "gs"): "odradek-storage-s3",
    ("storage", "az"): "odradek-storage-s3",
    ("coordinator", "zk"): "odradek-coord-zk",
    ("coordinator", "etcd"): "odradek-coord-etcd",
    ("transport", "tcp"): "odradek-transport-tcp",
}
"""The project's own distributions, by what they serve: only used to say what to install."""


class PluginError(OdradekError):
    """The plugins that are installed do not give what the configuration asks for.

    An operator mends it: by installing, removing or repairing a distribution, as the message says.
    """


@attrs.frozen
class PluginInfo:
    """What is known of one plugin.

    `name`: of its entry point. `distribution` and `version`: what installed it. `location`: of
    its module. `schemes`: by kind (storage, coordinator, transport). `settings`: those that each
    (kind, scheme) takes. `problem`: why it cannot be used, or None.
    """

    name: str
    distribution: str
    version: str
    location: str
    schemes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    settings: Mapping[tuple[str, str], Mapping[str, Setting]] = MappingProxyType({})
    problem: str | None = None

    @property
    def owner(self) -> str:
        """The plugin as an operator would look for it."""
        return f"{self.name} of {self.distribution} {self.version}".rstrip()


@attrs.frozen
class Part(Generic[T]):
    """A chosen plugin with its URL and its settings, checked and ready to open."""

    factory: Factory[T]
    url: str
    settings: Any

    def open(self) -> AbstractAsyncContextManager[T]:
        """Open it: an async context manager, which closes everything when left."""
        return self.factory.open(self.url, self.settings)


@attrs.frozen
class Parts:
    """The parts of a deployment; `listeners` in the order of the configuration."""

    storage: Part[SegmentStore]
    coordinator: Part[Coordinator]
    listeners: tuple[Part[Transport], ...]


@attrs.frozen
class Plugins:
    """The plugins of this process, by kind and scheme. Made by `load`."""

    _factories: Mapping[tuple[str, str], Factory[Any]]
    _infos: tuple[PluginInfo, ...]

    def storage(self, scheme: str) -> Factory[SegmentStore]:
        """Return the storage of a URL scheme. Raises PluginError, saying what to install."""
        return self._get("storage", scheme)

    def coordinator(self, scheme: str) -> Factory[Coordinator]:
        """Return the coordinator of a URL scheme. Raises PluginError, saying what to install."""
        return self._get("coordinator", scheme)

    def transport(self, scheme: str) -> Factory[Transport]:
        """Return the transport of a URL scheme. Raises PluginError, saying what to install."""
        return self._get("transport", scheme)

    def parts(self, config: Config) -> Parts:
        """Return what a configuration is made of, with every plugin's own settings checked.

        Opens nothing. Raises ConfigError with every problem of all of them.
        """
        problems: list[str] = []

        def choose(get: Callable[[str], Factory[T]], settings: PartSettings) -> Part[T] | None:
            try:
                factory = get(settings.scheme)
                return Part(factory, settings.url, settings.settings(factory.settings))
            except PluginError as error:
                problems.append(f"{settings.place}: {error}")
            except ConfigError as error:
                problems.extend(error.problems)
            return None

        storage = choose(self.storage, config.storage)
        coordinator = choose(self.coordinator, config.coordinator)
        listeners = [choose(self.transport, listener) for listener in config.listeners]
        chosen = tuple(each for each in listeners if each is not None)
        if storage is None or coordinator is None or problems:
            raise ConfigError(problems)
        return Parts(storage, coordinator, chosen)

    def describe(self) -> tuple[PluginInfo, ...]:
        """Return what is known of each plugin, those that cannot be used included, by name."""
        return self._infos

    def _get(self, kind: str, scheme: str) -> Factory[Any]:
        factory = self._factories.get((kind, scheme))
        if factory is not None:
            return factory
        message = f"no plugin serves {scheme}: as a {kind}"
        broken = [info for info in self._infos if info.problem is not None]
        to_install = DISTRIBUTIONS.get((kind, scheme))
        for info in broken:
            if info.distribution == to_install or info.name == f"{kind}_{scheme}":
                raise PluginError(f"{message}: {info.owner} does, but {info.problem}")
        if to_install is not None:
            raise PluginError(f"{message}: install {to_install}")
        known = sorted(name for of, name in self._factories if of == kind)
        message += nearest(scheme, known) or f" (known: {', '.join(known) or 'none'})"
        for info in broken:
            message += f"; {info.owner} might, but {info.problem}"
        raise PluginError(message)


def load(extra: Iterable[object] = ()) -> Plugins:
    """Load the plugins that are installed, and `extra`: modules or objects with hooks.

    Raises PluginError when two plugins serve one scheme, naming both. A plugin that cannot be
    imported, has a hook that does not exist, or returns what is no factory is set aside: see
    `describe`.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    infos: list[PluginInfo] = []
    owned: list[tuple[tuple[str, str], Factory[Any], PluginInfo]] = []

    def take(info: PluginInfo, get: Callable[[], object]) -> None:
        try:
            plugin = get()
            info = attrs.evolve(info, location=_location(plugin))
            found = _factories(manager, plugin, info.name)
        except Exception as error:  # whatever a stranger's module raises is that plugin's problem
            infos.append(attrs.evolve(info, problem=_problem(error)))
            return
        schemes: dict[str, tuple[str, ...]] = {}
        for (kind, scheme), _ in found:
            schemes[kind] = (*schemes.get(kind, ()), scheme)
        settings = {key: settings_of(factory.settings) for key, factory in found}
        info = attrs.evolve(info, schemes=schemes, settings=settings)
        infos.append(info)
        owned.extend((key, factory, info) for key, factory in found)

    for entry_point in sorted(metadata.entry_points(group=PROJECT), key=lambda each: each.name):
        dist = entry_point.dist
        take(
            PluginInfo(
                name=entry_point.name,
                distribution=dist.name if dist is not None else "(unknown)",
                version=dist.version if dist is not None else "",
                location=entry_point.value,
            ),
            entry_point.load,
        )
    for plugin in extra:
        name = getattr(plugin, "__name__", type(plugin).__name__)
        take(PluginInfo(name, "(given by the program)", "", ""), partial(_itself, plugin))
    return Plugins(_only_owners(owned), tuple(infos))


def _itself(plugin: object) -> object:
    return plugin


def _factories(
    manager: pluggy.PluginManager, plugin: object, name: str
) -> list[tuple[tuple[str, str], Factory[Any]]]:
    """Register a plugin and ask it, and it alone, what it supplies.

    Implementations are called one by one, not by `manager.hook`, so that each answer is known to
    be this plugin's and one that raises does not take the others' answers with it.
    """
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
        found: list[tuple[tuple[str, str], Factory[Any]]] = []
        for caller in manager.get_hookcallers(plugin) or ():
            kind = caller.name.removeprefix(f"{PROJECT}_")
            for implementation in caller.get_hookimpls():
                if implementation.plugin is plugin:
                    found += [
                        ((kind, factory.scheme), factory)
                        for factory in _checked(caller.name, implementation.function())
                    ]
    except BaseException:
        if manager.get_plugin(name) is plugin:  # not so when another one has the name
            manager.unregister(plugin)
        raise
    return found


def _checked(hook: str, answer: object) -> Sequence[Factory[Any]]:
    if not isinstance(answer, Sequence):
        raise TypeError(f"{hook} returned {type(answer).__name__}, not a sequence of factories")
    for factory in answer:
        if not isinstance(factory, Factory):
            raise TypeError(f"{hook} returned {type(factory).__name__} among its factories")
        if not re.fullmatch("[a-z][a-z0-9+.-]*", factory.scheme):
            raise ValueError(f"{hook}: {factory.scheme!r} is not a URL scheme in lower case")
        if not attrs.has(factory.settings):
            raise TypeError(f"{hook}: the settings of {factory.scheme}: are not an attrs class")
    return answer


def _only_owners(
    owned: Iterable[tuple[tuple[str, str], Factory[Any], PluginInfo]],
) -> Mapping[tuple[str, str], Factory[Any]]:
    factories: dict[tuple[str, str], Factory[Any]] = {}
    owners: dict[tuple[str, str], PluginInfo] = {}
    problems = []
    for key, factory, info in owned:
        if key in owners:
            kind, scheme = key
            problems.append(
                f"two plugins serve {scheme}: as a {kind}: {owners[key].owner} and {info.owner}; "
                "uninstall one of them"
            )
        owners.setdefault(key, info)
        factories.setdefault(key, factory)
    if problems:
        raise PluginError("\n".join(problems))
    return MappingProxyType(factories)


def _location(plugin: object) -> str:
    return str(getattr(plugin, "__file__", None) or f"{type(plugin).__module__}")


def _problem(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"it cannot be imported: {error}"
    text = "; ".join(str(error).splitlines()) or "no message"
    return f"it fails to load: {type(error).__name__}: {text}"
