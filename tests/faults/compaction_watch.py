"""Watching the lives of `compaction_lives`, and looking at what they left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from signal import SIGKILL
from time import sleep

from tests.faults.compaction_lives import KEY, SETTINGS, STORAGE
from tests.faults.compaction_model import Found, Model

from odradek.config import TopicSettings
from odradek.contracts.background import open_tasks
from odradek.contracts.storage import Claim
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.index_cache import IndexCache
from odradek.log.opening import open_log
from odradek.record import Record, iter_records, scan
from odradek_storage_file import open_file_store

__all__ = ["Lives", "found", "kill"]

ROOT = Path(__file__).parents[2]
MOMENT = 0.15
"""Seconds at most, and mostly less, until an end comes: it falls into a compaction or behind it."""


def kill(pid: int) -> None:
    """End a process with SIGKILL, unless it has ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, SIGKILL)


class Lives:
    """The process that forks lives; see `compaction_lives`."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory = directory
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.compaction_lives"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.ended_in: Counter[str] = Counter()

    def live(
        self, model: Model, random: Random, arm: str = "never", end: Callable[[int], None] = kill
    ) -> bool:
        """Have one life lived; return whether it was killed.

        `arm`: see `compaction_lives`. With "never" it is `end`, given the process, that kills it.
        """
        assert self._process.stdin is not None
        order = model.order(
            directory=str(self._directory),
            seed=random.randrange(2**32),
            arm=arm,
            operation=random.randrange(1, 40),
        )
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        end_at = random.randrange(1, 4) if arm == "never" else 0
        moment = random.random() ** 3 * MOMENT
        compactions = 0
        state = "open"
        pid = 0
        for line in self._lines():
            what = line.split()[0]
            if what == "begin":
                pid = int(line.split()[1])
            elif what == "end":
                status = int(line.split()[1])
                assert status in (0, -SIGKILL), self.said()
                assert status == -SIGKILL or arm == "open", "it ended by itself"
                self.ended_in[state] += status == -SIGKILL
                return status == -SIGKILL
            else:
                model.heard(line)
                state = {"open": "write", "compact": "compact", "compacted": "write"}.get(
                    what, state
                )
                compactions += what == "compact"
                if end_at and compactions == end_at:
                    end_at = 0
                    sleep(moment)  # the life goes on meanwhile: what it says stays in the pipe
                    end(pid)
        raise AssertionError(self.said())

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.decode()

    def said(self) -> str:
        """What the lives complained of."""
        return Path(self._log.name).read_text()

    def close(self) -> None:
        """End the process that forks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()


async def found(directory: Path) -> Found:
    """Open the log as a broker would after the kill, and read all of it as a consumer would."""
    settings = TopicSettings.parse(SETTINGS)
    async with open_file_store(f"file://{directory}", STORAGE) as store, open_tasks() as tasks:
        log = await open_log(
            store, KEY, "kept", settings, Claim(0, 1), IndexCache(), tasks.start_soon
        )
        records: list[Record] = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            result = await log.read(offset, 1 << 20)
            assert result.data is not None
            with result.data as data:
                whole = b"".join(data.views())
            some = list(iter_records(whole))
            records += [record for record in some if record.offset >= offset]
            offset = end_of(whole)
        state = CleanerState.load(log.reader().snapshot.blobs.get(CLEANER_BLOB))
        held = {path.name for path in (directory / f"{KEY.topic_id}-0").glob("*.log")}
        named = {f"{segment.base_offset:020d}.log" for segment in log.segments}
        assert held == named, "there are segments that belong to nothing"
        return Found(
            log.log_start_offset, log.log_end_offset, state.touched_to, records, log.producers
        )


def end_of(batches: bytes) -> int:
    """The offset after the last batch."""
    held = scan(memoryview(batches))
    assert held.problem is None
    return held.metas[-1].last_offset + 1
