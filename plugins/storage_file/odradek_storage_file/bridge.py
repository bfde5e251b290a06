"""The only threads of this plugin, and how they meet trio.

`GroupCommit` owns one thread per directory that makes appended bytes durable: one pass takes
every partition that has something to sync, and whatever is appended while a pass runs is covered
by the next. A pass begins at the end of the scheduler's turn in which the first append came, so
that the partitions of one request, and the requests that arrived together, share it.

`in_thread` runs other blocking work on files in trio's worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

import trio

from odradek.contracts.storage import StorageError, Unavailable
from odradek_storage_file.ops import Ops

__all__ = ["GroupCommit", "Syncable", "Work", "in_thread"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MANY_APPENDS = 16
GATHER_S = 0.001
"""When more than so many appends came during a pass, the next one lets them gather for so long.

A pass costs about 0.1 ms of CPU time whatever it syncs. A client that pipelines single messages
fills one with 15 to 30; with twice as many, the broker spends a tenth less on each, and nobody
waits who was not waiting behind the others anyway. A client that sends one at a time, or large
batches, never comes near the number.
"""

RETRY_S = 0.01

WORKERS = 8
"""Threads for recovery and edits: enough to keep a disk busy, few enough to bound memory."""

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("storage_file")


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run blocking work on files in a worker thread.

    Cancelled before it starts, or not at all: the disk is never left half-way by a cancellation.
    """
    try:
        limiter = _limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(WORKERS)
        _limiters.set(limiter)
    return await trio.to_thread.run_sync(function, *args, limiter=limiter)


class Work(NamedTuple):
    """What a pass does for one partition: sync the files, then the directory if it changed."""

    fds: Sequence[int]
    directory: str | None


class Syncable(Protocol):
    """A partition, as the group commit sees it. Every method is called in the trio thread."""

    def begin_sync(self) -> Work:
        """Return what has to be synced for all that was appended so far.

        Raises Unavailable when that cannot be done at the moment, and StorageError.
        """

    def end_sync(self, error: OSError | None) -> None:
        """Take note that the work of the last `begin_sync` was done, or failed."""


class GroupCommit:
    """Syncs the partitions of one directory, a pass at a time, in a thread of its own.

    A pass takes `at_once` partitions, since it holds a descriptor or two for each. It begins
    `interval_s` after the first append, if that is given, or when `interval_bytes` were counted,
    or when `hurry` is called. `failed` is called once, with the error that ended it all: no pass
    is made after a failure. Who appends adds to `appends`.
    """

    def __init__(
        self,
        ops: Ops,
        failed: Callable[[OSError], object],
        at_once: int,
        interval_s: float | None = None,
        interval_bytes: int = 0,
    ) -> None:
        self._ops = ops
        self._failed = failed
        self._at_once = at_once
        self._interval = interval_s
        self._interval_bytes = interval_bytes
        self._counted = 0
        self.appends = 0
        self._waiting: list[Syncable] = []
        self._task: trio.lowlevel.Task | None = None
        self._urgent = trio.Event()
        self._stopping = False
        self._broken = False
        self._go = threading.Lock()  # held, but for the moment in which a job is handed over
        self._go.acquire()
        self._job: list[Work] | None = None
        self._result: OSError | None = None
        self._thread: threading.Thread | None = None

    def mark(self, partition: Syncable) -> None:
        """Have a partition synced by the next pass; the caller marks it once per pass."""
        self._waiting.append(partition)
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def count(self, size: int) -> None:
        """Count appended bytes towards `interval_bytes`."""
        self._counted += size
        if self._counted >= self._interval_bytes:
            self._counted = 0
            self._urgent.set()

    def hurry(self) -> None:
        """Do not wait for the interval to pass."""
        self._urgent.set()

    async def run(self) -> None:
        """Make passes until `stop`, which is the only way to end it."""
        token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(
            target=self._work, args=(token,), name="odradek-storage-file-sync", daemon=True
        )
        self._thread.start()
        try:
            # Not cancelled with the store's block: logs are still closed then, which takes a sync.
            with trio.CancelScope(shield=True):
                await self._run()
        finally:
            self._job = None
            self._go.release()
            self._thread.join()  # it is idle, or ends with the pass it is in

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._stopping:
                    return
                await self._park()
                continue
            if self._interval is not None and not self._stopping:
                with trio.move_on_after(self._interval):
                    await self._urgent.wait()
                if self._urgent.is_set():
                    self._urgent = trio.Event()
            elif self.appends > MANY_APPENDS and not self._stopping:
                with trio.move_on_after(GATHER_S):
                    await self._urgent.wait()
                if self._urgent.is_set():
                    self._urgent = trio.Event()
            self.appends = 0
            await self._pass()

    async def _park(self) -> None:
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _pass(self) -> None:
        batch, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
        work = []
        error: OSError | None = None
        for number, partition in enumerate(batch):
            try:
                work.append(partition.begin_sync())
            except Unavailable:
                self._waiting[:0] = batch[number:]
                del batch[number:]
                break
            except StorageError as problem:
                error = OSError(str(problem))
        if not batch:
            await trio.sleep(RETRY_S)  # others hold every descriptor of the process
            return
        if self._broken:
            error = OSError("an earlier sync of the directory failed")
        elif error is None:
            error = await self._in_sync_thread(work)
        if error is not None and not self._broken:
            self._broken = True
            self._failed(error)
        for partition in batch:
            partition.end_sync(error)

    async def _in_sync_thread(self, work: list[Work]) -> OSError | None:
        self._job = work
        self._waker = trio.lowlevel.current_task()
        self._go.release()
        # A pass is short and its outcome decides what is acknowledged: cancellation waits for it.
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return self._result

    def stop(self) -> None:
        """Make a last pass if something waits, then let `run` return."""
        self._stopping = True
        self._urgent.set()
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        """The thread: it touches no state but the job it was given."""
        while True:
            self._go.acquire()
            job = self._job
            if job is None:
                return
            self._result = self._sync(job)
            try:
                token.run_sync_soon(trio.lowlevel.reschedule, self._waker)
            except trio.RunFinishedError:
                return

    def _sync(self, job: list[Work]) -> OSError | None:
        ops = self._ops
        try:
            for fds, directory in job:
                for fd in fds:
                    ops.fdatasync(fd)
                if directory is not None:
                    ops.sync_directory(directory)
        except OSError as error:
            return error
        return None
