import pytest

from odradek.contracts.transport import BadAddress
from odradek_transport_tcp.address import format_address, parse_address


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("tcp://127.0.0.1:9092", "127.0.0.1", 9092),
        ("tcp://broker-1.example:0", "broker-1.example", 0),
        ("tcp://[::1]:9092", "::1", 9092),
        ("tcp://[fe80::1%eth0]:65535/", "fe80::1%eth0", 65535),
    ],
)
def test_parse_address_takes_names_and_both_families(url: str, host: str, port: int) -> None:
    assert parse_address(url) == (host, port)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("tcp://::1:9092", "in brackets"),
        ("tcp://localhost", "tcp://host:port"),
        ("tcp://localhost:kafka", "tcp://host:port"),
        ("localhost:9092", "tcp://host:port"),
        ("tcp://user@localhost:1", "tcp://host:port"),
        ("tcp://localhost:1?x=1", "tcp://host:port"),
        ("tcp://:9092", "tcp://0.0.0.0:9092"),
        ("tcp://[]:9092", "names no host"),
        ("tcp://localhost:65536", "above 65535"),
        ("tcp://localhost:99999999999999999999", "above 65535"),
    ],
)
def test_parse_address_says_what_it_expects(url: str, says: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(url)
    assert repr(url) in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("sockaddr", "url"),
    [
        (("10.0.0.1", 5), "tcp://10.0.0.1:5"),
        (("::1", 5, 0, 0), "tcp://[::1]:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "tcp://10.0.0.1:5"),
    ],
)
def test_format_address_gives_urls(sockaddr: object, url: str) -> None:
    assert format_address(sockaddr) == url
