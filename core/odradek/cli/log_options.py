"""What the commands of `odradek log` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odradek.cli.exits import CommandFailed, ExitCode

if TYPE_CHECKING:
    from odradek.config import PartSettings
    from odradek.hookspecs import StorageFactory
    from odradek.types import PartitionKey

__all__ = ["partition_key", "partitions_argument", "storage_option", "storage_parts", "storage_url"]

F = TypeVar("F", bound=Callable[..., Any])


def storage_option(command: F) -> F:
    """Give a command `--storage URL`."""
    return click.option(
        "--storage",
        metavar="URL",
        help="Such as file:///var/lib/odradek.  [default: the user's data directory]",
    )(command)


def partitions_argument(command: F) -> F:
    """Give a command the partitions that it is about."""
    return click.argument("partitions", nargs=-1, metavar="[PARTITION...]")(command)


def partition_key(text: str) -> PartitionKey:
    """Return the partition that is named as `odradek log verify` prints it."""
    from uuid import UUID

    from odradek.types import PartitionKey

    topic_id, _, number = text.rpartition("-")
    try:
        if not number.isascii() or not number.isdecimal():
            raise ValueError(number)
        return PartitionKey(UUID(topic_id), int(number))
    except ValueError:
        raise CommandFailed(
            f"{text!r} is not a partition: write it as `odradek log verify` prints it",
            code=ExitCode.USAGE,
        ) from None


def storage_url(storage: str | None) -> str:
    """Return the URL of the storage that is meant."""
    from odradek.config import config_from_options

    return config_from_options().storage.url if storage is None else storage


def storage_parts(storage: str | None) -> tuple[StorageFactory, PartSettings, Any]:
    """Return the plugin of a storage, the part of the configuration, and the plugin's settings.

    Raises ConfigError, PluginError.
    """
    from odradek.config import config_from_options
    from odradek.plugins import load

    part = config_from_options(storage=storage).storage
    factory = load().storage(part.scheme)
    return factory, part, part.settings(factory.settings)
