"""Nothing that the embedded coordinator acknowledged is lost by kill -9."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from odradek.contracts.coordinator import Entry
from odradek.contracts.local import BOOT_SHIFT


def test_killed_twenty_times_loses_nothing_acknowledged(
    tmp_path: Path, start_writer: Any, read_entries: Callable[[Path], dict[str, Entry]]
) -> None:
    script = random.Random(9)
    newest = 0
    for life in range(1, 21):
        writer = start_writer(tmp_path)
        writer.read(script.randrange(1, 400))
        writer.kill()
        assert not writer.errors
        entries = read_entries(tmp_path)
        writer.check(entries)
        assert "mine/key" not in entries, "an ephemeral entry outlived its process"
        revision = max(entry.revision for entry in entries.values()) if entries else 0
        assert revision >= newest, "revisions went back"
        # Two openings for each life: the writer's own and the one that looked.
        assert revision >> BOOT_SHIFT <= 2 * life
        newest = revision
    assert newest >> BOOT_SHIFT > 1


def test_killed_while_opening_for_the_first_time_opens_the_next_time(
    tmp_path: Path, start_writer: Any, read_entries: Callable[[Path], dict[str, Entry]]
) -> None:
    names = ("coordinator.db.new", "coordinator.new", "coordinator.new-journal")
    for content in (b"", b"SQLite format 3\0 and no more"):
        for name in names:
            (tmp_path / name).write_bytes(content)
    writer = start_writer(tmp_path)
    writer.read(50)
    writer.kill()
    writer.check(read_entries(tmp_path))
