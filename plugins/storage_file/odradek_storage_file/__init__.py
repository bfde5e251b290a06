"""Odradek plugin: log storage in segment files on local disk, for `file:///absolute/path`.

Segments and indexes have the names and the formats of Apache Kafka's own, so its DumpLogSegments
reads them. Appends go into the page cache at once; one thread per directory makes them durable,
all waiting partitions with one pass of fdatasync. docs/reference/storage.md has the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

from odradek.contracts.storage import SegmentStore, Unavailable
from odradek.hookspecs import Factory, Finding, Quarantine, Quarantined, hookimpl
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
    with _told(f"repair {key} in {root}"):
        report = repair(root, key, how="skip" if how == "skip" else "cut")
    if report.quarantine is None:
        return report.actions
    name = report.quarantine.rpartition("/")[2]
    return [
        *report.actions,
        f"as it was before, it is in {report.quarantine}; to put it back: "
        f"`odradek log quarantine restore {name} --storage {url}`",
    ]


def _verify(url: str, _: FileStorageSettings, key: PartitionKey) -> Sequence[Finding]:
    from odradek_storage_file.store import root_of
    from odradek_storage_file.verify import verify

    root = root_of(url)
    with _told(f"read {key} in {root}"):
        return [
            Finding(str(each), each.severe)
            for report in verify(root, key, headers_only=True)
            for each in report.findings
        ]


def _entries(url: str, _: FileStorageSettings) -> Sequence[Quarantined]:
    from odradek_storage_file.quarantine import entries
    from odradek_storage_file.store import root_of

    root = root_of(url)
    with _told(f"read {root}"):
        return [
            Quarantined(each.name, each.key, each.at_ms, each.size, each.files, each.reason)
            for each in entries(root)
        ]


def _restore(url: str, _: FileStorageSettings, name: str) -> Sequence[str]:
    import time

    from odradek_storage_file.quarantine import restore
    from odradek_storage_file.store import root_of

    with _told(f"put {name} back"):
        return restore(root_of(url), name, time.time_ns() // 1_000_000)


def _delete(url: str, _: FileStorageSettings, name: str) -> None:
    from odradek_storage_file.quarantine import delete
    from odradek_storage_file.store import root_of

    with _told(f"delete {name}"):
        delete(root_of(url), name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"cannot {what}: {error.strerror}") from error


@hookimpl
def odradek_storage() -> Sequence[Factory[SegmentStore]]:
    """Supply `file:`."""
    return [
        Factory(
            scheme="file",
            settings=FileStorageSettings,
            open=open_file_store,
            repair=_repair,
            verify=_verify,
            quarantine=Quarantine(_entries, _restore, _delete),
        )
    ]
