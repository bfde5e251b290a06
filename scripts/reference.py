"""Write docs/reference/configuration.md from the classes that define the settings.

python scripts/reference.py           write it
python scripts/reference.py --check   exit with 1 when the committed file is out of date
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

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "configuration.md"

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
Defaults for every topic, under Kafka's names; a topic may override each of them (CreateTopics,
IncrementalAlterConfigs). Types and bounds are Kafka's too. Settings marked *not yet enforced* are
accepted, kept and reported, but this release does not act on them.
"""


def reference() -> str:
    """Return the text of the page."""
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
    parts.append(_topics())
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


def _topics() -> str:
    lines = [f"## `[topics]`\n\n{TOPICS}", "| key | type | default | |", "|--|--|--|--|"]
    for name, row in topic_settings().items():
        doc = _cell(row.doc) + ("" if row.enforced else " *Not yet enforced.*")
        kind = row.type.name.lower() + _bounds(row.setting)
        lines.append(
            f"| `{name}` | {kind} | `{row.default}` | {doc} Broker-wide: `{row.synonym}`. |"
        )
    lines += ["", "Of Kafka's topic settings, these are refused, with the reason:", ""]
    lines += ["| key | reason |", "|--|--|"]
    lines += [f"| `{name}` | {_cell(reason)} |" for name, reason in sorted(NOT_OFFERED.items())]
    return "\n".join(lines) + "\n"


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
    """Write the page, or check it."""
    text = reference()
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.name} is out of date: run `make reference`", file=sys.stderr)
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
