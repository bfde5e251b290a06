"""T14 to T20: cancellation, fairness and the end of connections."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.transport import (
    Closed,
    Connection,
    ConnectionLost,
    FileRange,
    Part,
    Transport,
)
from odradek.testing.transport_kit import (
    TOO_MUCH,
    TransportKit,
    expect,
    open_file,
    receive_bytes,
    receive_until_end,
    receive_until_lost,
    send_in_calls,
)

__all__ = ["EndingPromises"]


class EndingPromises(TransportKit):
    """T14 to T20: cancellation, fairness and the end of connections."""

    async def test_t14_a_cancelled_receive_takes_no_byte(self, transport: Transport) -> None:
        """T14, with bytes waiting, and with bytes that arrive as it is cancelled."""
        content = random.Random(14).randbytes(600)
        async with self.pair(transport) as (here, there):
            await here.send([content])
            received = bytearray()
            buffer = memoryview(bytearray(1))
            for turn in range(2 * len(content)):
                if len(received) == len(content):
                    break
                with trio.CancelScope() as scope:
                    if turn % 2:
                        scope.cancel()
                    taken = await there.receive_into(buffer)
                    received += buffer[:taken]
            assert received == content

        async with self.pair(transport) as (here, there):
            for _ in range(20):
                received.clear()

                async def receive(end: Connection, into: bytearray) -> None:
                    into += await receive_bytes(end, 1, iter([1]))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive, there, received)
                    await wait_all_tasks_blocked()
                    await here.send([b"x"])
                    nursery.cancel_scope.cancel()
                if not received:
                    await receive(there, received)
                assert received == b"x"

    async def test_t15_a_cancelled_send_aborts(self, transport: Transport) -> None:
        """T15."""
        async with self.pair(transport) as (here, there):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.send, [b"begin", bytes(TOO_MUCH), b"end"])
                await wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
            await expect(Closed, here.send, [b"x"])
            received = await receive_until_lost(there)
            assert (b"begin" + bytes(TOO_MUCH)).startswith(received)

    async def test_t16_a_busy_connection_lets_others_run(self, transport: Transport) -> None:
        """T16."""
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        calls = 640
        async with self.pair(transport) as (here, there), trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for direction in ("send", "receive"):
                before = turns
                for _ in range(calls):
                    if direction == "send":
                        await here.send([b"x"])
                    else:
                        await there.receive_into(memoryview(bytearray(1)))
                assert turns - before >= calls // 64 - 1, direction
            nursery.cancel_scope.cancel()

    async def test_t16_a_busy_connection_notices_its_cancellation(
        self, transport: Transport
    ) -> None:
        """T16."""
        async with self.pair(transport) as (here, there):
            await here.send([bytes(1000)])
            received = sent = 0
            with trio.CancelScope() as scope:
                scope.cancel()
                while received < 1000:
                    received += await there.receive_into(memoryview(bytearray(1)))
            assert received < 64
            with trio.CancelScope() as scope:
                scope.cancel()
                while sent < 1000:
                    await here.send([b"x"])
                    sent += 1
            assert sent < 64

    async def test_t17_closing_delivers_what_was_sent(self, transport: Transport) -> None:
        """T17, although the peer's own bytes were never read."""
        content = random.Random(17).randbytes(200_000)
        async with self.pair(transport) as (here, there):
            await there.send([bytes(1000)])
            await here.send([content])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.aclose)
                assert await receive_until_end(there) == content
                await there.aclose()

    async def test_t17_closing_ends_the_calls_on_this_side(self, transport: Transport) -> None:
        """T17."""
        async with self.pair(transport) as (here, _):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect, Closed, receive_bytes, here, 1)
                await wait_all_tasks_blocked(0.01)
                await here.aclose()
            await expect(Closed, here.receive_into, memoryview(bytearray(1)))
            await expect(Closed, here.send, [b"x"])
            await expect(Closed, here.send_eof)
            await here.aclose()
            here.abort()

    async def test_t17_closing_in_the_middle_of_a_send_is_an_abort(
        self, transport: Transport
    ) -> None:
        """T17."""
        async with self.pair(transport) as (here, there):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect, Closed, here.send, [bytes(TOO_MUCH)])
                await wait_all_tasks_blocked(0.01)
                await here.aclose()
            assert len(await receive_until_lost(there)) < TOO_MUCH

    async def test_t17_a_cancelled_close_is_an_abort(self, transport: Transport) -> None:
        """T17."""
        async with self.pair(transport) as (here, there):
            with trio.CancelScope() as scope:
                scope.cancel()
                await here.aclose()
            assert scope.cancelled_caught
            await expect(Closed, here.send, [b"x"])
            assert await receive_until_lost(there) == b""

    async def test_t18_abort_ends_both_sides_at_once(self, transport: Transport) -> None:
        """T18."""
        async with self.pair(transport) as (here, there):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect, Closed, here.receive_into, memoryview(bytearray(1)))
                nursery.start_soon(expect, Closed, here.send, [bytes(TOO_MUCH)])
                await wait_all_tasks_blocked(0.01)
                here.abort()
            here.abort()
            await here.aclose()
            await expect(Closed, here.receive_into, memoryview(bytearray(1)))
            await expect(Closed, here.send, [b"x"])
            assert len(await receive_until_lost(there)) < TOO_MUCH

    async def test_t19_a_lost_connection_says_so_and_goes_on_saying_so(
        self, transport: Transport
    ) -> None:
        """T19, with calls waiting when the peer aborts, and for every call afterwards."""
        async with self.pair(transport) as (here, there):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect, ConnectionLost, receive_bytes, here, 1)
                nursery.start_soon(expect, ConnectionLost, here.send, [bytes(TOO_MUCH)])
                await wait_all_tasks_blocked(0.01)
                there.abort()
            for _ in range(3):
                await expect(ConnectionLost, here.receive_into, memoryview(bytearray(1)))
                await expect(ConnectionLost, here.send, [b"x"])

    async def test_t19_sending_to_a_peer_that_has_closed_fails(self, transport: Transport) -> None:
        """T19, for buffers and for file ranges."""
        with open_file(bytes(1024)) as fd:
            parts: list[Part] = [bytes(1024), FileRange(fd, 0, 1024)]
            for part in parts:
                async with self.pair(transport) as (here, there):
                    await there.aclose()
                    with pytest.raises(ConnectionLost):
                        await send_in_calls(here, [part] * (TOO_MUCH // 1024), 1)

    async def test_t20_a_connection_says_who_it_joins(self, transport: Transport) -> None:
        """T20."""
        scheme = self.url.partition(":")[0] + "://"
        async with self.pair(transport) as (here, there):
            for _ in range(2):
                assert here.peer == there.local
                assert here.local == there.peer
                assert here.peer.startswith(scheme)
                assert here.local.startswith(scheme)
                assert here.peer != here.local
                assert here.plain_files is there.plain_files is self.plain_files
                here.abort()
                there.abort()
