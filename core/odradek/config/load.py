"""Reading a configuration: a TOML file, options, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from odradek.config.fields import ConfigError, nearest, settings_of, structure
from odradek.config.model import PLAIN_SECTIONS, Config, ListenerSettings, PartSettings
from odradek.config.topics import TopicSettings, topic_settings

__all__ = ["config_from_options", "config_from_table", "default_data_dir", "load_config"]

T = TypeVar("T")

DEFAULT_LISTENER = "tcp://127.0.0.1:9092"
FIRST = ("broker", "listeners", "storage", "coordinator")
SECTIONS = tuple(dict.fromkeys((*FIRST, *PLAIN_SECTIONS, "topics")))


def default_data_dir() -> Path:
    """Return where the logs live when nobody says: the user's data directory."""
    import platformdirs  # only needed when there is no configuration

    return platformdirs.user_data_path("odradek", appauthor=False)


def load_config(path: str | Path) -> Config:
    """Read a TOML file. Raises ConfigError with every problem found in it."""
    return config_from_table(_read(Path(path)), source=str(path))


def config_from_options(
    *,
    file: str | Path | None = None,
    listen: Sequence[str] = (),
    advertised: Sequence[str] = (),
    storage: str | None = None,
    coordinator: str | None = None,
    overrides: Iterable[str] | Mapping[str, object] = (),
) -> Config:
    """Build a configuration from what stands on a command line, over `file` if there is one.

    `listen`: URLs, in place of the file's listeners; `advertised`: a `host:port` for each of
    them, in order. `storage`, `coordinator`: URLs, in place of the file's; another scheme than
    the file's drops the settings of the file's plugin too. `overrides`: `section.key=value` each,
    the value as in TOML or else a plain string (`broker.rack=a`); or a mapping from
    `section.key` to a value. Raises ConfigError with every problem found.
    """
    table = _read(Path(file)) if file is not None else {}
    problems: list[str] = []
    if len(advertised) > len(listen):
        problems.append("--advertised is given more often than --listen")
    if listen:
        table["listeners"] = [
            {"url": url, **({"advertised": advertised[at]} if at < len(advertised) else {})}
            for at, url in enumerate(listen)
        ]
    for section, url in (("storage", storage), ("coordinator", coordinator)):
        if url is not None:
            kept = table.get(section)
            if not isinstance(kept, dict) or _scheme(kept.get("url")) != _scheme(url):
                kept = {}
            table[section] = {**kept, "url": url}
    for key, value in _overrides(overrides, problems):
        section, _, name = key.partition(".")
        if section == "listeners" or section not in SECTIONS or not name:
            known = [each for each in SECTIONS if each != "listeners"]
            problems.append(
                f"{key}: a setting is section.key, with the section one of {', '.join(known)}"
            )
            continue
        into = table.setdefault(section, {})
        if isinstance(into, dict):
            into[name] = value
    source = "the options" if file is None else f"{file} and the options"
    return config_from_table(table, source=source, problems=problems)


def config_from_table(
    table: Mapping[str, Any], *, source: str = "the configuration", problems: Sequence[str] = ()
) -> Config:
    """Build a configuration from tables as TOML gives them; whatever is left out has its default.

    Raises ConfigError with every problem found, after those in `problems`.
    """
    found = list(problems)

    def collect(build: Callable[[], T]) -> T | None:
        try:
            return build()
        except ConfigError as error:
            found.extend(error.problems)
            return None

    found += [
        f"{source}: unknown section {name!r}{nearest(name, SECTIONS)}"
        for name in table
        if name not in SECTIONS
    ]
    plain: dict[str, Any] = {
        name: collect(partial(_plain, cls, table, name, source))
        for name, cls in PLAIN_SECTIONS.items()
    }
    topics_table = collect(lambda: _flat(_section(table, "topics", source)))
    topics = collect(lambda: TopicSettings.from_table(topics_table or {}, f"{source}: [topics]"))
    listeners = collect(lambda: _listeners(table, source))
    storage = collect(lambda: _storage(table, source))
    coordinator = collect(lambda: _coordinator(table, source, storage))
    if found or topics is None or listeners is None or storage is None or coordinator is None:
        raise ConfigError(found)
    return Config(
        **plain,
        listeners=listeners,
        storage=storage,
        coordinator=coordinator,
        topics=topics,
        topics_set=frozenset(topics_table or {}) & frozenset(topic_settings()),
        source=source,
    )


