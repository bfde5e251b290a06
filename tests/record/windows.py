"""Logs to compact: batches of every kind, and what a window's outcome is, to be compared."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from odradek.errors import KafkaError
from odradek.record import (
    CompressionType,
    ControlType,
    TransactionMarker,
    assign,
    clean_window,
    encode_marker,
    iter_records,
    kernel,
    note_window,
    parse_header,
)
from odradek.record.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchMeta,
    assemble,
)
from odradek.record.compression import compress
from odradek.record.layout import encode_record

SEED = bytes(range(16))
TIME = 1_700_000_000_000
LIMIT = 1 << 20
DAY = 86_400_000
MIN, MAX = -(2**63), 2**63 - 1
NOW = TIME + 30 * DAY
END = 2**62

Row = tuple[bytes | None, bytes | None]


def new_map(max_bytes: int = 1 << 14, base_offset: int = 0, **options: Any) -> Any:
    return kernel.active.OffsetMap(max_bytes, base_offset, SEED, **options)


def batch(
    base_offset: int,
    rows: Sequence[Row],
    codec: CompressionType = CompressionType.NONE,
    *,
    attributes: int = 0,
    producer: int = -1,
    deltas: list[int] | None = None,
    payload: bytes | None = None,
    **fields: int,
) -> bytes:
    """Build a batch of `rows`; `deltas` are their offsets from the base, `fields` the header's."""
    numbers = list(range(len(rows))) if deltas is None else deltas
    if payload is None:
        payload = b"".join(
            encode_record(number, 3 * index, key, value, [("h", b"w")] if index % 2 else ())
            for index, (number, (key, value)) in enumerate(zip(numbers, rows, strict=True))
        )
    meta = BatchMeta(
        base_offset,
        base_offset + max(len(rows) - 1, numbers[-1] if numbers else 0),
        0,
        4,
        attributes | codec,
        TIME + base_offset,
        TIME + base_offset + 3 * max(len(rows) - 1, 0),
        producer,
        -1 if producer < 0 else 2,
        -1 if producer < 0 else base_offset,
        len(rows),
    )
    return bytes(assemble(meta._replace(**fields), compress(codec, payload) if payload else b""))


def rebased(data: bytes | bytearray, base_offset: int) -> bytes:
    moved = bytearray(data)
    assign(moved, 0, base_offset, 4)
    return bytes(moved)


def noted_map(data, end=END, **options):
    offsets = new_map(**options)
    noted = note_window(memoryview(data), offsets, end, limit=LIMIT)
    assert not noted.full
    return offsets


def clean(data, offsets, end=END, now=NOW, producers=frozenset(), **options):
    return clean_window(
        memoryview(data),
        offsets,
        end_offset=end,
        now_ms=now,
        delete_retention_ms=DAY,
        last_of_producers=producers,
        limit=LIMIT,
        **options,
    )


def compact(data, now=NOW, producers=frozenset()):
    return clean(data, noted_map(data), now=now, producers=producers)


def marker(base_offset):
    made = encode_marker(TransactionMarker(ControlType.COMMIT, 1, 0, 0), TIME)
    return rebased(made, base_offset)


def rows_of(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in iter_records(data)]


def joined(cleaned: Any) -> bytes:
    return b"".join(cleaned.buffers)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or raises, so that it compares by its content."""
    try:
        result = call()
    except (KafkaError, OverflowError, ValueError) as error:
        return type(error), str(error), getattr(error, "position", None)
    if hasattr(result, "buffers"):
        return joined(result), *(
            getattr(result, name)
            for name in (
                "position",
                "metas",
                "changed",
                "records_in",
                "records_out",
                "tombstones",
                "bytes_out",
                "horizon",
                "opaque",
            )
        )
    return result


codecs = st.sampled_from(list(CompressionType))
rows = st.lists(
    st.tuples(st.sampled_from([None, *(b"k%d" % i for i in range(6))]), st.none() | st.just(b"v")),
    max_size=6,
)


@st.composite
def sound_batches(draw: st.DrawFn) -> bytes:
    """A batch as a log has them: of any codec, with gaps, of a producer or not, or a control's."""
    kept = draw(rows)
    flags = draw(
        st.sampled_from([0, 0, 0, LOG_APPEND_TIME, DELETE_HORIZON, CONTROL, TRANSACTIONAL])
    )
    span = draw(st.integers(len(kept), len(kept) + 3)) or 1
    deltas = sorted(draw(st.permutations(range(span)))[: len(kept)])
    return batch(
        0,
        kept,
        draw(codecs) if kept else CompressionType.NONE,
        attributes=flags,
        producer=draw(st.sampled_from([-1, 5])),
        deltas=deltas,
        last_offset=span - 1,
        base_timestamp=draw(st.sampled_from([TIME, TIME - DAY, -1, 0])),
    )


@st.composite
def hostile_batches(draw: st.DrawFn) -> bytes:
    """A batch whose CRC is right and whose header or payload is not."""
    data = draw(sound_batches())
    meta = parse_header(data)
    payload = bytearray(b"".join(encode_record(i, i, b"k%d" % i, None) for i in range(3)))
    payload[draw(st.integers(0, len(payload) - 1))] = draw(
        st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255)
    )
    content = bytes(payload[: draw(st.integers(0, len(payload)))])
    if draw(st.booleans()):
        content = bytes(payload)
    codec = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 7]))
    if codec <= CompressionType.ZSTD:
        body = compress(CompressionType(codec), content)
        if draw(st.integers(0, 3)) == 0:
            body = body[: draw(st.integers(0, len(body)))]
    else:
        body = content
    if draw(st.integers(0, 4)) == 0:
        body = data[HEADER_SIZE:]
    return bytes(
        assemble(
            meta._replace(
                base_offset=0,
                last_offset=draw(st.sampled_from([2, 2, 0, 5, 2**31 - 1])),
                attributes=codec | draw(st.sampled_from([0, 0, 0x40, 0x08, 0x10, -128])),
                base_timestamp=draw(st.sampled_from([TIME, MIN, MAX, -1])),
                record_count=draw(st.sampled_from([3, 3, 0, 1, 4, -1, 2**31 - 1])),
            ),
            body,
        )
    )


@st.composite
def logs(draw: st.DrawFn, batches: Any) -> tuple[bytes, int]:
    """Consecutive batches, with gaps between some, and the offset after the last."""
    data = b""
    offset = draw(st.sampled_from([0, 1000]))
    for one in draw(st.lists(batches, min_size=1, max_size=8)):
        data += rebased(one, offset)
        offset = parse_header(data[len(data) - len(one) :]).next_offset
        offset += draw(st.sampled_from([0, 0, 0, 2]))
    return data, offset
