"""Where a repaired log starts and ends, and what a repair refuses or survives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from storage_file_disk import LossyOps
from test_storage_file_damage import SETTINGS, damaged, make, open_log, segment_path

from odradek.contracts.storage import Claim, Corrupt, LogEdit, PartitionWriter
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps
from odradek.testing.storage import KEY, Log, metas_of, read_log
from odradek_storage_file import layout
from odradek_storage_file.ops import Ops
from odradek_storage_file.quarantine import delete, entries, restore
from odradek_storage_file.repair import RepairReport, repair
from odradek_storage_file.store import open_store

NOW = 1_700_000_000_000


def harm_batches(file: Path, log: Log, numbers: range) -> None:
    """Flip a bit in the records of some batches of a segment of `make`."""
    size = log.batches[0][0].size
    data = bytearray(file.read_bytes())
    for number in numbers:
        data[number * size + 200] ^= 1
    file.write_bytes(data)


async def bounds(root: Path) -> tuple[int, int]:
    """Log start and log end, as a writer finds them."""
    async with open_store(root.as_uri(), SETTINGS) as store:
        snapshot = (await store.open_writer(KEY, Claim(2, 1))).snapshot
        return snapshot.log_start, snapshot.segments[-1].end_offset


async def trim(root: Path, offset: int) -> None:
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer: PartitionWriter = await store.open_writer(KEY, Claim(1, 1))
        await writer.commit(LogEdit(log_start=offset))


# -- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["all batches", "the last ones", "missing", "emptied", "zeroed"])
async def test_skip_never_gives_an_offset_again(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    file = segment_path(path, 2)
    if harm == "missing":
        file.unlink()
    elif harm == "emptied":
        file.write_bytes(b"")
    elif harm == "zeroed":
        file.write_bytes(bytes(file.stat().st_size))
    else:
        harm_batches(file, log, range(4 if harm == "the last ones" else 0, 7))
    first = 36 if harm == "the last ones" else 28
    report = repair(str(root), KEY, how="skip")
    assert "the log goes on at offset 42" in report.actions
    assert await bounds(root) == (0, 42)
    assert not damaged(path)
    _, blobs = await open_log(root)
    assert decode_gaps(blobs[GAPS_BLOB]) == ((first, 42),)
    assert repair(str(root), KEY, how="skip").actions == []


async def test_skip_of_a_log_without_any_segment_goes_on_where_it_ended(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    for file in path.glob("*.log"):
        file.unlink()
    repair(str(root), KEY, how="skip")
    assert (await bounds(root))[1] == 42


@pytest.mark.parametrize("manifest", ["there", "lost"])
async def test_skip_believes_the_headers_of_damaged_batches_behind_the_recovery_point(
    tmp_path: Path, manifest: str
) -> None:
    root = tmp_path / "log"
    path, log = await make(root, killed=True)
    if manifest == "lost":
        (path / layout.MANIFEST).unlink()
    harm_batches(segment_path(path, 2), log, range(3, 7))
    repair(str(root), KEY, how="skip")
    assert (await bounds(root))[1] == 42
    assert not damaged(path)


async def test_cut_ends_the_log_at_the_damage(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    harm_batches(segment_path(path, 1), log, range(2, 3))
    repair(str(root), KEY, how="cut")
    assert await bounds(root) == (0, 18)
    assert not damaged(path)


@pytest.mark.parametrize("how", ["cut", "skip"])
async def test_a_segment_behind_lost_ones_that_the_manifest_has_not(
    tmp_path: Path, how: str
) -> None:
    """Rolled since the manifest was written: the gap is told, or ends the log."""
    root = tmp_path / "log"
    live = tmp_path / "live"
    live.mkdir()
    name = layout.directory_name(KEY)
    ops = LossyOps(live)
    async with open_store(live.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        manifest = (live / name / layout.MANIFEST).read_bytes()
        for _ in range(3):
            log.append(4)
            log.writer.roll()
            await log.writer.flush()
        log.append(4)
        await log.writer.flush()
        ops.killed(root)
    path = root / name
    (path / layout.MANIFEST).write_bytes(manifest)
    segment_path(path, 1).unlink()
    report = repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert any("offsets 4 to 7 before" in action for action in report.actions)
    assert await bounds(root) == ((0, 4) if how == "cut" else (0, 16))
    _, blobs = await open_log(root)
    gaps = decode_gaps(blobs[GAPS_BLOB]) if blobs else ()
    assert gaps == (() if how == "cut" else ((4, 8),))
    assert not damaged(path)


@pytest.mark.parametrize("how", ["cut", "skip"])
async def test_an_empty_stray_does_not_move_the_end(tmp_path: Path, how: str) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    stray = path / "00000000000000000300.log"
    stray.write_bytes(b"")
    report = repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert report.actions == [f"set {stray.name} aside, of which nothing is valid"]
    assert await bounds(root) == (0, 42)
    assert (await open_log(root))[0] == log.bytes()


# -- the start -------------------------------------------------------------------------------


async def test_the_end_is_never_below_the_start(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    await trim(root, 20)
    for number in (1, 2):
        harm_batches(segment_path(path, number), log, range(7))
    repair(str(root), KEY, how="cut")
    assert await bounds(root) == (20, 20)
    assert not damaged(path)
    assert repair(str(root), KEY, how="cut").actions == []


async def test_damage_below_the_log_start_cuts_nothing_off(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    await trim(root, 20)
    harm_batches(segment_path(path, 0), log, range(2, 7))
    harm_batches(segment_path(path, 1), log, range(2))
    report = repair(str(root), KEY, how="cut")
    assert len(report.actions) > 1
    assert await bounds(root) == (20, 42)
    data, _ = await open_log(root)
    offsets = {meta.base_offset for meta in metas_of(data)}
    assert set(range(20, 42, 2)) <= offsets
    assert not damaged(path)


async def test_damage_that_reaches_over_the_log_start_cuts(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    await trim(root, 20)
    harm_batches(segment_path(path, 1), log, range(2, 4))
    repair(str(root), KEY, how="cut")
    assert await bounds(root) == (20, 20)


async def test_verify_tells_a_start_above_the_end(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    file = path / layout.MANIFEST
    manifest = layout.Manifest.decode(file.read_bytes(), str(file))
    manifest.log_start = 60
    file.write_bytes(manifest.encode())
    (problem,) = damaged(path)
    assert "starts at offset 60, and ends at 42" in problem


# -- the manifest ----------------------------------------------------------------------------


async def test_no_file_of_a_lost_manifest_is_written_over(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    for blob in path.glob("*.blob"):
        blob.rename(path / "0.blob")
    before = (path / "0.blob").read_bytes()
    (path / layout.MANIFEST).unlink()
    harm_batches(segment_path(path, 1), log, range(2, 3))
    report = repair(str(root), KEY, how="skip")
    assert report.quarantine is not None
    assert (Path(report.quarantine) / "0.blob").read_bytes() == before
    told = "\n".join(report.actions)
    assert "the log starts at offset 0 now" in told
    assert "set 0.blob aside" in told
    _, blobs = await open_log(root)
    assert (18, 20) in decode_gaps(blobs[GAPS_BLOB])
    restore(str(root), entries(str(root))[0].name, NOW)
    assert [each.name for each in path.glob("*.blob")] == ["0.blob"]
    assert (path / "0.blob").read_bytes() == before


async def test_a_manifest_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    file = path / layout.MANIFEST
    file.write_bytes(file.read_bytes().replace(b"odradek manifest 1 ", b"odradek manifest 2 ", 1))
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    async with open_store(root.as_uri(), SETTINGS) as store:
        with pytest.raises(Corrupt, match="has format 2, and this version reads format 1") as told:
            await store.open_writer(KEY, Claim(2, 1))
    assert "repair" not in str(told.value)
    for how in ("cut", "skip"):
        with pytest.raises(Corrupt, match=r"format 2.*nothing was changed"):
            repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    assert entries(str(root)) == []


async def test_a_manifest_that_lacks_something_is_damaged(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    (path / layout.MANIFEST).write_bytes(layout.wrap("manifest", b'{"key": "x"}'))
    assert damaged(path)
    repair(str(root), KEY, how="skip")
    assert (await open_log(root))[0] == log.bytes()


# -- names and kinds of files ----------------------------------------------------------------


async def test_an_offset_that_no_client_could_name_makes_no_segment(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    stray = path / "99999999999999999999.log"
    stray.write_bytes(b"")
    assert layout.segment_base(stray.name) is None
    assert not damaged(path)
    assert repair(str(root), KEY, how="skip").actions == []
    assert (await open_log(root))[0] == log.bytes()
    assert stray.exists()


@pytest.mark.parametrize("kind", ["pipe", "directory"])
@pytest.mark.parametrize("name", ["sealed", "active", "manifest", "blob", "stray"])
async def test_what_is_no_file_is_told_and_set_aside(tmp_path: Path, kind: str, name: str) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    file = {
        "sealed": segment_path(path, 0),
        "active": segment_path(path, 2),
        "manifest": path / layout.MANIFEST,
        "blob": next(path.glob("*.blob")),
        "stray": path / "00000000000000000300.log",
    }[name]
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    found = damaged(path)
    assert bool(found) == (name != "blob")
    assert all("no file" in each for each in found)
    if name != "blob":
        async with open_store(root.as_uri(), SETTINGS) as store:
            with pytest.raises(Corrupt, match="no file"):
                await store.open_writer(KEY, Claim(2, 1))
    report = repair(str(root), KEY, how="skip")
    assert report.actions
    assert not damaged(path)
    data, _ = await open_log(root)
    lost = {"sealed": log.batches[:7], "active": log.batches[14:]}.get(name, [])
    assert data == b"".join(each for meta, each in log.batches if (meta, each) not in lost)
    (entry,) = entries(str(root))
    delete(str(root), entry.name)
    assert entries(str(root)) == []


async def test_nothing_is_listed_of_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        entries(str(tmp_path / "none"))


# -- interrupted -----------------------------------------------------------------------------


class Stopped(Exception):
    pass


@pytest.mark.parametrize("how", ["cut", "skip"])
async def test_a_repair_that_was_interrupted_anywhere_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pristine = tmp_path / "pristine"
    path, log = await make(pristine)
    harm_batches(segment_path(path, 0), log, range(2, 3))
    harm_batches(segment_path(path, 2), log, range(1, 2))
    before = segment_path(path, 0).read_bytes()

    def run(root: Path) -> RepairReport:
        return repair(str(root), KEY, how="cut" if how == "cut" else "skip")

    whole = tmp_path / "whole"
    shutil.copytree(pristine, whole)
    run(whole)
    expected = await open_log(whole)
    steps = 0
    for steps in range(60):
        root = tmp_path / f"log-{steps}"
        shutil.copytree(pristine, root)
        left = steps
        with monkeypatch.context() as patch:

            def counted(source: str, target: str, call: str) -> None:
                nonlocal left
                if not left:
                    raise Stopped
                left -= 1
                getattr(os, call)(source, target)

            for call in ("rename", "link"):
                patch.setattr(Ops, call, staticmethod(lambda a, b, call=call: counted(a, b, call)))
            try:
                run(root)
            except Stopped:
                pass
            else:
                break
        run(root)
        assert await open_log(root) == expected
        kept = [each.read_bytes() for each in root.glob(f"quarantine/*/{0:020d}.log")]
        assert before in kept
    assert 5 < steps < 59, "it was interrupted at every step"


async def test_a_file_with_a_second_name_is_put_back_as_a_file_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    file = segment_path(path, 2)
    harm_batches(file, log, range(6, 7))
    repair(str(root), KEY, how="skip")
    (entry,) = entries(str(root))
    other = tmp_path / "other"
    os.link(root / layout.QUARANTINE / entry.name / file.name, other)
    restore(str(root), entry.name, NOW)
    assert file.read_bytes() == other.read_bytes()
    assert file.stat().st_nlink == 1


# -- anything --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "skip"])
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_was_harmed_a_repaired_log_opens(
    tmp_path: Path, seed: int, how: str
) -> None:
    random = Random(seed)
    root = tmp_path / "log"
    path, log = await make(root)
    start = random.choice([0, 3, 15, 30, 42])
    await trim(root, start)
    lost_manifest = False
    for _ in range(random.randint(1, 3)):
        file = random.choice(sorted(path.iterdir()))
        data = bytearray(file.read_bytes())
        harm = random.choice(["flip", "cut", "remove", "zero"])
        lost_manifest |= file.name == layout.MANIFEST
        if harm == "remove":
            file.unlink()
            continue
        if harm == "flip" and data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif harm == "cut":
            del data[random.randrange(len(data) + 1) :]
        elif data:
            at = random.randrange(len(data))
            data[at : at + 2000] = bytes(len(data[at : at + 2000]))
        file.write_bytes(data)
    repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert not damaged(path)
    low, high = await bounds(root)
    assert low <= high
    if not lost_manifest:
        assert low == start
        assert high == 42 or how == "cut"
    async with open_store(root.as_uri(), SETTINGS) as store:
        data_found = await read_log(await store.open_writer(KEY, Claim(3, 1)))
    known = {bytes(each[16:]) for _, each in log.batches}
    position = 0
    for meta in metas_of(data_found):
        assert data_found[position + 16 : position + meta.size] in known
        position += meta.size
    assert repair(str(root), KEY, how="cut" if how == "cut" else "skip").actions == []
