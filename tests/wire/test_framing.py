"""Frames are found in a buffer, and what cannot be one is refused with a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import MalformedMessage
from odradek.wire import frame_at
from odradek.wire.framing import SIZE

MAX = 1 << 20


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@given(payloads=st.lists(st.binary(min_size=1, max_size=20)), cut=st.integers(0, 27))
def test_every_complete_frame_is_found(payloads: list[bytes], cut: int) -> None:
    whole = b"".join(map(frame, payloads))
    tail = frame(b"z" * 24)[:cut]
    buffer = memoryview(bytearray(b"??" + whole + tail + b"garbage"))
    filled = 2 + len(whole + tail)
    found = []
    start = 2
    while (end := frame_at(buffer, start, filled, MAX)) <= filled:
        found.append(bytes(buffer[start + SIZE : end]))
        start = end
    assert found == payloads
    assert start == 2 + len(whole)
    assert end == start + (SIZE if cut < SIZE else SIZE + 24)


def test_incomplete_frame_says_how_far_to_fill() -> None:
    buffer = bytearray(frame(b"x" * 100))
    assert [frame_at(buffer, 0, filled, MAX) for filled in (0, 3, 4, 103, 104)] == [
        4,
        4,
        104,
        104,
        104,
    ]


def test_size_of_the_limit_is_allowed() -> None:
    assert frame_at(MAX.to_bytes(4, "big"), 0, 4, MAX) == MAX + 4


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ((MAX + 1).to_bytes(4, "big"), f"a frame of {MAX + 1} bytes, over the limit of {MAX}"),
        (b"\x7f\xff\xff\xff", "over the limit"),
        (b"\0\0\0\0", "a frame of 0 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (b"\x80\0\0\0", "a frame of -2147483648 bytes"),
        (b"\x16\x03\x01\x02", "TLS handshake"),
        (b"\x16\x03\x03\x00", "TLS handshake"),
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
        (b"PRI ", "HTTP"),
    ],
)
def test_size_that_cannot_be_one_is_refused(raw: bytes, hint: str) -> None:
    with pytest.raises(MalformedMessage, match=hint):
        frame_at(raw + b"rest", 0, 8, MAX)
