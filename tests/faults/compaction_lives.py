"""Lives of a process that writes to a log and compacts it, each ended by SIGKILL.

A process that reads lines of JSON, one for each life, and forks for it: with everything imported
once, a life costs milliseconds. A life says what it does, one line each, before or after the
deed as named:

    begin PID              the life begins
    open END               the log is open, and ends at END
    send NUMBER BASE       batch NUMBER is about to be appended at offset BASE
    ack NUMBER             it is committed
    trim OFFSET            records below OFFSET are about to be deleted
    trimmed OFFSET         they are
    compact                a compaction is about to begin
    compacted BOOL         it has ended, and changed something or not
    end STATUS             the life has ended (said by its parent): the signal, negative, or 0

The life kills itself at its `operation`-th change of the disk after it was armed (`arm`: at the
`open`ing or at a `compact`ion), or is killed from outside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from random import Random
from threading import Lock
from typing import Any
from uuid import UUID

import trio
from tests.faults.compaction_traffic import T0, batch_of

from odradek.config import TopicSettings
from odradek.contracts.background import open_tasks
from odradek.contracts.storage import Claim
from odradek.log.cleaner import Tools, compact, survey
from odradek.log.index_cache import IndexCache
from odradek.log.opening import open_log
from odradek.log.partition import PartitionLog
from odradek.log.worker import ThreadWorker
from odradek.record import parse_header
from odradek.types import PartitionKey
from odradek_storage_file import FileStorageSettings
from odradek_storage_file.ops import Ops
from odradek_storage_file.store import open_store

__all__ = ["KEY", "SETTINGS", "STORAGE"]

KEY = PartitionKey(UUID(int=11), 0)
STORAGE = FileStorageSettings(recovery_bytes=65_536, min_free_bytes=0, ballast_bytes=0)
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "8192",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "50",
}
IN_FLIGHT = 4
SEGMENTS = 4
"""Sealed segments that gather before the log is compacted again."""


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class KillingOps(Ops):
    """Ends the process before, in or after its n-th change of the disk once armed.

    Most changes are writes and syncs of appends. In two of three lives only the others count: files
    made, renamed and removed, and syncs of their directory, which is what a swap is made of.
    """

    def __init__(self, at: int, random: Random) -> None:
        self._left = at
        self._where = random.choice(("before", "within", "after"))
        self._share = random.random()
        self._names_only = random.random() < 2 / 3
        self._armed = False
        self._lock = Lock()  # the store writes in several threads
        for name in ("fdatasync", "ftruncate"):
            setattr(self, name, self._deadly(getattr(Ops, name), False))
        for name in ("fsync", "rename", "unlink", "mkdir"):
            setattr(self, name, self._deadly(getattr(Ops, name), True))
        setattr(self, "open", self._open)  # noqa: B010  # mypy: it takes fewer arguments
        setattr(self, "pwritev", self._pwritev)  # noqa: B010  # likewise

    def arm(self) -> None:
        self._armed = True

    def _due(self, names: bool) -> bool:
        if not self._armed or (self._names_only and not names):
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def _deadly(self, call: Callable[..., Any], names: bool) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            due = self._due(names)
            if due and self._where == "before":
                die()
            try:
                return call(*arguments)
            finally:  # also where a name is taken, or a file gone already
                if due:
                    die()

        return called

    def _open(self, path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT and self._due(True):
            try:
                if self._where != "before":
                    os.open(path, flags, mode, **more)
            finally:
                die()
        return os.open(path, flags, mode, **more)

    def _pwritev(self, fd: int, buffers: Any, offset: int, *more: Any) -> int:
        if self._due(False):
            data = b"".join(bytes(each) for each in buffers)
            kept = {"before": 0, "within": int(len(data) * self._share), "after": len(data)}
            os.pwrite(fd, data[: kept[self._where]], offset)
            die()
        return os.pwritev(fd, buffers, offset, *more)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """Appends, trims and compacts at once, until it is killed."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._random = Random(order["seed"])
        self._ops = KillingOps(order["operation"], self._random)
        self._number: int = order["number"]
        self._sequence: int = order["sequence"]
        # At times a map that does not hold all keys: then a pass ends before the dirty part does.
        self._tools = Tools(
            worker=ThreadWorker("compaction"),
            gate=no_pace,
            seed=self._random.randbytes(16),
            map_bytes=self._random.choice((256, 65_536)),
        )
        self._slots = trio.Semaphore(IN_FLIGHT)

    async def live(self) -> None:
        order = self._order
        if order["arm"] == "open":
            self._ops.arm()
        url = f"file://{order['directory']}"
        settings = TopicSettings.parse(SETTINGS)
        async with open_store(url, STORAGE, self._ops) as store, open_tasks() as tasks:
            log = await open_log(
                store, KEY, "kept", settings, Claim(0, 1), IndexCache(), tasks.start_soon
            )
            say("open", log.log_end_offset)
            if order["arm"] == "open":
                return
            tasks.start_soon(self._compact, log)
            while True:
                await self._slots.acquire()
                tasks.start_soon(self._committed, log, self._append(log))
                if self._random.random() < 0.01:
                    await self._trim(log)
                await trio.lowlevel.checkpoint()

    def _append(self, log: PartitionLog) -> tuple[int, int]:
        number = self._number
        data = batch_of(self._order["run"], number, self._sequence)
        meta = parse_header(data)
        say("send", number, log.log_end_offset)
        appended = log.append(meta, data, 0)
        assert not appended.duplicate
        self._number += 1
        self._sequence += meta.record_count
        return number, appended.end_offset

    async def _committed(self, log: PartitionLog, sent: tuple[int, int]) -> None:
        number, end_offset = sent
        await log.wait_committed(end_offset)
        say("ack", number)
        self._slots.release()

    async def _trim(self, log: PartitionLog) -> None:
        span = log.high_watermark - log.log_start_offset
        offset = log.log_start_offset + int(span * self._random.random() ** 3)
        say("trim", offset)
        say("trimmed", await log.trim(offset))

    async def _compact(self, log: PartitionLog) -> None:
        while True:
            had = log.segments[-1].id
            while log.segments[-1].id < had + SEGMENTS:
                await log.wait_committed(log.log_end_offset + 1)
            say("compact")
            if self._order["arm"] == "compact":
                self._ops.arm()
            say("compacted", await self._compact_once(log))

    async def _compact_once(self, log: PartitionLog) -> bool:
        """Compact the log as far as it is due; return whether anything was rewritten."""
        now = T0 + 1000 * self._number  # goes on from life to life: tombstones come to their end
        due = await survey(log, now, {})
        if due is None:
            return False
        done = await compact(log, due, self._tools, now_ms=now, proven_ms=now)
        return done is not None and done.rewritten > 0


async def no_pace(size: int) -> None:
    await trio.lowlevel.checkpoint()


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                say("begin", os.getpid())
                trio.run(Life(order).live)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        say("end", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
