"""What people write and read: times, format strings, sizes, escaped text."""

from datetime import datetime

import pytest

from odradek.cli.exits import CommandFailed
from odradek.cli.formats import compile_format
from odradek.cli.produce import Parser, unescape
from odradek.cli.text import count, duration, escape, escape_bytes, shown, shown_url, size
from odradek.cli.times import parse_start
from odradek.client import ConsumerRecord

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", (None, -2)),
        ("latest", (None, -1)),
        ("0", (0, None)),
        ("1700000000000", (1700000000000, None)),
        ("@1700000000000", (None, 1700000000000)),
        ("-10m", (None, NOW - 600_000)),
        ("-1500ms", (None, NOW - 1500)),
        ("-9999w", (None, 0)),
        ("2026-01-31T12:00:00+00:00", (None, 1769860800000)),
        ("2026-01-31T12:00", (None, int(datetime(2026, 1, 31, 12).timestamp() * 1000))),
    ],
)
def test_start_is_read(text: str, start: tuple[int | None, int | None]) -> None:
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "-5y", "@", "1.5", "٣"])
def test_start_that_is_none_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="neither earliest, latest"):
        parse_start(text, NOW)


RECORD = ConsumerRecord(
    "t", 2, 7, 99, b"k", b"\x1b[31mred\xff", (("a", b"1"), ("b", None), ("a", b"\x07"))
)
BARE = ConsumerRecord("t", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%t/%p@%o %T", b"t/2@7 99"),
        ("%k=%v", b"k=\x1b[31mred\xff"),
        ("%s%%", b"\x1b[31mred\xff%"),
        ("%K,%S\\n\\x00", b"1,9\n\x00"),
        ("%h", b"a=1,b=-,a=\x07"),
        ("é", "é".encode()),
    ],
)
def test_format_writes_fields_and_bytes_as_they_are(form: str, written: bytes) -> None:
    assert compile_format(form, null=b"-")(RECORD) == written


def test_format_writes_null_as_told_and_its_length_as_minus_one() -> None:
    assert compile_format("%k|%v|%K|%S", null=b"NULL")(BARE) == b"NULL|NULL|-1|-1"


def test_format_escapes_what_would_act_on_a_terminal() -> None:
    written = compile_format("%v %h\\n", escaped=True)(RECORD)
    assert written == b"\\x1b[31mred\\xff a=1,b=,a=\\x07\n"


def test_format_json_is_lines_of_ascii_with_base64_for_what_is_not_text() -> None:
    written = compile_format("json")(RECORD)
    assert written.isascii()
    assert written.count(b"\n") == 1
    assert b'"key": "k", "value_base64": "G1szMW1yZWT/"' in written
    assert b'"value": null' in compile_format("json")(BARE)


def test_format_with_an_unknown_letter_says_which_there_are() -> None:
    with pytest.raises(CommandFailed, match="%z is unknown") as caught:
        compile_format("%t %z")
    assert "%T timestamp" in caught.value.hint


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        (b"a:b", (b"a", b"b")),
        (b"a:b:c", (b"a", b"b:c")),
        (b"plain", (None, b"plain")),
        (b"a:NULL", (b"a", None)),
        (b"NULL:", (None, b"")),
        (b"\xff:\x00", (b"\xff", b"\x00")),
    ],
)
def test_produce_takes_lines_apart(line: bytes, parsed: tuple[bytes | None, bytes | None]) -> None:
    assert Parser(None, b":", "NULL")(line) == parsed


def test_produce_understands_escapes_in_delimiters() -> None:
    assert unescape(r"\n\t\0\\\x1f-\\q") == b"\n\t\0\\\x1f-\\q"


@pytest.mark.parametrize("text", ["\\", r"\x", r"\x1", r"\xgg", r"\q", "a\\"])
def test_escapes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="backslash"):
        unescape(text)


def test_escape_leaves_text_and_shows_what_acts() -> None:
    assert escape("größe 中") == "größe 中"
    assert escape("a\nb\x1b\u202e\U000e0001") == "a\\nb\\x1b\\u202e\\U000e0001"
    assert escape("a\nb", keep="\n") == "a\nb"
    assert escape_bytes(b"\xff\x00ok") == "\\xff\\x00ok"


def test_shown_is_cut() -> None:
    assert shown("x" * 5000).endswith("…")
    assert len(shown("x" * 5000)) == 1000


def test_shown_url_hides_passwords() -> None:
    assert shown_url("s3://key:secret@host/b") == "s3://key:***@host/b"
    assert shown_url("file:///a:b@c") == "file:///a:b@c"


def test_sizes_counts_and_durations_are_for_people() -> None:
    assert [size(each) for each in (-1, 0, 1023, 1536, 3 << 30)] == [
        "?",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]
    assert count(1234567) == "1,234,567"
    assert [duration(each) for each in (0.00005, 0.0123, 3.21, 125, 7300)] == [
        "50 µs",
        "12.3 ms",
        "3.2 s",
        "2 min 5 s",
        "2 h 1 min",
    ]
