"""docs/reference/storage_format.md says how the files of `file:` lie on a disk: read by it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.storage_page import (
    PAGE,
    body_of,
    keys_of,
    names_are,
    names_in,
    parse_all,
    parse_batches,
    records_of,
    table,
)

from odradek.contracts.storage import Chunk, Claim, Hint, LogEdit
from odradek.contracts.storage_gaps import GAPS_BLOB, encode_gaps
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.producers import Producers
from odradek.log.scrub import SCRUB_BLOB, Damage, ScrubState
from odradek.record import (
    BatchBuilder,
    BatchMeta,
    CompressionType,
    assign,
    crc32c,
    decode_records,
    filter_batch,
    parse_header,
    scan,
)
from odradek.record.control import ControlType, TransactionMarker, encode_marker
from odradek.types import PartitionKey

pytest.importorskip("odradek_storage_file")

from odradek_storage_file import FileStorageSettings  # only where it is installed
from odradek_storage_file.repair import repair  # likewise
from odradek_storage_file.store import open_store  # likewise

KEY = PartitionKey(UUID("6f1c8d6e-4b1f-4df5-9d36-0d6a0f0c7c11"), 3)
TIME = 1_700_000_000_000


def built(records: list[tuple[Any, ...]], base: int, epoch: int = 3, **settings: Any) -> bytearray:
    builder = BatchBuilder(1 << 20, **settings)
    for record in records:
        assert builder.append(*record)
    data = bytearray(builder.build())
    assign(data, 0, base, epoch)
    return data


def made(base: int, seed: int) -> bytearray:
    """A batch such as clients send; every third has a producer, every fourth is compressed."""
    random = Random(seed)
    records = [
        (
            TIME + random.randrange(-5000, 5000),
            random.choice([None, b"", b"key-%d" % random.randrange(9)]),
            random.choice([None, b"", random.randbytes(random.randrange(2000))]),
            random.choice([(), (("h", b"x"), ("\u00e9", None))]),
        )
        for _ in range(random.randrange(1, 6))
    ]
    settings: dict[str, Any] = {}
    if not seed % 3:
        settings = {"producer_id": 4000 + seed, "producer_epoch": 2, "base_sequence": seed}
    if not seed % 4:
        settings["compression"] = CompressionType.GZIP
    return built(records, base, 3 + seed // 50, **settings)


async def chunks_of(*batches: bytes) -> AsyncIterator[Chunk]:
    for batch in batches:
        yield Chunk([parse_header(batch)], [batch])


def check_header(header: dict[str, Any], batch: bytes) -> None:
    """Compare what the page says of a batch with what the codec does."""
    assert header["magic"] == 2
    assert parse_header(batch) == BatchMeta(
        header["base offset"],
        header["base offset"] + header["last offset delta"],
        len(batch),
        header["leader epoch"],
        header["attributes"],
        header["base timestamp"],
        header["max timestamp"],
        header["producer id"],
        header["producer epoch"],
        header["base sequence"],
        header["record count"],
    )


async def test_files_of_a_log_read_as_the_page_says(tmp_path: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=1024)
    producers = Producers()
    batches: list[bytes] = []
    end = 0
    async with open_store(tmp_path.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(5, 1))
        for seed in range(120):
            new = bytes(made(end, seed))
            meta = parse_header(new)
            writer.append(Chunk([meta], [new]))
            batches.append(new)
            end = meta.last_offset + 1
            if meta.producer_id >= 0:
                producers.update(meta)
            if seed in (20, 40, 80):
                writer.roll()
        await writer.flush()
        first, second, third, active = writer.snapshot.segments
        blobs = {
            "producers": producers.snapshot(end),
            CLEANER_BLOB: CleanerState(7, TIME, TIME, 9).dump(),
            SCRUB_BLOB: ScrubState(TIME, -1, -1, (Damage(0, 61, "wrong"),)).dump(),
            GAPS_BLOB: encode_gaps([(3, 5)]),
        }
        await writer.commit(LogEdit((first.id,), log_start=second.base_offset, blobs=blobs,
                                    linger_ms=3_600_000))  # fmt: skip
        await writer.build(chunks_of(batches[0]))
        path = tmp_path / str(KEY)
        names_are("partition", names_in(path))
        lingers = path / f"{first.base_offset:020d}.log.{first.id}.deleted"
        assert lingers.read_bytes() == b"".join(batches[:21])
        await writer.aclose()
        names_are("blobs", set(blobs))

        manifest = json.loads(body_of(path / "manifest"))
        assert list(manifest) == keys_of("manifest")
        assert manifest["key"] == path.name
        assert (manifest["log_start"], manifest["truncate_to"]) == (second.base_offset, None)
        assert manifest["epochs"] == [list(each) for each in writer.snapshot.epochs]
        assert list(manifest["active"]) == keys_of("active")
        assert list(manifest["active"]["index"]) == keys_of("active index")
        for name, data in blobs.items():
            number, size, crc = manifest["blobs"][name]
            assert (path / f"{number}.blob").read_bytes() == data
            assert (size, crc) == (len(data), crc32c(data))
        expected = batches[21:]
        sealed = [dict(zip(keys_of("sealed"), row, strict=True)) for row in manifest["sealed"]]
        assert [each["id"] for each in sealed] == [second.id, third.id]
        for info, entry in zip((second, third), sealed, strict=True):
            for key, field in (("base", "base_offset"), ("end", "end_offset"), ("size", "size"),
                               ("max_timestamp", "max_timestamp"), ("created_ms", "created_ms"),
                               ("max_timestamp_offset", "max_timestamp_offset")):  # fmt: skip
                assert entry[key] == getattr(info, field)
        for base in (second.base_offset, third.base_offset, active.base_offset):
            held = parse_batches((path / f"{base:020d}.log").read_bytes())
            assert held[0][0]["base offset"] == base
            for header, batch in held:
                check_header(header, batch)
                assert batch == expected.pop(0)
                if not header["attributes"] & 7:
                    assert records_of(header, batch) == list(decode_records(batch))
            check_indexes(path / f"{base:020d}", base, held, manifest)
        assert expected == []

        epochs = (path / "leader-epoch-checkpoint").read_text().splitlines()
        assert epochs == ["0", str(len(manifest["epochs"]))] + [
            f"{epoch} {offset}" for epoch, offset in manifest["epochs"]
        ]


def check_indexes(
    stem: Path, base: int, held: list[tuple[dict[str, Any], bytes]], manifest: dict[str, Any]
) -> None:
    """Make the indexes of a segment by the page, and compare."""
    offsets: list[dict[str, int]] = []
    times: list[dict[str, int]] = []
    rows: list[dict[str, int]] = []
    position = since = 0
    largest, largest_offset = -1, -1
    for header, batch in held:
        before = largest
        last = header["base offset"] + header["last offset delta"]
        if header["max timestamp"] > largest:
            largest, largest_offset = header["max timestamp"], last
        if since > 4096:
            since = 0
            offsets.append({"relative offset": last - base, "position": position})
            rows.append(
                {
                    "relative offset": header["base offset"] - base,
                    "position": position,
                    "timestamp before": before,
                }
            )
            if not times or largest > times[-1]["timestamp"]:
                times.append({"timestamp": largest, "relative offset": largest_offset - base})
        since += len(batch)
        position += len(batch)
    assert len(rows) > 2
    sealed = {row[1]: row for row in manifest["sealed"]}
    if base in sealed and largest > times[-1]["timestamp"]:
        times.append({"timestamp": largest, "relative offset": largest_offset - base})
    assert parse_all("index", stem.with_suffix(".index").read_bytes()) == offsets
    assert parse_all("timeindex", stem.with_suffix(".timeindex").read_bytes()) == times
    data = stem.with_suffix(".rows").read_bytes()
    assert parse_all("rows", data) == rows
    state = (
        dict(zip(keys_of("sealed"), sealed[base], strict=True))
        if base in sealed
        else manifest["active"]["index"]
    )
    assert (state["rows"], state["crc"]) == (len(rows), crc32c(data))
    if base not in sealed:
        assert (state["times"], state["since"]) == (len(times), since)
        assert (state["max_timestamp"], state["last_time"]) == (largest, times[-1]["timestamp"])
        assert state["max_timestamp_offset"] == largest_offset


async def test_directory_has_the_names_of_the_page(tmp_path: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=1024)
    async with open_store(tmp_path.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        batch = built([(TIME, b"k", b"v")], 0)
        writer.append(Chunk([parse_header(batch)], [batch]))
        await writer.aclose()
    segment = tmp_path / str(KEY) / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    repair(str(tmp_path), KEY)
    (aside,) = names_in(tmp_path / "quarantine")
    assert re.fullmatch(rf"{KEY}\.[0-9]+", aside)
    record = json.loads(body_of(tmp_path / "quarantine" / aside / "repair"))
    assert list(record) == keys_of("repair")
    async with (
        open_embedded_coordinator(tmp_path / "coordinator"),
        open_store(tmp_path.as_uri(), settings),
    ):
        pass
    assert body_of(tmp_path / "clean-shutdown") == b""
    assert re.fullmatch(r"[0-9]+\n", (tmp_path / ".lock").read_text())
    assert (tmp_path / "ballast").stat().st_size == 1024
    dropped = f"{KEY}.0badcafe.deleted"  # what the store makes of a dropped partition, for a moment
    names_are("directory", names_in(tmp_path) | {dropped})


async def test_lingering_segment_is_rescued_as_the_page_says(tmp_path: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
    root, rescue = tmp_path / "root", tmp_path / "rescue"
    batches = [bytes(built([(TIME, b"k", b"v%d" % i)], i)) for i in range(5)]
    async with open_store(root.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(3, 1))
        writer.append(Chunk([parse_header(batch) for batch in batches], batches))
        old = writer.roll()
        await writer.commit(LogEdit((old.id,), log_start=5, linger_ms=3_600_000))
        (rescue / str(KEY)).mkdir(parents=True)
        shutil.copy(
            root / str(KEY) / f"{0:020d}.log.{old.id}.deleted", rescue / str(KEY) / f"{0:020d}.log"
        )
        await writer.aclose()
    repair(str(rescue), KEY, how="skip")
    async with open_store(rescue.as_uri(), settings) as store:
        reader = await store.open_reader(KEY)
        segment = reader.snapshot.segments[0]
        assert (segment.base_offset, segment.end_offset) == (0, 5)
        with await reader.read(segment.id, 0, segment.size, Hint.SCAN) as data:
            assert b"".join(data.views()) == b"".join(batches)
        await reader.aclose()


def test_example_is_what_the_codec_writes() -> None:
    found = re.search(
        r"^<!-- hex: record-batch -->\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    assert found
    data = b""
    for line in found[1].splitlines():
        position, code = line[:4], line[6:29]
        assert int(position, 16) == len(data)
        data += bytes.fromhex(code)
    records = [(TIME, b"user-1", b"on", (("via", b"app"),)), (TIME + 5, b"user-2", None)]
    assert data == built(records, 100)
    ((header, batch),) = parse_batches(data)
    assert [(r.key, r.value, r.headers) for r in records_of(header, batch)] == [
        (b"user-1", b"on", (("via", b"app"),)),
        (b"user-2", None, ()),
    ]


def test_compacted_batches_read_as_the_page_says() -> None:
    whole = bytes(built([(TIME + i, b"k%d" % i, None) for i in range(4)], 50, 3,
                        producer_id=9, producer_epoch=1, base_sequence=20))  # fmt: skip
    some = filter_batch(whole, lambda record: record.offset in (51, 53), delete_horizon=TIME)
    assert some is not None
    ((header, batch),) = parse_batches(bytes(some))
    check_header(header, batch)
    bits = {row["bits"]: row["meaning"] for row in table("bits", "attributes")}
    assert "delete horizon" in bits["6"]
    assert (header["attributes"], header["base timestamp"]) == (1 << 6, TIME)
    assert (header["base offset"], header["last offset delta"]) == (50, 3)
    assert (header["base sequence"], header["record count"]) == (20, 2)
    found = records_of(header, batch)
    assert [(r.offset, r.timestamp, r.value) for r in found] == [
        (51, TIME + 1, None),
        (53, TIME + 3, None),
    ]


def test_markers_read_as_the_page_says() -> None:
    data = bytes(encode_marker(TransactionMarker(ControlType.COMMIT, 7, 5, 1), TIME))
    ((header, batch),) = parse_batches(data)
    assert header["attributes"] == 1 << 4 | 1 << 5
    (record,) = records_of(header, batch)
    assert record.key is not None
    assert record.value is not None
    assert parse_all("control key", record.key) == [{"version": 0, "type": 1}]
    assert parse_all("control value", record.value) == [{"version": 0, "coordinator epoch": 7}]


@pytest.mark.parametrize("codec", [c for c in CompressionType if c])
def test_codecs_have_the_numbers_of_the_page(codec: CompressionType) -> None:
    data = bytes(built([(TIME, b"k", bytes(500))], 0, compression=codec))
    ((header, _),) = parse_batches(data)
    (bits,) = [row["meaning"] for row in table("bits", "attributes") if row["bits"] == "0 to 2"]
    assert f"{header['attributes'] & 7} {codec.name.lower()}" in bits


def test_snapshot_of_producers_reads_as_the_page_says() -> None:
    producers = Producers()
    metas = scan(memoryview(b"".join(made(10 * i, 3 * i) for i in range(8)))).metas
    for meta in metas:
        producers.update(meta)
        producers.update(meta)
    data = producers.snapshot(80)
    (found,) = parse_all("producers", data)
    assert (found["version"], found["offset"], found["crc"]) == (1, 80, crc32c(data[8:]))
    assert [each["producer id"] for each in found["producers"]] == [m.producer_id for m in metas]
    for each, meta in zip(found["producers"], metas, strict=True):
        assert each["producer epoch"] == meta.producer_epoch
        assert each["batches"] == 2 * [
            {
                "first sequence": meta.base_sequence,
                "last sequence": meta.base_sequence + meta.record_count - 1,
                "base offset": meta.base_offset,
                "last offset": meta.last_offset,
                "timestamp": meta.max_timestamp,
            }
        ]


@pytest.mark.parametrize(
    ("name", "blob"),
    [
        ("cleaner", CleanerState(7, None, TIME, 9).dump()),
        ("scrub", ScrubState().dump()),
        ("repaired", encode_gaps([(1, 2)])),
    ],
)
def test_other_blobs_have_the_keys_of_the_page(name: str, blob: bytes) -> None:
    assert list(json.loads(blob)) == keys_of(name)
    (row,) = [row for row in table("keys", name) if row["key"] == "`version`"]
    assert json.loads(blob)["version"] == int(row["value"])
