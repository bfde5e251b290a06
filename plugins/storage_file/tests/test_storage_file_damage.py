"""Damaged, missing, empty and stray files: what opening, verifying and repairing make of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from storage_file_disk import LossyOps

from odradek.contracts.storage import Claim, Corrupt, LogEdit, OutOfRange, Unavailable
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps
from odradek.testing.storage import KEY, Log, metas_of, read_log
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.repair import repair
from odradek_storage_file.store import open_store
from odradek_storage_file.verify import DumpedBatch, Finding, dump_segment, verify

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)


async def make(root: Path, *, killed: bool = False) -> tuple[Path, Log]:
    """Make a log of two sealed segments and an active one; return its directory and its model."""
    live = root.with_name("live") if killed else root
    live.mkdir(exist_ok=True)
    ops = LossyOps(live)
    async with open_store(live.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for i in range(21):
            log.append(records=2, value_bytes=700, timestamp=1_000 + i)
            if i in (6, 13):
                log.writer.roll()
                await log.writer.commit(LogEdit(blobs={"state": b"%d" % i}))
        await log.writer.flush()
        if killed:
            ops.killed(root)
    if killed:
        shutil.rmtree(live)
    return root / layout.directory_name(KEY), log


async def open_log(root: Path) -> tuple[bytes, dict[str, bytes]]:
    """Open, read everything, index everything, append; return what was read."""
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(2, 1))
        data = await read_log(writer)
        for segment in writer.snapshot.segments:
            index = await writer.index(segment.id)
            boundaries = set()
            position = 0
            for meta in metas_of(data):
                if segment.base_offset <= meta.base_offset < segment.end_offset:
                    boundaries.add(position)
                    position += meta.size
            assert set(index.positions) <= boundaries | {0}
        blobs = dict(writer.snapshot.blobs)
        log = Log(writer, epoch=2)
        log.append(2)
        await log.writer.flush()
        assert await read_log(writer) == data + log.bytes()
    return data, blobs


def contents(path: str) -> list[bytes]:
    return [file.read_bytes() for file in Path(path).iterdir()]


def segment_path(path: Path, number: int) -> Path:
    return sorted(path.glob("*.log"))[number]


def damaged(path: Path) -> list[str]:
    return [str(f) for report in verify(str(path.parent)) for f in report.findings if f.severe]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".rows"])
@pytest.mark.parametrize("harm", ["flip", "empty", "missing", "short", "long"])
async def test_indexes_are_caches(tmp_path: Path, suffix: str, harm: str) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    for file in path.glob(f"*{suffix}"):
        written = bytearray(file.read_bytes())
        assert written
        if harm == "missing":
            file.unlink()
            continue
        change = {"empty": written[:0], "short": written[:-3], "long": written + b"xxx"}
        written[len(written) // 2] ^= 1
        file.write_bytes(change.get(harm, written))
    (report,) = verify(str(root))
    assert report.ok
    assert report.findings, "verify says that the index does not fit"
    data, _ = await open_log(root)
    assert data == log.bytes()


async def test_a_flip_of_any_byte_after_the_recovery_point_is_found(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root, killed=True)
    active = segment_path(path, 2)
    good = active.read_bytes()
    manifest = (path / layout.MANIFEST).read_bytes()
    last = len(good) - log.batches[-1][0].size
    base_offset_or_epoch = {*range(8), *range(12, 16)}  # outside of the CRC
    for position in range(0, len(good), 37):
        data = bytearray(good)
        data[position] ^= 0x04
        active.write_bytes(data)
        (path / layout.MANIFEST).write_bytes(manifest)
        starts = [0]
        for meta, _ in log.batches[14:]:
            starts.append(starts[-1] + meta.size)
        within = position - max(start for start in starts if start <= position)
        async with open_store(root.as_uri(), SETTINGS) as store:
            if position < last:
                if within in base_offset_or_epoch:
                    continue
                with pytest.raises(Corrupt, match=r"nothing was removed.*repair"):
                    await store.open_writer(KEY, Claim(2, 1))
                assert active.read_bytes() == data
            else:
                writer = await store.open_writer(KEY, Claim(2, 1))
                if within not in base_offset_or_epoch:
                    assert writer.recovery.cut_bytes == len(good) - last
    assert (tmp_path / "log" / "quarantine").exists() is False


async def test_a_flip_in_a_sealed_segment_is_found_by_verify(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    file = segment_path(path, 0)
    data = bytearray(file.read_bytes())
    data[2000] ^= 0x80
    file.write_bytes(data)
    (finding,) = damaged(path)
    assert str(file) in finding
    assert "CRC" in finding


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("harm", ["missing", "empty", "cut"])
async def test_bytes_that_were_durable_and_are_gone_are_reported(
    tmp_path: Path, number: int, harm: str
) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    file = segment_path(path, number)
    if harm == "missing":
        file.unlink()
    else:
        with file.open("r+b") as opened:
            opened.truncate(0 if harm == "empty" else 1000)
    async with open_store(root.as_uri(), SETTINGS) as store:
        for _ in range(2):
            with pytest.raises(Corrupt, match="repair"):
                await store.open_writer(KEY, Claim(2, 1))
    assert damaged(path)


@pytest.mark.parametrize("how", ["cut", "skip"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("harm", ["flip", "missing", "empty", "cut"])
async def test_repair_keeps_what_is_valid(tmp_path: Path, how: str, number: int, harm: str) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    file = segment_path(path, number)
    before = file.read_bytes()
    size = log.batches[0][0].size
    first, lost = (
        7 * number,
        {"flip": [2], "missing": range(7), "empty": range(7), "cut": [3, 4, 5, 6]},
    )
    bad = {first + i for i in lost[harm]}
    data = bytearray(before)
    if harm == "flip":
        data[2 * size + 200] ^= 1
        file.write_bytes(data)
    elif harm == "missing":
        file.unlink()
    else:
        file.write_bytes(before[: 0 if harm == "empty" else 3 * size + 100])
    report = repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert report.actions
    if harm == "flip":
        assert report.quarantine is not None
        assert bytes(data) in contents(report.quarantine)
    kept = [b for i, b in enumerate(log.batches) if i not in bad]
    if how == "cut":
        kept = log.batches[: min(bad)]
    assert not damaged(path)
    data_found, blobs = await open_log(root)
    assert data_found == b"".join(data for _, data in kept)
    assert blobs.pop("state") == b"13"
    gaps = decode_gaps(blobs.pop(GAPS_BLOB)) if blobs else ()
    first_bad, last_bad = log.batches[min(bad)][0], log.batches[max(bad)][0]
    left_out = (first_bad.base_offset, last_bad.next_offset)
    told = how == "skip" and kept[0] is log.batches[0]
    assert gaps == ((left_out,) if told else ()), "a gap is told from records that were lost"
    assert blobs == {}
    again = repair(str(root), KEY)
    assert again.actions == []


@pytest.mark.parametrize("harm", ["flip", "missing", "empty", "cut"])
async def test_a_damaged_manifest_is_reported_and_can_be_made_again(
    tmp_path: Path, harm: str
) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    manifest = path / layout.MANIFEST
    good = manifest.read_bytes()
    if harm == "missing":
        manifest.unlink()
    else:
        data = bytearray(good)
        data[len(data) // 2] ^= 1
        manifest.write_bytes({"flip": bytes(data), "empty": b"", "cut": good[:-20]}[harm])
    async with open_store(root.as_uri(), SETTINGS) as store:
        with pytest.raises(Corrupt, match=r"manifest.*repair"):
            await store.open_writer(KEY, Claim(2, 1))
    assert damaged(path)
    repair(str(root), KEY)
    data_found, blobs = await open_log(root)
    assert data_found == log.bytes()
    assert blobs == {}


async def test_a_flip_of_any_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    manifest = path / layout.MANIFEST
    good = manifest.read_bytes()
    async with open_store(root.as_uri(), SETTINGS) as store:
        for position in range(len(good)):
            data = bytearray(good)
            data[position] ^= 1
            manifest.write_bytes(data)
            with pytest.raises(Corrupt):
                await store.open_writer(KEY, Claim(2, 1))
            manifest.write_bytes(good[:position])
            with pytest.raises(Corrupt):
                await store.open_writer(KEY, Claim(2, 1))
        manifest.write_bytes(good)


@pytest.mark.parametrize("harm", ["flip", "empty", "missing"])
@pytest.mark.parametrize("repaired", [True, False])
async def test_a_log_goes_on_without_a_damaged_blob(
    tmp_path: Path, harm: str, repaired: bool
) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    (blob,) = path.glob("*.blob")
    if harm == "missing":
        blob.unlink()
    else:
        blob.write_bytes(b"99" if harm == "flip" else b"")
    (report,) = verify(str(root))
    assert report.ok
    assert any("blob 'state' is missing or damaged" in f.text for f in report.findings)
    if repaired:
        done = repair(str(root), KEY)
        assert (done.quarantine is None) == (not done.actions)
        assert any("gave up blob 'state'" in action for action in done.actions)
    async with open_store(root.as_uri(), SETTINGS) as store:
        reader = await store.open_reader(KEY)
        assert dict(reader.snapshot.blobs) == {}
        writer = await store.open_writer(KEY, Claim(2, 1))
        assert ("'state'" in writer.recovery.detail) == (not repaired)
        assert writer.recovery.cut_bytes == 0
        assert await read_log(writer) == log.bytes()
        await writer.commit(LogEdit(blobs={"state": b"new"}))
    data, blobs = await open_log(root)
    assert (data, blobs) == (log.bytes(), {"state": b"new"})
    (report,) = verify(str(root))
    assert report.findings == []


async def test_stray_files_do_no_harm(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    kept = []
    for name in ("notes.txt", "00000000000000000003.log", ".nfs0001", "core", "x.log"):
        (path / name).write_bytes(b"stray")
        kept.append(path / name)
    (path / "manifest.tmp").write_bytes(b"half")
    (path / "77.built.log").write_bytes(b"half")
    (path / "subfolder").mkdir()
    (root / "lost+found").mkdir()
    (root / "what-is-this").write_bytes(b"")
    async with open_store(root.as_uri(), SETTINGS) as store:
        assert list(await store.partitions()) == [KEY]
    data, _ = await open_log(root)
    assert data == log.bytes()
    assert all(file.exists() for file in kept)
    repair(str(root), KEY)
    assert all(file.exists() for file in kept)
    assert (await open_log(root))[0].startswith(data)
    assert not (path / "manifest.tmp").exists()
    assert not (path / "77.built.log").exists()


async def test_a_directory_that_was_renamed_is_not_taken_for_another(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    path.rename(path.with_name(path.name[:-1] + "9"))
    async with open_store(root.as_uri(), SETTINGS) as store:
        (key,) = await store.partitions()
        with pytest.raises(Corrupt, match="renamed"):
            await store.open_writer(key, Claim(2, 1))


@pytest.mark.parametrize("content", [b"", b"x", b"odradek clean-shutdown 1 crc32c 00000"])
async def test_a_torn_marker_checkpoint_or_lock_is_no_obstacle(
    tmp_path: Path, content: bytes
) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    for file in (
        root / layout.CLEAN_MARKER,
        root / layout.LOCK,
        root / layout.BALLAST,
        path / layout.EPOCH_CHECKPOINT,
    ):
        file.write_bytes(content)
    assert (await open_log(root))[0] == log.bytes()
    assert (path / layout.EPOCH_CHECKPOINT).read_text() == f"0\n2\n1 0\n2 {log.end}\n"


async def test_dump_shows_every_batch_and_what_is_damaged(tmp_path: Path) -> None:
    path, log = await make(tmp_path / "log")
    file = segment_path(path, 1)
    dumped = list(dump_segment(str(file)))
    assert [each.meta for each in dumped if isinstance(each, DumpedBatch)] == [
        meta for meta, _ in log.batches[7:14]
    ]
    data = bytearray(file.read_bytes())
    data[dumped[3].position + 100] ^= 1
    file.write_bytes(data + b"torn")
    dumped = list(dump_segment(str(file)))
    assert sum(isinstance(each, DumpedBatch) for each in dumped) == 6
    crc, tail = [each for each in dumped if isinstance(each, Finding)]
    assert "CRC" in crc.text
    assert "nothing valid follows" in tail.text


async def test_tools_respect_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(2, 1))
        log.writer, log.epoch = writer, 2
        log.append(3)
        log.writer.roll()
        log.append(3)
        with pytest.raises(Unavailable, match="in use by process"):
            repair(str(root), KEY)
        (report,) = verify(str(root))
        assert report.ok, report.findings
        assert report.end_offset == log.end
        assert report.batches == len(log.batches)
    with pytest.raises(OutOfRange):
        repair(str(tmp_path), KEY)
    assert path.exists()
