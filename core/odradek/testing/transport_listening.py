"""T1 to T5: listening and connecting."""

from __future__ import annotations

import re

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.transport import (
    AddressInUse,
    BadAddress,
    Closed,
    ConnectFailed,
    Connection,
    Transport,
)
from odradek.testing.transport_kit import (
    TransportKit,
    expect,
    receive_bytes,
    receive_until_end,
)

__all__ = ["ListeningPromises"]


class ListeningPromises(TransportKit):
    """T1 to T5: listening and connecting."""

    async def test_t1_the_address_is_complete_and_can_be_connected_to(
        self, transport: Transport
    ) -> None:
        """T1."""
        async with self.listening(transport) as listener:
            assert listener.address != self.url
            here = await transport.connect(listener.address)
            there = await listener.accept()
            await here.send([b"x"])
            assert await receive_bytes(there, 1) == b"x"
            here.abort()
            there.abort()

    async def test_t1_a_second_listener_is_refused_by_name(self, transport: Transport) -> None:
        """T1."""
        async with self.listening(transport) as listener:
            with pytest.raises(AddressInUse, match=re.escape(listener.address)):
                await transport.listen(listener.address)

    async def test_t1_a_closed_address_is_free_at_once(self, transport: Transport) -> None:
        """T1, even while connections of the first listener live."""
        async with self.listening(transport) as listener:
            address = listener.address
            here = await transport.connect(address)
            there = await listener.accept()
            await listener.aclose()
            await there.aclose()
            again = await transport.listen(address)
            assert again.address == address
            await again.aclose()
            here.abort()

    async def test_t2_nobody_at_the_address_is_an_error_that_names_it(
        self, transport: Transport
    ) -> None:
        """T2."""
        async with self.listening(transport) as listener:
            await listener.aclose()
            with pytest.raises(ConnectFailed, match=re.escape(listener.address)):
                await transport.connect(listener.address)

    async def test_t2_a_cancelled_connect_leaves_nothing_open(self, transport: Transport) -> None:
        """T2."""
        async with self.listening(transport) as listener:
            with trio.CancelScope() as scope:
                scope.cancel()
                (await transport.connect(listener.address)).abort()
            here = await transport.connect(listener.address)
            await here.send([b"x"])
            # Whatever the cancelled call set up has to be at its end.
            while True:
                there = await listener.accept()
                received = await receive_until_end(there, stop_at=1)
                there.abort()
                if received == b"x":
                    break
            here.abort()

    async def test_t3_every_connection_is_accepted_once(self, transport: Transport) -> None:
        """T3."""
        names = [bytes([number]) for number in range(20)]
        accepted = []
        async with self.listening(transport) as listener, trio.open_nursery() as nursery:

            async def call(name: bytes) -> None:
                here = await transport.connect(listener.address)
                await here.send([name])
                assert await here.receive_into(memoryview(bytearray(1))) == 0
                here.abort()

            for name in names:
                nursery.start_soon(call, name)
            for _ in names:
                there = await listener.accept()
                accepted.append(await receive_bytes(there, 1))
                await there.aclose()
        assert sorted(accepted) == names

    async def test_t3_a_cancelled_accept_loses_no_connection(self, transport: Transport) -> None:
        """T3, with a connection waiting already, and with one that arrives meanwhile."""
        async with self.listening(transport) as listener:
            accepted: list[Connection] = []

            async def accept() -> None:
                accepted.append(await listener.accept())

            here = await transport.connect(listener.address)
            with trio.CancelScope() as scope:
                scope.cancel()
                await accept()
            if not accepted:
                await accept()
            await here.send([b"1"])
            assert await receive_bytes(accepted[0], 1) == b"1"
            here.abort()
            accepted.pop().abort()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(accept)
                await wait_all_tasks_blocked()
                here = await transport.connect(listener.address)
                nursery.cancel_scope.cancel()
            if not accepted:
                await accept()
            await here.send([b"2"])
            assert await receive_bytes(accepted[0], 1) == b"2"
            here.abort()
            accepted[0].abort()

    async def test_t3_accept_outlives_a_connection_that_is_gone(self, transport: Transport) -> None:
        """T3."""
        async with self.listening(transport) as listener:
            (await transport.connect(listener.address)).abort()
            here = await transport.connect(listener.address)
            await here.send([b"x"])
            received = b""
            while received != b"x":
                there = await listener.accept()
                received = await receive_until_end(there, stop_at=1)
                there.abort()
            here.abort()

    async def test_t3_accept_does_not_wait_for_a_silent_peer(self, transport: Transport) -> None:
        """T3."""
        async with self.listening(transport) as listener, trio.open_nursery() as nursery:
            connected = trio.Event()

            async def call_and_say_nothing() -> None:
                here = await transport.connect(listener.address)
                connected.set()
                try:
                    await trio.sleep_forever()
                finally:
                    here.abort()

            nursery.start_soon(call_and_say_nothing)
            there = await listener.accept()
            await connected.wait()
            there.abort()
            nursery.cancel_scope.cancel()

    async def test_t4_closing_ends_accept_and_spares_connections(
        self, transport: Transport
    ) -> None:
        """T4."""
        async with self.listening(transport) as listener:
            here = await transport.connect(listener.address)
            there = await listener.accept()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect, Closed, listener.accept)
                await wait_all_tasks_blocked()
                await listener.aclose()
            await listener.aclose()
            await expect(Closed, listener.accept)
            with pytest.raises(ConnectFailed):
                await transport.connect(listener.address)
            await here.send([b"x"])
            assert await receive_bytes(there, 1) == b"x"
            here.abort()
            there.abort()

    async def test_t5_a_url_that_makes_no_sense_is_quoted(self, transport: Transport) -> None:
        """T5."""
        for url in self.bad_urls:
            with self.soon(), pytest.raises(BadAddress, match=re.escape(repr(url))):
                await transport.listen(url)
            with self.soon(), pytest.raises(BadAddress, match=re.escape(repr(url))):
                await transport.connect(url)