def _plain(cls: type[T], table: Mapping[str, object], name: str, source: str) -> T:
    return structure(cls, _section(table, name, source), f"{source}: [{name}]")


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # only needed when there is a file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: is not TOML: {error}"]) from None


def _section(table: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError([f"{source}: {name} is a section: write [{name}] and its keys below"])
    return section


def _listeners(table: Mapping[str, Any], source: str) -> tuple[ListenerSettings, ...]:
    tables = table.get("listeners", [{"url": DEFAULT_LISTENER}])
    if not isinstance(tables, list) or not all(isinstance(each, Mapping) for each in tables):
        raise ConfigError([f"{source}: listeners are a list of sections: write [[listeners]]"])
    problems: list[str] = []
    built = []
    for at, each in enumerate(_named(tables), 1):
        place = f"{source}: [[listeners]]" + (f" {at}" if len(tables) > 1 else "")
        try:
            built.append(_part(ListenerSettings, each, place))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return tuple(built)


def _named(tables: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Name those that have no name by their scheme: tcp, tcp-2, and so on past names given."""
    taken = {each.get("name") for each in tables if isinstance(each.get("name"), str)}
    for each in tables:
        scheme = _scheme(each.get("url"))
        if each.get("name", "") == "" and scheme:
            name, number = scheme, 1
            while name in taken:
                number += 1
                name = f"{scheme}-{number}"
            taken.add(name)
            yield {**each, "name": name}
        else:
            yield each


def _storage(table: Mapping[str, Any], source: str) -> PartSettings:
    section = dict(_section(table, "storage", source))
    if "url" not in section:
        section["url"] = default_data_dir().as_uri()
    return _part(PartSettings, section, f"{source}: [storage]")


def _coordinator(
    table: Mapping[str, Any], source: str, storage: PartSettings | None
) -> PartSettings:
    """Read the section; `embedded:` alone keeps its state where the logs are.

    Topics and logs belong together: either is of no use without the other.
    """
    section = dict(_section(table, "coordinator", source))
    scheme = storage.scheme if storage is not None else ""
    url = section.setdefault("url", "memory:" if scheme == "memory" else "embedded:")
    if url == "embedded:":
        if storage is not None and scheme == "file":
            directory = storage.url[len("file:") :].rstrip("/")
        else:
            directory = default_data_dir().as_uri()[len("file:") :]
        section["url"] = f"embedded:{directory}/coordinator"
    return _part(PartSettings, section, f"{source}: [coordinator]")


P = TypeVar("P", bound=PartSettings)


def _part(cls: type[P], table: Mapping[str, Any], place: str) -> P:
    given = dict(table)
    url = given.get("url")
    if isinstance(url, str):
        given["url"], in_url = _split_options(url, place)
        twice = sorted(in_url.keys() & given.keys())
        if twice:
            raise ConfigError([f"{place}: {name}: it is given in the URL, too" for name in twice])
        given.update(in_url)
    own = {name: value for name, value in given.items() if name in settings_of(cls)}
    options = {name: value for name, value in given.items() if name not in own}
    return structure(cls, own, place, {"options": options, "place": place})


def _split_options(url: str, place: str) -> tuple[str, dict[str, object]]:
    """Take the settings off a URL: `file:///data?durability=none`.

    They are settings of the section like any other, so an unknown one is refused as there.
    """
    url, fragment, _ = url.partition("#")
    if fragment:
        raise ConfigError([f"{place}: url: it has a '#': in a path, that is written %23"])
    address, _, query = url.partition("?")
    options: dict[str, object] = {}
    for text in filter(None, query.split("&")):
        name, equals, value = text.partition("=")
        if not equals or name == "url" or name in options:
            raise ConfigError(
                [f"{place}: url: after '?', settings stand as key=value, each once: not {text!r}"]
            )
        options[name] = _literal(unquote(value))
    return address, options


def _scheme(url: object) -> str:
    return url.partition(":")[0].lower() if isinstance(url, str) else ""


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join what TOML takes apart at dots: `retention.ms = 1` means `"retention.ms" = 1`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _overrides(
    overrides: Iterable[str] | Mapping[str, object], problems: list[str]
) -> Iterable[tuple[str, object]]:
    if isinstance(overrides, Mapping):
        yield from overrides.items()
        return
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"{text}: a setting is written section.key=value")
            continue
        yield key.strip(), _literal(value)


def _literal(text: str) -> object:
    """Read a value as TOML writes it, or else as a plain string."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
