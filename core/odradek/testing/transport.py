"""The conformance kit for transports: does a plugin keep the promises T1 to T20?

A plugin's test file is one subclass, one fixture, and what the transport is like:

    class TestTcp(TransportConformance):
        url = "tcp://127.0.0.1:0"
        bad_urls = ("tcp://", "tcp://host", "udp://127.0.0.1:1")
        plain_files = True

        @pytest.fixture
        def transport(self) -> Transport:
            return TcpTransport()

Each test names the promise of `odradek.contracts.transport` that it tries. The tests run on
trio by anyio's pytest plugin and need no other set-up.
"""

from __future__ import annotations

from odradek.testing.transport_bytes import BytesPromises
from odradek.testing.transport_ending import EndingPromises
from odradek.testing.transport_listening import ListeningPromises

__all__ = ["TransportConformance"]


class TransportConformance(ListeningPromises, BytesPromises, EndingPromises):
    """Subclass it, give the fixture `transport`, and set the traits of `TransportKit`."""
