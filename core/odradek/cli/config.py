"""`odradek config`: check, show and explain configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.exits import ExitCode
from odradek.cli.tables import Column, format_option, show, show_json

if TYPE_CHECKING:
    from odradek.config import Config, Setting

__all__ = ["config"]


def _options(command: Any) -> Any:
    for option in reversed(
        (
            click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False)),
            click.option("--listen", multiple=True, metavar="URL"),
            click.option("--advertised", multiple=True, metavar="HOST:PORT"),
            click.option("--storage", metavar="URL"),
            click.option("--coordinator", metavar="URL"),
            click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE"),
        )
    ):
        command = option(command)
    return command


@click.group()
def config() -> None:
    """Check, show and explain configurations."""


@config.command()
@_options
def check(file: str | None, **options: Any) -> int:
    """Check FILE and options as `odradek serve` would, and open nothing.

    Exits with 2, and a line for each problem, when they cannot be used.
    """
    from odradek.plugins import load

    found = _load(file, options)
    load().parts(found)
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    click.echo(f"{found.source}: good")
    return ExitCode.OK


@config.command("show")
@_options
@format_option
def show_(file: str | None, form: str, **options: Any) -> None:
    """Show every setting as it would be in force, defaults included."""
    from odradek.config import PLAIN_SECTIONS, topic_settings
    from odradek.plugins import load

    found = _load(file, options)
    parts = load().parts(found)
    document: dict[str, Any] = {
        **{name: _values(getattr(found, name)) for name in PLAIN_SECTIONS},
        "listeners": [
            {**_values(listener), **_values(part.settings)}
            for listener, part in zip(found.listeners, parts.listeners, strict=True)
        ],
        "storage": {"url": found.storage.url, **_values(parts.storage.settings)},
        "coordinator": {"url": found.coordinator.url, **_values(parts.coordinator.settings)},
        "topics": {name: each.text(found.topics) for name, each in topic_settings().items()},
    }
    if form == "json":
        show_json(document)
        return
    for name, section in document.items():
        for table in section if isinstance(section, list) else [section]:
            click.echo(f"[[{name}]]" if isinstance(section, list) else f"[{name}]")
            for key, value in table.items():
                click.echo(
                    f"{key} = {_toml(value)}" if value is not None else f"# {key} is not set"
                )
            click.echo()


@config.command()
@click.argument("words", nargs=-1, metavar="[WORD...]")
@format_option
def reference(words: tuple[str, ...], form: str) -> None:
    """Explain every setting, or those in whose name or text each WORD occurs."""
    rows = [
        row
        for row in _reference()
        if all(word.lower() in f"{row['setting']} {row['doc']}".lower() for word in words)
    ]
    if form == "json":
        show(_COLUMNS, rows, form)
        return
    from odradek.cli.tables import terminal

    if terminal():
        show(_COLUMNS, rows, form)
        return
    for row in rows:
        click.echo(f"{row['setting']} = {row['default']}  ({row['type']})\n    {row['doc']}")


_COLUMNS = (
    Column("setting"),
    Column("default"),
    Column("type"),
    Column("kafka"),
    Column("doc", ""),
)


def _reference() -> list[dict[str, Any]]:
    from odradek.config import (
        PLAIN_SECTIONS,
        ListenerSettings,
        PartSettings,
        settings_of,
        topic_settings,
    )
    from odradek.plugins import load

    rows: list[dict[str, Any]] = []

    def add(place: str, settings: Mapping[str, Setting]) -> None:
        for name, each in settings.items():
            rows.append(
                {
                    "setting": f"{place}.{name}",
                    "default": "required" if each.required else _toml(each.default),
                    "type": _type(each),
                    "kafka": each.kafka,
                    "doc": each.doc,
                }
            )

    for name, cls in PLAIN_SECTIONS.items():
        add(name, settings_of(cls))
    add("listeners", settings_of(ListenerSettings))
    add("storage", settings_of(PartSettings))
    add("coordinator", settings_of(PartSettings))
    for info in load().describe():
        for (kind, scheme), settings in info.settings.items():
            section = "listeners" if kind == "transport" else kind
            add(f"{section}({scheme}:)", settings)
    rows += [
        {
            "setting": f"topics.{topic.name}",
            "default": _toml(topic.default),
            "type": topic.type.name.lower(),
            "kafka": topic.name,
            "doc": topic.doc,
        }
        for topic in topic_settings().values()
    ]
    return rows


def _type(setting: Setting) -> str:
    if setting.choices:
        return " | ".join(setting.choices)
    name = getattr(setting.type, "__name__", str(setting.type))
    return {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}.get(name, name)


def _load(file: str | None, options: Mapping[str, Any]) -> Config:
    from odradek.config import config_from_options

    return config_from_options(file=file, **options)


def _values(settings: Any) -> dict[str, Any]:
    from odradek.config import Secret, settings_of

    values = {name: getattr(settings, name) for name in settings_of(type(settings))}
    return {name: str(v) if isinstance(v, Secret) else v for name, v in values.items()}


def _toml(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        import json

        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return str(value)
