"""Write two pages of docs/reference from the classes that define the settings.

configuration.md tells of the configuration file, topics.md of the settings of a topic.

python scripts/reference.py           write them
python scripts/reference.py --check   exit with 1 when a committed page is out of date
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from odradek import plugins
from odradek.config import (
    NOT_OFFERED,
    BrokerSettings,
    CleanerSettings,
    GroupsSettings,
    Limits,
    ListenerSettings,
    PartSettings,
    RetentionSettings,
    ScrubSettings,
    Secret,
    Setting,
    settings_of,
    topic_settings,
)

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"

INTRODUCTION = """\
# Configuration

<!-- Written by scripts/reference.py from the classes in odradek.config and the plugins' settings
     classes. Change those, then run `make reference`. -->

A deployment is one TOML file (`odradek serve --config odradek.toml`), or the same as options, or
nothing at all: then logs and topics are kept in the user's data directory and the broker listens
on `tcp://127.0.0.1:9092`.

```toml
[broker]
id = 1

[[listeners]]
url = "tcp://0.0.0.0:9092"
advertised = "broker1.example:9092"

[storage]
url = "file:///var/lib/odradek"

[coordinator]
url = "embedded:"

[topics]
retention.ms = 86400000
```

Sizes and durations are plain numbers, with the unit at the end of the key. A key that is not
known is refused, with the nearest one that is. A secret is written `"env:NAME"` (an environment
variable) or `"file:PATH"`, never as it is. On a command line each setting is
`--set section.key=value`. The settings of a storage, a coordinator or a listener may also
stand behind its URL: `--storage "file:///var/lib/odradek?durability=interval"`.

