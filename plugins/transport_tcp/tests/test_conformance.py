import pytest

from odradek.contracts.transport import Transport
from odradek.testing.transport import TransportConformance
from odradek_transport_tcp import TcpTransport


class TestTcpOverIPv4(TransportConformance):
    url = "tcp://127.0.0.1:0"
    bad_urls = ("", "tcp://", "tcp://localhost", "tcp://:9092", "tcp://::1:9092", "udp://a:1")
    plain_files = True

    @pytest.fixture
    def transport(self) -> Transport:
        return TcpTransport()


class TestTcpOverIPv6(TestTcpOverIPv4):
    url = "tcp://[::1]:0"
