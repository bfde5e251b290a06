"""Every rule a produced batch must satisfy, and what validation changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.record.implementations import new_builder

from odradek.errors import CorruptBatch, ErrorCode, InvalidRecord, InvalidTimestamp, KafkaError
from odradek.record import (
    CompressionType,
    Rules,
    assign,
    check_crc,
    decode_records,
    parse_header,
    validate,
)
from odradek.record.batch import HEADER_SIZE

pytestmark = pytest.mark.usefixtures("implementation")

RULES = Rules()
COMPACTED = Rules(compacted=True)
APPEND_TIME = Rules(timestamp_type="LogAppendTime")
HOUR = 3_600_000


def refused(error, batch, rules=RULES, now=1_700_000_000_000, match=None, **options):
    """Assert that `batch` is refused with `error` (a class or a code) and left unchanged."""
    before = bytes(batch)
    with pytest.raises(KafkaError, match=match) as raised:
        validate(memoryview(batch), rules, now, **options)
    if isinstance(error, ErrorCode):
        assert raised.value.code is error
    else:
        assert type(raised.value) is error
    assert bytes(batch) == before


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("rules", [RULES, COMPACTED])
def test_a_valid_batch_is_accepted_in_place_and_unchanged(make_batch, now, codec, rules):
    batch = make_batch(20, compression=codec)
    view = memoryview(batch)
    before = bytes(batch)
    validated = validate(view, rules, now)
    assert validated.buffer is view
    assert validated.meta == parse_header(before)
    assert bytes(batch) == before
    assign(validated.buffer, 0, 77, 4)
    assert validated.meta.assigned(77, 4) == parse_header(batch)
    assert check_crc(view, 0, len(batch))


@given(
    st.lists(
        st.tuples(st.integers(0, 2**41), st.binary(max_size=99), st.binary(max_size=99)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(CompressionType),
    st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_records_survive_every_combination_of_rules(
    records, codec, target, compacted, append_time, producer
):
    builder = new_builder(1 << 20, compression=codec)
    for record in records:
        builder.append(*record)
    if producer:
        builder.producer_id, builder.producer_epoch, builder.base_sequence = 9, 1, 5
    rules = Rules(
        compression_type=target,
        compacted=compacted,
        timestamp_type="LogAppendTime" if append_time else "CreateTime",
    )
    batch = builder.build()
    sent = parse_header(batch)
    validated = validate(memoryview(batch), rules, 2**41)
    assert validated.meta == parse_header(validated.buffer)
    assert check_crc(validated.buffer, 0, len(validated.buffer))
    stored = decode_records(validated.buffer)
    assert [(r.key, r.value) for r in stored] == [record[1:] for record in records]
    times = [2**41] * len(records) if append_time else [record[0] for record in records]
    assert [r.timestamp for r in stored] == times
    if target != "producer":
        wanted = "NONE" if target == "uncompressed" else target.upper()
        assert validated.meta.compression == CompressionType[wanted]
    kept = ("base_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count")
    for name in kept:
        assert getattr(validated.meta, name) == getattr(sent, name)


def test_no_batch_is_refused():
    refused(InvalidRecord, b"")


def test_an_incomplete_batch_is_refused_wherever_it_is_cut(make_batch):
    batch = make_batch(2)
    for size in range(len(batch)):
        refused(InvalidRecord, batch[:size])


def test_a_second_batch_is_refused_whole_or_not(make_batch):
    batch = make_batch(2)
    for size in (1, 11, 12, 60, 61, len(batch)):
        refused(InvalidRecord, batch + batch[:size], match="exactly one")


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_is_refused(make_batch, edit, magic):
    refused(InvalidRecord, edit(make_batch(), magic=magic), match="old format")


@pytest.mark.parametrize("size", [17, 26, 34, 60])
def test_a_short_message_of_an_old_format_is_refused_as_such(size):
    message = bytearray(size)
    message[8:12] = (size - 12).to_bytes(4, "big")
    message[16] = 1
    refused(InvalidRecord, message, match="old format")


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_magic_is_corrupt(make_batch, edit, magic):
    refused(CorruptBatch, edit(make_batch(), magic=magic), match="magic")


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_an_impossible_length_is_corrupt(make_batch, edit, length):
    refused(CorruptBatch, edit(make_batch(), length=length), match="length")


def test_a_flipped_bit_is_refused_wherever_it_is(make_batch):
    batch = make_batch(2)
    for position in range(8, len(batch)):
        if 12 <= position < 16:
            continue  # the leader epoch, which the broker overwrites
        for bit in range(8):
            batch[position] ^= 1 << bit
            with pytest.raises(KafkaError) as raised:
                validate(memoryview(batch), RULES, 1_700_000_000_000)
            assert raised.value.code in {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}
            batch[position] ^= 1 << bit


def test_a_batch_of_exactly_max_message_bytes_is_accepted_and_no_larger_one(make_batch, now):
    batch = make_batch()
    validate(memoryview(batch), Rules(max_message_bytes=len(batch)), now)
    too_small = Rules(max_message_bytes=len(batch) - 1)
    refused(ErrorCode.MESSAGE_TOO_LARGE, batch, too_small, match="max.message.bytes")


def test_the_size_is_checked_before_the_crc(make_batch, edit):
    batch = edit(make_batch(), crc=0)
    refused(ErrorCode.MESSAGE_TOO_LARGE, batch, Rules(max_message_bytes=len(batch) - 1))


@pytest.mark.parametrize("offset", [1, -1, 2**62])
def test_a_base_offset_is_refused(make_batch, edit, offset):
    refused(InvalidRecord, edit(make_batch(), base_offset=offset), match="base offset")


@pytest.mark.parametrize(
    ("count", "delta"), [(0, -1), (0, 0), (-1, -2), (3, 1), (3, 3), (2, 2), (4, 2), (3, -1)]
)
def test_count_and_offset_range_must_agree(make_batch, edit, count, delta):
    batch = edit(make_batch(3), record_count=count, last_offset_delta=delta)
    refused(InvalidRecord, batch, match="offset delta")


def test_an_uncompressed_payload_must_have_room_for_the_count(make_batch, edit, now):
    smallest = new_builder(1000)
    for _ in range(5):
        smallest.append(now, None, None)
    batch = smallest.build()
    assert len(batch) == HEADER_SIZE + 5 * 7
    validate(memoryview(batch), RULES, now)
    refused(InvalidRecord, edit(batch, record_count=6, last_offset_delta=5), match="fit")
    huge = edit(make_batch(), record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    refused(InvalidRecord, huge, match="fit")


def test_a_control_batch_is_refused(make_batch):
    batch = make_batch(1, control=True, transactional=True, producer_id=1, producer_epoch=0)
    refused(InvalidRecord, batch, match="control")


@pytest.mark.parametrize("bit", [6, *range(7, 16)])
def test_delete_horizon_and_reserved_attributes_are_refused(make_batch, edit, bit):
    attributes = 1 << bit if bit < 15 else -(1 << 15)
    refused(InvalidRecord, edit(make_batch(), attributes=attributes), match="attributes")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_unsupported(make_batch, edit, codec):
    batch = edit(make_batch(), attributes=codec)
    refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, batch, match="codec")


def test_zstd_is_unsupported_where_the_request_may_not_carry_it(make_batch, now):
    batch = make_batch(50, compression=CompressionType.ZSTD)
    validate(memoryview(batch), RULES, now)
    refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, batch, zstd_allowed=False, match="zstd")
    lz4 = make_batch(50, compression=CompressionType.LZ4)
    validate(memoryview(lz4), RULES, now, zstd_allowed=False)


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (-1, 0), (-1, -1)])
def test_a_producer_id_needs_epoch_and_sequence(make_batch, edit, epoch, sequence):
    batch = edit(make_batch(), producer_id=1, producer_epoch=epoch, base_sequence=sequence)
    refused(InvalidRecord, batch, match="producer 1")


def test_a_sequence_without_producer_id_is_ignored_as_some_clients_send_0(make_batch, edit, now):
    validate(memoryview(edit(make_batch(), base_sequence=0)), RULES, now)


def test_a_transactional_batch_needs_a_producer_id(make_batch, edit, now):
    refused(InvalidRecord, edit(make_batch(), attributes=0x10), match="transactional")
    batch = make_batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert validate(memoryview(batch), RULES, now).meta.transactional


@pytest.mark.parametrize("rules", [RULES, COMPACTED])
def test_the_newest_timestamp_may_be_an_hour_ahead_by_default(make_batch, now, rules):
    batch = make_batch(3)  # the newest is now + 2
    validate(memoryview(batch), rules, now + 2 - HOUR)
    refused(InvalidTimestamp, batch, rules, now + 1 - HOUR, match="range")


@pytest.mark.parametrize("compacted", [False, True])
def test_the_first_timestamp_may_be_as_old_as_the_topic_says(make_batch, now, compacted):
    batch = make_batch(3)
    rules = Rules(timestamp_before_max_ms=1000, compacted=compacted)
    validate(memoryview(batch), rules, now + 1000)
    refused(InvalidTimestamp, batch, rules, now + 1001, match="range")


def test_by_default_no_timestamp_is_too_old(make_batch):
    validate(memoryview(make_batch()), RULES, 2**62)


def test_records_without_timestamp_are_not_too_old(edit, now):
    builder = new_builder(1000)
    builder.append(-1, b"k", b"v")
    rules = Rules(timestamp_before_max_ms=1)
    assert validate(memoryview(builder.build()), rules, now).meta.max_timestamp == -1


@pytest.mark.parametrize("rules", [RULES, COMPACTED])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_a_max_timestamp_below_the_base_is_set_right_from_the_records(
    make_batch, edit, now, rules, codec
):
    batch = edit(make_batch(50, compression=codec), max_timestamp=-1)
    validated = validate(memoryview(batch), rules, now)
    assert validated.meta == parse_header(validated.buffer)
    assert validated.meta.max_timestamp == now + 49
    assert check_crc(validated.buffer, 0, len(validated.buffer))
    assert decode_records(validated.buffer) == decode_records(batch)
    refused(InvalidTimestamp, batch, rules, now - HOUR)


@pytest.mark.parametrize("rules", [RULES, APPEND_TIME, COMPACTED])
def test_a_producer_may_not_claim_log_append_time(make_batch, edit, rules):
    refused(InvalidTimestamp, edit(make_batch(), attributes=8), rules, match="LogAppendTime")


@pytest.mark.parametrize("max_timestamp", [-1, 0, 2**62])
def test_log_append_time_is_written_whatever_the_producer_said(
    make_batch, edit, now, max_timestamp
):
    batch = edit(make_batch(3), max_timestamp=max_timestamp)
    view = memoryview(batch)
    validated = validate(view, APPEND_TIME, now + 12345)
    assert validated.buffer is view
    assert validated.meta == parse_header(batch)
    assert validated.meta.log_append_time
    assert validated.meta.base_timestamp == now
    assert [r.timestamp for r in decode_records(batch)] == [now + 12345] * 3


@pytest.mark.parametrize("codec", CompressionType)
def test_a_compacted_topic_needs_a_key_in_every_record(make_batch, now, codec):
    good = make_batch(keys=[b"", b"k"] * 20, compression=codec)
    assert validate(memoryview(good), COMPACTED, now).meta.compression == codec
    bad = make_batch(keys=[b"k"] * 20 + [None], compression=codec)
    validate(memoryview(bad), RULES, now)
    refused(InvalidRecord, bad, COMPACTED, match="record 20 has no key")


def test_a_compacted_topic_needs_consecutive_offsets(make_batch):
    from odradek.record import assemble

    batch = make_batch(2)
    payload = bytes(batch[HEADER_SIZE:])
    first = payload[: payload[0] // 2 + 1]
    doubled = assemble(parse_header(batch), first * 2)
    refused(InvalidRecord, doubled, COMPACTED, match="offset delta")


@pytest.mark.parametrize("codec", CompressionType)
def test_a_compacted_topic_refuses_a_payload_that_is_not_what_the_header_says(
    make_batch, edit, codec
):
    batch = make_batch(20, compression=codec)
    for count in (19, 21):
        wrong = edit(batch, record_count=count, last_offset_delta=count - 1)
        refused(InvalidRecord, wrong, COMPACTED)
    damaged = bytearray(batch)
    damaged[HEADER_SIZE + 2 : HEADER_SIZE + 12] = b"\xff" * 10
    refused(InvalidRecord, edit(damaged), COMPACTED)


@pytest.mark.parametrize("rules", [COMPACTED, Rules(compression_type="lz4")])
def test_a_bomb_is_refused_where_records_are_read(make_batch, now, rules):
    from attrs import evolve

    bomb = make_batch(1, 1 << 20, CompressionType.ZSTD)
    assert len(bomb) < 1000
    validate(memoryview(bomb), rules, now)
    small = evolve(rules, max_message_bytes=100_000)
    validate(memoryview(bomb), evolve(RULES, max_message_bytes=100_000), now)
    refused(ErrorCode.MESSAGE_TOO_LARGE, bomb, small, match="800000")


def test_a_payload_that_cannot_be_decompressed_for_another_codec_is_refused(make_batch, edit):
    batch = make_batch(20, compression=CompressionType.GZIP)
    batch[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
    refused(InvalidRecord, edit(batch), Rules(compression_type="zstd"), match="decompress")


def test_a_batch_too_large_after_compression_by_the_topics_codec_is_refused(make_batch):
    batch = make_batch(50, 100, CompressionType.GZIP)
    rules = Rules(compression_type="uncompressed", max_message_bytes=len(batch) + 1000)
    refused(ErrorCode.MESSAGE_TOO_LARGE, batch, rules, match="max.message.bytes")


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_in_the_topics_codec_is_not_compressed_again(make_batch, now, name):
    view = memoryview(make_batch(50, compression=CompressionType[name.upper()]))
    assert validate(view, Rules(compression_type=name), now).buffer is view


def test_the_topics_compression_level_is_used(make_batch, now):
    text = b" ".join(b"%d bottles" % (i * i) for i in range(2000))
    batch = make_batch(keys=[text])
    sizes = [
        validate(
            memoryview(batch), Rules(compression_type="gzip", compression_level=level), now
        ).meta.size
        for level in (1, 9)
    ]
    assert sizes[0] > sizes[1]


def test_rules_refuse_a_level_the_codec_does_not_have():
    with pytest.raises(ValueError, match="gzip"):
        Rules(compression_type="gzip", compression_level=10)
    with pytest.raises(ValueError, match="snappy"):
        Rules(compression_type="snappy", compression_level=1)


def test_rules_default_to_kafkas():
    assert (
        Rules(
            compression_type="producer",
            compression_level=None,
            timestamp_type="CreateTime",
            max_message_bytes=1_048_588,
            timestamp_before_max_ms=2**63 - 1,
            timestamp_after_max_ms=HOUR,
            compacted=False,
        )
        == RULES
    )


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused(noise, with_magic):
    data = bytearray(noise)
    if with_magic and len(data) > 16:
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        data[16] = 2
    with pytest.raises(KafkaError):
        validate(memoryview(data), RULES, 0)
