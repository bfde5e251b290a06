"""Odradek plugin: a coordinator whose state is a journal of JSON lines, for one process."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from attrs import frozen

from odradek.config import setting
from odradek.contracts.coordinator import Coordinator
from odradek.hookspecs import CoordinatorFactory, hookimpl


@frozen(kw_only=True)
class JournalSettings:
    """The keys of section `[coordinator]` beside `url`."""

    request_timeout_ms: int = setting(
        30_000, minimum=1, doc="How long a write may wait for the disk, in milliseconds."
    )


def _open(url: str, settings: JournalSettings) -> AbstractAsyncContextManager[Coordinator]:
    from odradek.contracts.local import open_local_coordinator
    from odradek_coord_journal.journal import Journal  # nothing of this before it is asked for

    directory = Path(unquote(urlsplit(url).path))
    timeout = settings.request_timeout_ms / 1000  # seconds
    return open_local_coordinator(lambda: Journal(directory), request_timeout=timeout)


@hookimpl
def odradek_coordinator() -> Sequence[CoordinatorFactory]:
    """Serve `journal:///path/to/directory`."""
    return [CoordinatorFactory("journal", JournalSettings, _open)]
