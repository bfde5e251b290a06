"""Work beside the event loop: results, errors, cancellation, and what is left afterwards."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import trio

from odradek.log.worker import InlineWorker, ThreadWorker, Worker


@pytest.fixture(
    params=[InlineWorker, lambda: ThreadWorker("test-worker")], ids=["inline", "thread"]
)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    made: Worker = request.param()
    yield made
    made.close()


async def test_results_and_errors_come_back(worker: Worker) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    assert await worker.run(divide, 6, 3) == 2
    with pytest.raises(ZeroDivisionError):
        await worker.run(divide, 1, 0)
    assert await worker.run(divide, 1, 2) == 0.5


async def test_call_that_is_cancelled_before_it_begins_is_not_made(worker: Worker) -> None:
    called: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await worker.run(called.append, 1)
    assert scope.cancelled_caught
    assert not called


async def test_call_under_way_is_waited_for_when_cancelled() -> None:
    worker = ThreadWorker("test-worker")
    begun, go_on = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go_on.wait(10)
        return "done"

    async def release() -> None:
        await trio.to_thread.run_sync(begun.wait)
        scope.cancel()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert not finished
        go_on.set()

    finished = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(release)
        with trio.CancelScope() as scope:
            finished.append(await worker.run(work))
    assert finished == ["done"]
    worker.close()


async def test_event_loop_goes_on_meanwhile() -> None:
    worker = ThreadWorker("test-worker")
    go_on = threading.Event()

    async def release() -> None:
        go_on.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(release)
        assert await worker.run(go_on.wait, 10)
    worker.close()


async def test_nothing_is_kept_of_a_call(worker: Worker) -> None:
    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError("no")

    thing = Thing()
    gone = weakref.ref(thing)
    await worker.run(id, thing)
    with pytest.raises(ValueError, match="no"):
        await worker.run(fail, thing)
    await worker.run(id, None)
    del thing
    gc.collect()
    assert gone() is None


async def test_thread_ends_with_close() -> None:
    worker = ThreadWorker("test-worker-that-ends")

    def running() -> bool:
        return any(each.name == "test-worker-that-ends" for each in threading.enumerate())

    assert not running(), "it is begun with the first call"
    await worker.run(id, None)
    assert running()
    worker.close()
    worker.close()
    assert not running()
    assert await worker.run(abs, -1) == 1, "it may be used again"
    worker.close()
