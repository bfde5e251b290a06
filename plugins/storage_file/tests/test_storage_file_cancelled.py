"""A store whose block is cancelled: what is still open is closed in order, and soon."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from odradek.contracts.storage import Claim
from odradek.testing.storage import KEY, Log
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.store import open_store

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)


async def test_a_log_is_synced_and_closed_after_the_block_was_cancelled(tmp_path: Path) -> None:
    """As by a signal to a broker that has just rolled a segment."""
    with trio.CancelScope() as scope:
        async with open_store(tmp_path.as_uri(), SETTINGS) as store:
            log = Log(await store.open_writer(KEY, Claim(1, 1)))
            await log.append().wait()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True), trio.fail_after(10):
                    await trio.testing.wait_all_tasks_blocked()
                    log.writer.roll()
                    log.append()
                    await log.writer.flush()
                    await log.writer.aclose()
    assert (tmp_path / layout.CLEAN_MARKER).exists()


async def test_a_store_opened_in_a_cancelled_scope_closes(tmp_path: Path) -> None:
    with trio.fail_after(10), trio.CancelScope() as scope:
        scope.cancel()
        async with open_store(tmp_path.as_uri(), SETTINGS):
            await trio.sleep_forever()
    assert (tmp_path / layout.CLEAN_MARKER).exists()
