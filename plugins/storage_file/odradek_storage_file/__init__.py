"""Odradek plugin: log storage in segment files on local disk, for `file:///absolute/path`.

Segments and indexes have the names and the formats of Apache Kafka's own, so its DumpLogSegments
reads them. Appends go into the page cache at once; one thread per directory makes them durable,
all waiting partitions with one pass of fdatasync. docs/reference/storage.md has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from odradek.contracts.storage import SegmentStore, Unavailable
from odradek.hookspecs import Factory, hookimpl
from odradek.types import PartitionKey
from odradek_storage_file.settings import FileStorageSettings

__all__ = ["FileStorageSettings", "odradek_storage", "open_file_store"]


def open_file_store(
    url: str, settings: FileStorageSettings | None = None
) -> AbstractAsyncContextManager[SegmentStore]:
    """Open the directory that `url` (`file:///absolute/path`) names, creating it if absent.

    Raises Unsafe for a URL that names no absolute path, and Unavailable when another process has
    the directory open; the message names it.
    """
    from odradek_storage_file.store import open_store

    return open_store(url, settings or FileStorageSettings())


def _repair(url: str, _: FileStorageSettings, key: PartitionKey, how: str) -> Sequence[str]:
    from odradek_storage_file.repair import repair
    from odradek_storage_file.store import root_of

    root = root_of(url)
    try:
        report = repair(root, key, how="skip" if how == "skip" else "cut")
    except OSError as error:
        raise Unavailable(f"cannot repair {key} in {root}: {error.strerror}") from error
    aside = [f"what was taken out is in {report.quarantine}"] if report.quarantine else []
    return [*report.actions, *aside]


@hookimpl
def odradek_storage() -> Sequence[Factory[SegmentStore]]:
    """Supply `file:`."""
    return [
        Factory(scheme="file", settings=FileStorageSettings, open=open_file_store, repair=_repair)
    ]
