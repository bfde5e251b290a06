"""T6 to T13: bytes, back-pressure and file ranges."""

from __future__ import annotations

import os
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.transport import (
    Busy,
    Closed,
    Connection,
    FileRange,
    Part,
    ShortFile,
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

__all__ = ["BytesPromises"]


class BytesPromises(TransportKit):
    """T6 to T13: bytes, back-pressure and file ranges."""

    async def test_t6_bytes_arrive_in_order_whatever_they_come_from(
        self, transport: Transport
    ) -> None:
        """T6, by 4,000 parts of all kinds and sizes in a few calls to a reader of odd habits."""
        chance = random.Random(6)
        content = chance.randbytes(1 << 20)
        with open_file(content) as fd:
            parts: list[Part] = []
            expected = bytearray()
            for number in range(4000):
                size = chance.choice((0, 1, 7, 60, 300, 5000 if number % 10 else 200_000))
                offset = chance.randrange(len(content) - size)
                piece = content[offset : offset + size]
                kind = chance.randrange(5)
                forms = (piece, bytearray(piece), memoryview(content)[offset : offset + size])
                parts.append(forms[kind] if kind < 3 else FileRange(fd, offset, size))
                expected += piece
            sizes = iter(lambda: chance.choice((1, 1000, 65536, 1 << 20)), None)
            async with self.pair(transport) as (here, there), trio.open_nursery() as nursery:
                nursery.start_soon(send_in_calls, here, parts, 1500)
                received = await receive_bytes(there, len(expected), sizes)
            assert received == expected

    async def test_t6_nothing_is_sent_for_empty_parts(self, transport: Transport) -> None:
        """T6."""
        with open_file(b"file") as fd:
            async with self.pair(transport) as (here, there):
                await here.send([])
                await here.send([b""])
                await here.send([FileRange(fd, 2, 0), bytearray(), memoryview(b"")])
                await here.send([b"", b"head", FileRange(fd, 0, 0), b""])
                assert await receive_bytes(there, 4) == b"head"
                await here.send([b"", FileRange(fd, 1, 2), b"", b"x"])
                assert await receive_bytes(there, 3) == b"ilx"

    async def test_t7_receive_does_not_wait_for_a_full_buffer(self, transport: Transport) -> None:
        """T7."""
        async with self.pair(transport) as (here, there):
            await here.send([b"abcdef"])
            assert await receive_bytes(there, 2, iter([2])) == b"ab"
            buffer = memoryview(bytearray(1000))
            assert bytes(buffer[: await there.receive_into(buffer)]) == b"cdef"
            with pytest.raises(ValueError, match="buffer"):
                await there.receive_into(memoryview(bytearray()))

    async def test_t8_the_end_follows_the_last_byte_and_stays(self, transport: Transport) -> None:
        """T8."""
        for end in ("send_eof", "aclose"):
            async with self.pair(transport) as (here, there):
                await here.send([bytes(100_000)])
                await getattr(here, end)()
                assert await receive_bytes(there, 100_000) == bytes(100_000)
                buffer = memoryview(bytearray(10))
                assert [await there.receive_into(buffer) for _ in range(3)] == [0, 0, 0]

    async def test_t9_buffers_and_descriptors_are_free_after_send(
        self, transport: Transport
    ) -> None:
        """T9."""
        content = random.Random(9).randbytes(200_000)
        async with self.pair(transport) as (here, there):

            async def send_and_reuse() -> None:
                buffer = bytearray(content)
                with open_file(content) as fd:
                    await here.send([buffer, FileRange(fd, 0, len(content)), memoryview(buffer)])
                buffer[:] = bytes(len(buffer))
                buffer.clear()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_and_reuse)
                assert await receive_bytes(there, 3 * len(content)) == content * 3

    async def test_t10_send_waits_for_a_peer_that_does_not_read(self, transport: Transport) -> None:
        """T10, for buffers and for file ranges."""
        with open_file(b"") as fd:
            os.truncate(fd, TOO_MUCH)
            everything: list[Part] = [bytes(TOO_MUCH), FileRange(fd, 0, TOO_MUCH)]
            for part in everything:
                async with self.pair(transport) as (here, there), trio.open_nursery() as nursery:
                    sent = trio.Event()

                    async def send(connection: Connection, part: Part, sent: trio.Event) -> None:
                        await connection.send([part])
                        sent.set()

                    nursery.start_soon(send, here, part, sent)
                    await wait_all_tasks_blocked(0.01)
                    assert not sent.is_set(), f"{TOO_MUCH} bytes sent, and nobody reads"
                    await receive_bytes(there, TOO_MUCH, keep=False)
                    await sent.wait()

    async def test_t11_a_direction_that_waits_does_not_stop_the_other(
        self, transport: Transport
    ) -> None:
        """T11."""
        async with self.pair(transport) as (here, there), trio.open_nursery() as nursery:
            nursery.start_soon(here.send, [bytes(TOO_MUCH)])
            await wait_all_tasks_blocked(0.01)
            await there.send([b"meanwhile"])
            assert await receive_bytes(here, 9) == b"meanwhile"
            await receive_bytes(there, TOO_MUCH, keep=False)

    async def test_t11_ending_one_direction_leaves_the_other(self, transport: Transport) -> None:
        """T11."""
        async with self.pair(transport) as (here, there):
            await here.send([b"question"])
            await here.send_eof()
            await here.send_eof()
            await expect(Closed, here.send, [b"x"])
            assert await receive_until_end(there) == b"question"
            await there.send([b"answer"])
            assert await receive_bytes(here, 6) == b"answer"

    async def test_t12_a_range_is_the_bytes_at_its_offset(self, transport: Transport) -> None:
        """T12."""
        with open_file(b"0123456789") as fd:
            os.lseek(fd, 5, os.SEEK_SET)
            async with self.pair(transport) as (here, there):
                await here.send([FileRange(fd, 2, 3), FileRange(fd, 1, 1), FileRange(fd, 9, 1)])
                assert await receive_bytes(there, 5) == b"23419"
                assert os.lseek(fd, 0, os.SEEK_CUR) == 5

    async def test_t12_a_file_too_short_aborts(self, transport: Transport) -> None:
        """T12; and what stands after the range is not sent in its place."""
        with open_file(b"0123456789") as fd:
            async with self.pair(transport) as (here, there):
                await expect(ShortFile, here.send, [b"head", FileRange(fd, 5, 100), b"tail"])
                await expect(Closed, here.send, [b"x"])
                assert b"head56789".startswith(await receive_until_lost(there))

    async def test_t12_a_file_that_cannot_be_read_aborts(self, transport: Transport) -> None:
        """T12, and `Connection.send`: the file's own error."""
        with open_file(b"0123456789") as fd:
            gone = os.dup(fd)
        os.close(gone)
        async with self.pair(transport) as (here, there):
            await expect(OSError, here.send, [b"head", FileRange(gone, 0, 5)])
            assert b"head".startswith(await receive_until_lost(there))

    async def test_t13_one_task_at_a_time_in_each_direction(self, transport: Transport) -> None:
        """T13."""
        async with self.pair(transport) as (here, there), trio.open_nursery() as nursery:
            received: list[bytes] = []

            async def receive() -> None:
                received.append(await receive_bytes(here, 5))

            nursery.start_soon(receive)
            nursery.start_soon(here.send, [bytes(TOO_MUCH)])
            await wait_all_tasks_blocked(0.01)
            await expect(Busy, here.receive_into, memoryview(bytearray(5)))
            await expect(Busy, here.send, [b"x"])
            await expect(Busy, here.send_eof)
            await there.send([b"first"])
            await receive_bytes(there, TOO_MUCH, keep=False)
        assert received == [b"first"]