A listener that other machines can reach has to be asked for and gives a warning: this release
neither encrypts nor authenticates connections.
"""

COORDINATOR = """\
`embedded:` alone keeps its database beside the logs when they are files (`coordinator` in the
storage's directory), and otherwise in the user's data directory. With `memory:` as the storage
the coordinator is `memory:` too, unless another is given.
"""

TOPICS = """\
Defaults for every topic, under Kafka's names: `retention.ms = 86400000`. A topic may override each
of them. [Topic settings](topics.md) has them all, with their types and bounds.
"""

TOPIC_PAGE = """\
# Topic settings

<!-- Written by scripts/reference.py from odradek.config.topics. Change that, then run
     `make reference`. -->

What a topic can be told, under Kafka's names, with Kafka's types, defaults and bounds. The broker
does what each of them says; what it does not do it refuses with INVALID_CONFIG and the reason,
wherever it is asked for: when a topic is created, when its settings are altered, and in the
configuration file.

```sh
odradek topics create clicks --config cleanup.policy=compact,delete --config retention.ms=86400000
odradek topics alter clicks --set segment.ms=3600000 --unset retention.ms
odradek topics describe clicks
```

A topic without a value of its own has the broker's, which the section `[topics]` of the
configuration file sets, and without that the default below. `odradek topics describe
--all-settings` shows each value with its origin, as DescribeConfigs does. Broker-wide is the name
under which Kafka has the broker's value, and under which DescribeConfigs lists it among the
synonyms.

A change is in force at once for batches that arrive after it. Segments that exist already are
judged by it when the broker looks at them next: for removal every
`retention.check_interval_ms`, for compaction every `cleaner.backoff_ms` (see
[Configuration](configuration.md#retention)). [Retention](../retention.md) and
[compaction](../compaction.md) are described in full.

"""

AGES = """
Ages in retention and compaction are told by [a clock](../retention.md#the-clock) that no jump of
the machine's wall clock moves at once, so that a clock that goes wrong deletes nothing.
"""

REFUSED = """
## Settings of Kafka that are refused

"""


def pages() -> Mapping[Path, str]:
    """Return the text of each page by its path."""
    return {
        REFERENCE / "configuration.md": configuration(),
        REFERENCE / "topics.md": topics(),
    }


def configuration() -> str:
    """Return the page on the configuration file."""
    infos = plugins.load().describe()
    broken = [f"{info.owner}: {info.problem}" for info in infos if info.problem]
    if broken:
        raise SystemExit("\n".join(broken))
    parts = [INTRODUCTION]
    parts.append(_section("`[broker]`", BrokerSettings))
    parts.append(_section("`[[listeners]]`", ListenerSettings))
    parts.extend(_plugins("transport", infos))
    parts.append(_section("`[storage]`", PartSettings, "the user's data directory"))
    parts.extend(_plugins("storage", infos))
    parts.append(_section("`[coordinator]`", PartSettings, "`embedded:`") + "\n" + COORDINATOR)
    parts.extend(_plugins("coordinator", infos))
    parts.append(_section("`[limits]`", Limits))
    parts.append(_section("`[groups]`", GroupsSettings))
    parts.append(_section("`[retention]`", RetentionSettings))
    parts.append(_section("`[cleaner]`", CleanerSettings))
    parts.append(_section("`[scrub]`", ScrubSettings))
    parts.append(f"## `[topics]`\n\n{TOPICS}")
    return "\n".join(parts)


def _section(title: str, cls: type[Any], default_url: str = "") -> str:
    text = f"## {title}\n\n{_prose(cls)}\n\n{_table(settings_of(cls))}"
    return text.replace("| required |", f"| {default_url} |", 1) if default_url else text


def _prose(cls: type[Any]) -> str:
    """Return what a section is, without its name, which stands in the title."""
    text = " ".join((cls.__doc__ or "").split())
    text = re.sub(r"^Sections? (`\S+`( and )?)+[:,] ", "", text)
    return text[:1].upper() + text[1:]


def _plugins(kind: str, infos: Iterable[plugins.PluginInfo]) -> Iterator[str]:
    for info in infos:
        for scheme in info.schemes.get(kind, ()):
            settings = info.settings[kind, scheme]
            text = f"### `{scheme}:` ({info.distribution})\n\n"
            yield text + (_table(settings) if settings else "It has no settings of its own.\n")


def _table(settings: Mapping[str, Setting]) -> str:
    lines = ["| key | type | default | |", "|--|--|--|--|"]
    for name, declared in settings.items():
        doc = _cell(declared.doc)
        if declared.kafka:
            doc += f" Kafka: `{declared.kafka}`."
        lines.append(f"| `{name}` | {_type(declared)} | {_default(declared)} | {doc} |")
    return "\n".join(lines) + "\n"


def topics() -> str:
    """Return the page on the settings of a topic."""
    lines = ["| setting | type | default | | broker-wide |", "|--|--|--|--|--|"]
    for name, row in topic_settings().items():
        kind = row.type.name.lower() + _bounds(row.setting)
        lines.append(
            f"| `{name}` | {kind} | `{row.default}` | {_cell(row.doc)} | `{row.synonym}` |"
        )
    refused = ["| setting | why, or what to do instead |", "|--|--|"]
    refused += [f"| `{name}` | {_cell(reason)} |" for name, reason in sorted(NOT_OFFERED.items())]
    return TOPIC_PAGE + "\n".join(lines) + "\n" + AGES + REFUSED + "\n".join(refused) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(declared: Setting) -> str:
    return _type_name(declared.type) + _bounds(declared)


def _type_name(of: Any) -> str:
    if get_origin(of) is tuple:
        return f"list of {_type_name(get_args(of)[0])}"
    if get_origin(of) is types.UnionType:
        return " or ".join(_type_name(each) for each in get_args(of) if each is not type(None))
    if of is Secret:
        return "secret"
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    return names.get(of) or " or ".join(f"`{each}`" for each in get_args(of))


def _bounds(declared: Setting) -> str:
    if declared.choices:
        return ": " + ", ".join(f"`{each}`" for each in declared.choices)
    least, most = (_number(each) for each in (declared.minimum, declared.maximum))
    if declared.maximum in (2**31 - 1, 2**63 - 1):  # all that the type can hold
        most = ""
    if least and most:
        return f", {least} to {most}"
    if least or most:
        return f", at least {least}" if least else f", at most {most}"
    return ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _default(declared: Setting) -> str:
    if declared.required:
        return "required"
    value = declared.default
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> int:
    """Write the pages, or check them."""
    outdated = [
        (path, text)
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if sys.argv[1:] == ["--check"]:
        for path, _ in outdated:
            print(f"{path.name} is out of date: run `make reference`", file=sys.stderr)
        return 1 if outdated else 0
    for path, text in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
