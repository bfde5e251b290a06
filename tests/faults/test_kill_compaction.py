"""kill -9 during compaction: the newest value of each key, and every live offset, is right then.

Half of the lives end themselves at one change of the disk or another: in a write, before a rename,
after a sync. The others are killed from outside, at any moment, and some while they recover.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

pytest.importorskip("odradek_storage_file")

from tests.faults.compaction_model import Model
from tests.faults.compaction_watch import Lives, found

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ODRADEK_COMPACTION_KILLS", "200"))


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    started = Lives(tmp_path / "log", tmp_path / "lives.log")
    yield started
    started.close()


def test_newest_values_and_live_offsets_are_right_after_kills_during_compaction(
    lives: Lives, random: Random, tmp_path: Path
) -> None:
    model = Model(random.randrange(2**32))
    kills = 0
    while kills < KILLS:
        arm = random.choices(("open", "compact", "never"), (1, 5, 5))[0]
        kills += lives.live(model, random, arm)
        model.check(trio.run(found, tmp_path / "log"))
    assert lives.ended_in["compact"] >= KILLS // 4, lives.ended_in
    assert model.compacted >= KILLS // 8
    assert lives.said() == ""
