"""What is known of idempotent producers after the beginning of a log was deleted, and a crash."""

from __future__ import annotations

import pytest
from tests.log.logs import OpenLog, add, batch, committed

from odradek.contracts.storage import LogEdit, Offline
from odradek.log.producer_snapshots import PRODUCERS_BLOB


def sent(sequence: int, producer: int = 7, count: int = 4) -> bytearray:
    return batch(count, producer_id=producer, producer_epoch=0, base_sequence=sequence)


@pytest.mark.parametrize("offset", [1, 4, 6, 8, 10, 12])
@pytest.mark.parametrize("rolls", [False, True])
async def test_producer_is_known_after_its_records_were_deleted_and_a_crash(
    with_log: OpenLog, offset: int, rolls: bool
) -> None:
    async with with_log() as log:
        add(log, sent(0, producer=8))
        if rolls:
            log.roll()
        add(log, sent(0))
        add(log, sent(4))
        await committed(log)
        await log.trim(offset)
        log.failure = Offline("killed")
    async with with_log(epoch=1) as log:
        assert log.log_start_offset == offset
        assert add(log, sent(4))[:4] == (8, 12, -1, True)
        assert add(log, sent(0, producer=8))[:4] == (0, 4, -1, True)
        assert not add(log, sent(8)).duplicate


async def test_damaged_snapshot_is_made_up_for_by_all_that_is_stored(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, sent(0))
        await committed(log)
        await log.trim(2)
        await log.edit(lambda _: LogEdit(blobs={PRODUCERS_BLOB: b"damaged"}))
        log.failure = Offline("killed")
    async with with_log(epoch=1) as log:
        assert add(log, sent(0))[:4] == (0, 4, -1, True)
