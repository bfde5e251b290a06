"""Produce before version 3 is refused in words that its sender understands."""

from __future__ import annotations

import pytest
from tests.broker.peer import Peer, batch, code

from odradek.broker.old_produce import refusal
from odradek.errors import MalformedMessage

TOPIC = b"\x00\x06events"
BODY = (
    b"\xff\xff" + b"\x00\x00\x03\xe8"  # acks -1, timeout 1000 ms
    b"\x00\x00\x00\x01" + TOPIC + b"\x00\x00\x00\x02"
    b"\x00\x00\x00\x00" + b"\x00\x00\x00\x03abc"
    b"\x00\x00\x00\x05" + b"\xff\xff\xff\xff"  # null
)
NO_OFFSET = NO_TIME = b"\xff" * 8
ERROR = b"\x00\x23"
HEAD = b"\x00\x00\x00\x07" + b"\x00\x00\x00\x01" + TOPIC + b"\x00\x00\x00\x02"

ANSWERS = [
    HEAD
    + (b"\x00\x00\x00\x00" + ERROR + NO_OFFSET + time)
    + (b"\x00\x00\x00\x05" + ERROR + NO_OFFSET + time)
    + throttle
    for time, throttle in ((b"", b""), (b"", bytes(4)), (NO_TIME, bytes(4)))
]


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def request(version: int, body: bytes) -> bytes:
    header = b"\x00\x00" + version.to_bytes(2, "big") + b"\x00\x00\x00\x07" + b"\x00\x01x"
    return framed(header + body)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refusal_has_the_layout_of_its_version(version: int) -> None:
    assert refusal(b"head" + BODY, 4, version, 7) == framed(ANSWERS[version])


def test_refusal_of_acks_0_is_silence() -> None:
    assert refusal(b"\x00\x00" + BODY[2:], 0, 2, 7) is None


@pytest.mark.parametrize("length", range(len(BODY)))
def test_request_that_ends_early_is_malformed(length: int) -> None:
    with pytest.raises(MalformedMessage):
        refusal(BODY[:length], 0, 2, 7)


@pytest.mark.parametrize(
    "body",
    [
        BODY + b"\x00",
        BODY[:6] + b"\xff\xff\xff\xff" + BODY[10:],
        BODY[:6] + b"\x7f\xff\xff\xff" + BODY[10:],
        BODY[:10] + b"\xff\xff" + BODY[12:],
        BODY[:18] + b"\x10\x00\x00\x00" + BODY[22:],
        BODY[:26] + b"\xff\xff\xff\xfe" + BODY[30:],
    ],
    ids=["too long", "null topics", "many topics", "null name", "many partitions", "size -2"],
)
def test_request_with_a_wrong_length_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        refusal(body, 0, 2, 7)


def test_request_for_more_partitions_than_can_be_answered_is_malformed() -> None:
    count = 1 << 20
    body = BODY[:18] + count.to_bytes(4, "big") + bytes(8 * count)
    with pytest.raises(MalformedMessage, match="more partitions"):
        refusal(body, 0, 2, 7)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_produce_is_answered_and_the_connection_goes_on(peer: Peer, version: int) -> None:
    await peer.create("events")
    await peer.send_bytes(request(version, BODY))
    assert await peer.receive_frame() == ANSWERS[version]
    result = await peer.produce("events", batch())
    assert (code(result.error_code), result.base_offset) == ("NONE", 0)


@pytest.mark.parametrize("body", [b"\x00\x00" + BODY[2:], BODY[:-1]], ids=["acks 0", "malformed"])
async def test_old_produce_that_cannot_be_answered_ends_the_connection(
    peer: Peer, body: bytes
) -> None:
    await peer.send_bytes(request(1, body))
    await peer.ended()
