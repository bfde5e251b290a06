import pytest

from odradek.contracts.transport import Transport
from odradek.memory.transport import MemoryNetwork, MemoryTransport
from odradek.testing.transport import TransportConformance


class TestMemoryTransport(TransportConformance):
    url = "memory://"
    bad_urls = ("", "memory:", "memory://a/b", "memory://a b", "tcp://127.0.0.1:1")

    @pytest.fixture
    def transport(self) -> Transport:
        return MemoryTransport(MemoryNetwork())
