"""Records of `__consumer_offsets`, byte for byte as Kafka's message definitions have them.

The bytes are put together by hand from `OffsetCommitKey.json`, `OffsetCommitValue.json`,
`GroupMetadataKey.json` and `GroupMetadataValue.json` of Apache Kafka.
"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import MalformedMessage
from odradek.group.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetKey,
    OtherKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)


def raw(*parts: str) -> bytes:
    """Hex, or text after a quote."""
    return b"".join(p[1:].encode() if p[0] == "'" else bytes.fromhex(p) for p in parts)


OFFSET_KEY = raw("0001", "0002", "'gr", "0005", "'topic", "00000007")
GROUP_KEY = raw("0002", "0002", "'gr")

#          version offset              epoch       metadata        commit time         expiry
OFFSETS = {
    0: raw("0000", "000000000000002a", "0004", "'note", "0000018bcfe56800"),
    1: raw("0001", "000000000000002a", "0004", "'note", "0000018bcfe56800", "0000018bcfe56be8"),
    2: raw("0002", "000000000000002a", "0004", "'note", "0000018bcfe56800"),
    3: raw("0003", "000000000000002a", "00000005", "0004", "'note", "0000018bcfe56800"),
    4: raw("0004", "000000000000002a", "00000005", "05", "'note", "0000018bcfe56800", "00"),
}
NOW = 0x18BCFE56800

MEMBER_0 = ("0003", "'m-1", "0002", "'cl", "0002", "'/h")
TIMEOUTS = "0000ea60", "00002710"  # rebalance, session
BYTES = ("00000002", "'su", "00000003", "'ass")
HEAD = ("0008", "'consumer", "00000009", "0005", "'range", "0003", "'m-1")

GROUPS = {
    0: raw("0000", *HEAD, "00000001", *MEMBER_0, TIMEOUTS[1], *BYTES),
    1: raw("0001", *HEAD, "00000001", *MEMBER_0, *TIMEOUTS, *BYTES),
    2: raw("0002", *HEAD, "0000018bcfe56800", "00000001", *MEMBER_0, *TIMEOUTS, *BYTES),
    3: raw(
        "0003", *HEAD, "0000018bcfe56800", "00000001",
        "0003", "'m-1", "0003", "'i-1", "0002", "'cl", "0002", "'/h", *TIMEOUTS, *BYTES,
    ),
    4: raw(
        "0004", "09", "'consumer", "00000009", "06", "'range", "04", "'m-1", "0000018bcfe56800",
        "02", "04", "'m-1", "04", "'i-1", "03", "'cl", "03", "'/h", *TIMEOUTS,
        "03", "'su", "04", "'ass", "00", "00",
    ),
}  # fmt: skip


def group(version: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=9,
        protocol="range",
        leader="m-1",
        current_state_timestamp=NOW if version >= 2 else -1,
        members=[
            MemberMetadata(
                member_id="m-1",
                group_instance_id="i-1" if version >= 3 else None,
                client_id="cl",
                client_host="/h",
                rebalance_timeout=60_000 if version >= 1 else -1,
                session_timeout=10_000,
                subscription=b"su",
                assignment=b"ass",
            )
        ],
    )


def test_keys_are_written_as_by_kafka():
    assert encode_offset_key("gr", "topic", 7) == OFFSET_KEY
    assert encode_group_key("gr") == GROUP_KEY


def test_keys_of_every_type_are_read():
    assert decode_key(OFFSET_KEY) == OffsetKey("gr", "topic", 7)
    assert decode_key(b"\0\0" + OFFSET_KEY[2:]) == OffsetKey("gr", "topic", 7)
    assert decode_key(GROUP_KEY) == GroupKey("gr")


@pytest.mark.parametrize("version", [3, 8, 15, 99, -1])
def test_a_key_of_another_type_is_passed_over(version):
    assert decode_key(version.to_bytes(2, signed=True) + b"whatever") == OtherKey(version)


def test_an_offset_is_written_as_version_3():
    assert encode_offset(CommittedOffset(42, 5, "note", NOW)) == OFFSETS[3]


def test_an_offset_with_its_own_expiry_is_written_as_version_1():
    assert encode_offset(CommittedOffset(42, 5, "note", NOW, NOW + 1000)) == OFFSETS[1]


@pytest.mark.parametrize("version", OFFSETS)
def test_an_offset_of_every_version_is_read(version):
    epoch = 5 if version >= 3 else -1
    expiry = NOW + 1000 if version == 1 else -1
    assert decode_offset(OFFSETS[version]) == CommittedOffset(42, epoch, "note", NOW, expiry)


@pytest.mark.parametrize("version", GROUPS)
def test_a_group_of_every_version_is_read_and_written(version):
    assert decode_group(GROUPS[version]) == group(version)
    assert encode_group(group(version), version) == GROUPS[version]


def test_a_group_is_written_as_version_3():
    assert encode_group(group(3)) == GROUPS[3]


def test_an_empty_group_is_written_as_by_kafka():
    empty = GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None)
    expected = raw("0003", "0000", "00000000", "ffff", "ffff", "ffffffffffffffff", "00000000")
    assert encode_group(empty) == expected
    assert decode_group(expected) == empty


def test_tagged_fields_of_version_4_are_ignored():
    topic_id = raw("01", "00", "10", "000102030405060708090a0b0c0d0e0f")
    assert decode_offset(OFFSETS[4][:-1] + topic_id).offset == 42


@pytest.mark.parametrize(
    "value",
    [b"", b"\0", raw("0005") + OFFSETS[3][2:], OFFSETS[3][:-1], OFFSETS[3] + b"\0", raw("ffff")],
)
def test_what_is_no_offset_is_refused(value):
    with pytest.raises(MalformedMessage):
        decode_offset(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_are_refused(data):
    for read in (decode_key, decode_offset, decode_group):
        with suppress(MalformedMessage):
            read(data)
