"""What is particular to the memory transport."""

import os
import tempfile

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.transport import AddressInUse, ConnectFailed, FileRange, Part
from odradek.memory.transport import BUFFER_BYTES, MemoryNetwork, MemoryTransport


async def test_transports_without_a_network_of_their_own_meet() -> None:
    listener = await MemoryTransport().listen("memory://")
    here = await MemoryTransport().connect(listener.address)
    here.abort()
    with pytest.raises(ConnectFailed, match="nobody listens there in this process"):
        await MemoryTransport(MemoryNetwork()).connect(listener.address)
    await listener.aclose()


async def test_a_listener_that_was_dropped_frees_its_name() -> None:
    transport = MemoryTransport(MemoryNetwork())
    listener = await transport.listen("memory://name")
    with pytest.raises(AddressInUse):
        await transport.listen("memory://name")
    del listener
    listener = await transport.listen("memory://name")
    await listener.aclose()


async def test_open_names_avoid_those_taken() -> None:
    transport = MemoryTransport(MemoryNetwork())
    taken = await transport.listen("memory://any-1")
    listener = await transport.listen("memory://")
    assert listener.address == "memory://any-2"
    await taken.aclose()
    await listener.aclose()


async def test_the_buffer_of_a_direction_is_bounded() -> None:
    transport = MemoryTransport(MemoryNetwork())
    listener = await transport.listen("memory://")
    here = await transport.connect(listener.address)
    there = await listener.accept()
    with tempfile.TemporaryFile(buffering=0) as file:
        os.truncate(file.fileno(), 2 * BUFFER_BYTES)
        async with trio.open_nursery() as nursery:
            parts: list[Part] = [b"x", FileRange(file.fileno(), 0, 2 * BUFFER_BYTES)]
            nursery.start_soon(here.send, parts)
            await wait_all_tasks_blocked()
            buffer = memoryview(bytearray(4 * BUFFER_BYTES))
            assert await there.receive_into(buffer) == BUFFER_BYTES
            assert await there.receive_into(buffer) == BUFFER_BYTES
            assert await there.receive_into(buffer) == 1
    here.abort()
    there.abort()
    await listener.aclose()


async def test_connect_waits_for_room_in_the_backlog_and_for_the_end_of_the_listener() -> None:
    transport = MemoryTransport(MemoryNetwork())
    listener = await transport.listen("memory://")
    connections = [await transport.connect(listener.address) for _ in range(128)]

    async def one_more() -> None:
        connections.append(await transport.connect(listener.address))

    async def one_too_many() -> None:
        with pytest.raises(ConnectFailed, match="the listener was closed"):
            await transport.connect(listener.address)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_more)
        await wait_all_tasks_blocked()
        assert len(connections) == 128
        connections.append(await listener.accept())
        await wait_all_tasks_blocked()
        assert len(connections) == 130
        nursery.start_soon(one_too_many)
        await wait_all_tasks_blocked()
        await listener.aclose()
    for connection in connections:
        connection.abort()
