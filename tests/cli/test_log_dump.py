"""`odradek log dump`: what lies in a storage, range by range."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.storages import Fill, Run, batch, flip, lines, segments, stored, usual
from tests.log.logs import KEY, NOW, add, committed, opened

from odradek.contracts.storage import Chunk, Hint, LogEdit, PartitionReader
from odradek.group.records import (
    CommittedOffset,
    GroupMetadataValue,
    MemberMetadata,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.partition import PartitionLog
from odradek.plugins import load
from odradek.record import BatchBuilder, assemble, parse_header
from odradek.record.batch import DELETE_HORIZON

pytest.importorskip("odradek_storage_file")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return stored(tmp_path / "logs")


def test_dump_shows_a_range_of_offsets(run_here: Run, url: str) -> None:
    done = run_here(
        "log", "dump", "--storage", url, "--from-offset", "7", "--to-offset", "11",
        "--records", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0
    assert [each["segment"] for each in lines(done, "segment")] == [0, 8]
    batches = [(each["base_offset"], each["last_offset"]) for each in lines(done, "batch")]
    assert batches == [(6, 7), (8, 9), (10, 11)]
    assert [each["offset"] for each in lines(done, "record")] == [7, 8, 9, 10]
    beyond = run_here("log", "dump", "--storage", url, "--from-offset", "99", "--format", "json")
    assert (beyond.returncode, beyond.stdout) == (0, b"")


def test_dump_begins_by_the_index_where_the_range_is(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.cli import storage

    starts = []
    original = storage._read

    async def read(reader: PartitionReader, segment: int, position: int, size: int) -> bytes:
        starts.append(position)
        return await original(reader, segment, position, size)

    monkeypatch.setattr(storage, "_read", read)
    done = run_here("log", "dump", "--storage", url, "--from-offset", "6", "--segment", "0")
    assert b"offsets 6 to 7" in done.stdout
    assert b"offsets 4 to 5" not in done.stdout
    assert starts[0] > 0


def test_dump_shows_one_segment(run_here: Run, url: str) -> None:
    done = run_here("log", "dump", "--storage", url, "--segment", "8", "--format", "json")
    assert {each["segment"] for each in lines(done, "batch")} == {8}
    missing = run_here("log", "dump", "--storage", url, "--segment", "9")
    assert missing.returncode == 1
    assert b"no partition has a segment with base offset 9" in missing.stderr


def test_dump_shows_the_rows_of_indexes(run_here: Run, url: str) -> None:
    done = run_here("log", "dump", "--storage", url, "--index", "--format", "json")
    found = lines(done, "row")
    size = segments(url)[0].stat().st_size // 4
    assert {each["segment"] for each in found} == {0, 8, 16}
    assert all(each["position"] == (each["offset"] - each["segment"]) // 2 * size for each in found)
    assert lines(done, "batch") == []
    assert b"newest before: no time" in run_here("log", "dump", "--storage", url, "--index").stdout


def test_dump_shows_the_state(run_here: Run, url: str) -> None:
    done = run_here("log", "dump", "--storage", url, "--state", "--format", "json")
    (state,) = lines(done, "state")
    assert (state["log_start"], state["end_offset"]) == (0, 24)
    assert [each["segment"] for each in state["segments"]] == [0, 8, 16]
    assert state["epochs"] == [{"epoch": 0, "start_offset": 0}]
    (producer,) = state["producers"]["producers"]
    assert producer["producer_id"] == 5
    assert producer["batches"][-1]["last_sequence"] == 23
    assert state["cleaner"] is state["scrub"] is state["repaired"] is None
    text = run_here("log", "dump", "--storage", url, "--state").stdout.decode()
    assert "5/0, last at 2023-11-14T22:13:20.012+00:00, sequence 23 at offset 23" in text


def test_dump_shows_what_upkeep_has_noted(run_here: Run, tmp_path: Path) -> None:
    async def noted(log: PartitionLog) -> None:
        await usual(log)
        blobs = {CLEANER_BLOB: CleanerState(cleaned_to=16).dump(), "scrub": b"damaged"}
        await log.edit(lambda _: LogEdit(blobs=blobs))

    url = stored(tmp_path / "logs", noted)
    text = run_here("log", "dump", "--storage", url, "--state").stdout.decode()
    assert "compacted: cleaned_to 16" in text
    assert "scrubbed: cannot be read" in text


def test_dump_shows_empty_batches_and_delete_horizons(run_here: Run, tmp_path: Path) -> None:
    async def fill(log: PartitionLog) -> None:
        empty = bytearray(assemble(parse_header(batch(0))._replace(record_count=0), b""))
        add(log, batch(0))
        made = batch(1)
        meta = parse_header(made)
        marked = meta._replace(attributes=meta.attributes | DELETE_HORIZON)
        add(log, bytearray(assemble(marked, bytes(made[61:]))))
        log.append(parse_header(empty)._replace(record_count=2), empty, NOW)
        await committed(log)

    url = stored(tmp_path / "logs", fill)
    text = run_here("log", "dump", "--storage", url).stdout.decode()
    assert "offsets 4 to 5, empty" in text
    assert "tombstones may go at 2023-11-14T22:13:20.001+00:00" in text
    done = run_here("log", "dump", "--storage", url, "--format", "json")
    assert [each["delete_horizon"] for each in lines(done, "batch")] == [None, NOW + 1, None]


def test_dump_decodes_group_records(run_here: Run, tmp_path: Path) -> None:
    member = MemberMetadata(
        member_id="m-1", client_id="c", client_host="/here", session_timeout=45_000,
        subscription=b"ss", assignment=b"a",
    )  # fmt: skip
    group = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m-1",
        current_state_timestamp=NOW, members=[member],
    )  # fmt: skip
    records = [
        (encode_offset_key("g", "t\x1b", 4), encode_offset(CommittedOffset(9, 1, "meta", NOW))),
        (encode_offset_key("g", "t", 5), None),
        (encode_group_key("g"), encode_group(group)),
        (encode_group_key("gone"), None),
        (b"\x00\x63", b"x"),
        (b"?", b"x"),
    ]

    async def fill(log: PartitionLog) -> None:
        builder = BatchBuilder(1 << 20)
        for key, value in records:
            builder.append(NOW, key, value)
        add(log, builder.build())
        await committed(log)

    url = stored(tmp_path / "logs", fill)
    done = run_here("log", "dump", "--storage", url, "--groups", "--format", "json")
    assert done.returncode == 0
    first, deleted = lines(done, "group_offset")
    assert (first["group"], first["topic"], first["topic_partition"]) == ("g", "t\x1b", 4)
    assert {each["partition"] for each in lines(done, "group_offset")} == {str(KEY)}
    assert (first["offset"], first["leader_epoch"], first["metadata"]) == (9, 1, "meta")
    assert deleted["deleted"] is True
    alive, gone = lines(done, "group")
    assert alive["members"][0]["client"] == "c"
    assert alive["members"][0]["subscription_bytes"] == 2
    assert gone["deleted"] is True
    other, damaged = lines(done, "record")
    assert "type 99" in other["reason"]
    assert "no group record" in damaged["reason"]
    text = run_here("log", "dump", "--storage", url, "--groups").stdout.decode()
    assert "group g  t\\x1b-4: offset 9 (epoch 1)" in text
    assert "generation 3, consumer/range, leader m-1, 1 member: m-1 at /here" in text
    assert "group gone: deleted" in text


def test_dump_tells_every_value_of_a_record_from_every_other(run_here: Run, tmp_path: Path) -> None:
    headers = [("h", b"\xff"), ("\x1b", None), ("h", b"\\xff")]
    pairs = [
        (b"\xff", b"null"),
        (b"\\xff", None),
        (None, b""),
        (b"a  value null", b"'\""),
        (b"", b"\n"),
    ]
    rows: list[tuple[bytes | None, bytes | None]] = list(pairs)

    async def fill(log: PartitionLog) -> None:
        builder = BatchBuilder(1 << 20)
        for key, value in rows:
            builder.append(NOW, key, value, headers)
        add(log, builder.build())
        await committed(log)

    url = stored(tmp_path / "logs", fill)
    done = run_here("log", "dump", "--storage", url, "--records", "--format", "json")

    def data(document: dict[str, Any], name: str) -> bytes | None:
        if f"{name}_base64" in document:
            return b64decode(document[f"{name}_base64"])
        text = document[name]
        return None if text is None else str(text).encode()

    found = lines(done, "record")
    assert [(data(each, "key"), data(each, "value")) for each in found] == rows
    for each in found:
        assert [(one["name"], data(one, "value")) for one in each["headers"]] == headers
    text = run_here("log", "dump", "--storage", url, "--records").stdout.decode().splitlines()
    shown = [
        line.partition("  key ")[2].partition("  headers ") for line in text if "  key " in line
    ]
    assert [each[0] for each in shown] == [
        "'\\xff'  value 'null'",
        "'\\\\xff'  value null",
        "null  value ''",
        "'a  value null'  value '\\'\"'",
        "''  value '\\n'",
    ]
    assert {each[2] for each in shown} == {"'h' = '\\xff', '\\x1b' = null, 'h' = '\\\\xff'"}


async def changed(url: str, change: Fill) -> None:
    """What a broker does to a log while it is dumped."""
    factory = load().storage("file")
    async with factory.open(url, factory.settings()) as store, opened(store) as log:
        await change(log)


def meanwhile(monkeypatch: pytest.MonkeyPatch, url: str, *changes: Fill) -> None:
    """Have the log changed when the dump reads its second segment, then its third, and so on."""
    from odradek.cli import storage

    original = storage._read
    met: set[int] = set()
    left = list(changes)

    async def read(reader: PartitionReader, segment: int, position: int, size: int) -> bytes:
        if met and segment not in met and left:
            await changed(url, left.pop(0))
        met.add(segment)
        return await original(reader, segment, position, size)

    monkeypatch.setattr(storage, "_read", read)


def test_dump_beside_a_broker_takes_removal_for_no_damage(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(log: PartitionLog) -> None:
        await log.trim(16)

    async def second(log: PartitionLog) -> None:
        add(log, batch(12))
        log.roll()
        add(log, batch(13))
        await committed(log)
        await log.trim(26)

    meanwhile(monkeypatch, url, first, second)
    done = run_here("log", "dump", "--storage", url, "--format", "json")
    assert lines(done, "damage") == lines(done, "failure") == []
    assert done.returncode == 0
    assert [each["base_offset"] for each in lines(done, "batch")] == [0, 2, 4, 6, 26]


def test_dump_goes_on_in_what_took_the_place_of_a_segment(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change(log: PartitionLog) -> None:
        writer = log._writer
        old = writer.snapshot.segments[1]
        size = old.size // 4

        async def chunks() -> AsyncIterator[Chunk]:
            with await writer.read(old.id, 2 * size, size, Hint.ONCE) as data:
                kept = b"".join(data.views())
            yield Chunk([parse_header(kept)], [kept])

        made = await writer.build(chunks())
        await writer.commit(LogEdit(remove=(old.id,), add=(made,)))

    meanwhile(monkeypatch, url, change)
    done = run_here("log", "dump", "--storage", url, "--format", "json")
    assert lines(done, "damage") == lines(done, "failure") == []
    assert done.returncode == 0
    batches = [each["base_offset"] for each in lines(done, "batch")]
    assert batches == [0, 2, 4, 6, 12, 16, 18, 20, 22]


def test_dump_says_that_a_log_was_deleted_meanwhile(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.cli import storage

    original = storage._read
    dropped = False

    async def read(reader: PartitionReader, segment: int, position: int, size: int) -> bytes:
        nonlocal dropped
        if reader.snapshot.segments[1].id == segment and not dropped:
            dropped = True
            factory = load().storage("file")
            async with factory.open(url, factory.settings()) as store:
                await store.drop(KEY)
        return await original(reader, segment, position, size)

    monkeypatch.setattr(storage, "_read", read)
    done = run_here("log", "dump", "--storage", url, "--format", "json")
    assert done.returncode == 0
    (note,) = lines(done, "note")
    assert note["text"] == "it was deleted while it was read"
    assert b"deleted while it was read" not in run_here("log", "dump", "--storage", url).stdout


def test_damage_is_told_beside_a_broker_that_changes_the_log(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(segments(url)[1], 100)

    async def change(log: PartitionLog) -> None:
        await log.trim(4)

    meanwhile(monkeypatch, url, change)
    done = run_here("log", "dump", "--storage", url, "--format", "json")
    (damage,) = lines(done, "damage")
    assert (damage["segment"], damage["position"]) == (8, 0)
    assert done.returncode == 1
    batches = [each["base_offset"] for each in lines(done, "batch")]
    assert batches == [0, 2, 4, 6, 10, 12, 14, 16, 18, 20, 22]
