"""What repairs set aside: listed, put back as it was, deleted; nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_storage_file_damage import SETTINGS, make, open_log, segment_path

from odradek.contracts.storage import Claim, Corrupt, LogEdit, OutOfRange, Unavailable
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps
from odradek.plugins import load
from odradek.testing.storage import KEY, Log, read_log
from odradek_storage_file import layout
from odradek_storage_file.ops import Ops
from odradek_storage_file.quarantine import delete, entries, restore
from odradek_storage_file.repair import repair
from odradek_storage_file.store import open_store
from odradek_storage_file.verify import verify

NOW = 1_700_000_000_000


def state(path: Path) -> dict[str, bytes]:
    """The files of a partition that are no caches."""
    return {
        file.name: file.read_bytes()
        for file in sorted(path.iterdir())
        if file.suffix in (".log", ".blob") or file.name == layout.MANIFEST
    }


def flip(file: Path, at: int = 2000) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x20
    file.write_bytes(data)


def harm(path: Path, what: str) -> None:
    if what == "manifest":
        flip(path / layout.MANIFEST, 100)
        return
    if what == "blob":
        (blob,) = path.glob("*.blob")
        flip(blob, 0)
        return
    kind, _, number = what.partition(" ")
    file = segment_path(path, int(number))
    if kind == "flip":
        flip(file)
    elif kind == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:3000])


HARMS = [
    *(f"{kind} {number}" for kind in ("flip", "missing", "cut") for number in range(3)),
    "manifest",
    "blob",
]


@pytest.mark.parametrize("how", ["cut", "skip"])
@pytest.mark.parametrize("what", HARMS)
async def test_a_repair_can_be_taken_back_to_the_byte(tmp_path: Path, what: str, how: str) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    harm(path, what)
    damaged = state(path)
    report = repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    repaired = state(path)
    assert repaired != damaged
    (entry,) = entries(str(root))
    assert report.quarantine == f"{root}/{layout.QUARANTINE}/{entry.name}"
    assert entry.key == KEY
    assert list(entry.reason) == report.actions
    assert entry.size > 0
    restore(str(root), entry.name, NOW)
    assert state(path) == damaged
    (undo,) = entries(str(root))
    assert undo.reason == (f"{entry.name} was put back in its place",)
    restore(str(root), undo.name, NOW)
    assert state(path) == repaired, "that can be taken back as well"
    data, _ = await open_log(root)
    assert data or (what, how) == ("missing 0", "cut")


@pytest.mark.parametrize("how", ["cut", "skip"])
async def test_what_was_written_since_is_set_aside_and_not_lost(tmp_path: Path, how: str) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    flip(segment_path(path, 1))
    damaged = segment_path(path, 1).read_bytes()
    repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    (entry,) = entries(str(root))
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(2, 1))
        log = Log(writer, epoch=2)
        for _ in range(3):
            log.append(2, value_bytes=700)
            writer.roll()
        await writer.commit(LogEdit(blobs={"state": b"new", "more": b"x"}))
        await writer.flush()
        everything = await read_log(writer)
    restore(str(root), entry.name, NOW)
    assert segment_path(path, 1).read_bytes() == damaged
    (undo,) = entries(str(root))
    if how == "skip":
        # The active segment had been left alone: what was appended to it is still there.
        repair(str(root), KEY, how="skip")
        assert (await open_log(root))[0] == everything
        return
    restore(str(root), undo.name, NOW)
    data, blobs = await open_log(root)
    assert data == everything
    assert (blobs["state"], blobs["more"]) == (b"new", b"x")


async def test_what_no_longer_fits_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    flip(segment_path(path, 1))
    repair(str(root), KEY, how="skip")
    (entry,) = entries(str(root))
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(2, 1))
        first = writer.snapshot.segments[0]
        await writer.commit(LogEdit(remove=(first.id,), log_start=first.end_offset))
    before = state(path)
    with pytest.raises(OutOfRange, match=r"changed since.*nothing was done"):
        restore(str(root), entry.name, NOW)
    assert state(path) == before
    assert entries(str(root)) == [entry]


class Stopped(Exception):
    pass


async def test_a_restore_that_was_interrupted_anywhere_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    flip(segment_path(path, 0))
    flip(segment_path(path, 2))
    damaged = state(path)
    repair(str(root), KEY, how="skip")
    (entry,) = entries(str(root))
    rename = Ops.rename
    steps = 0

    def run(allowed: int) -> None:
        left = allowed

        def counted(source: str, target: str) -> None:
            nonlocal left
            if not left:
                raise Stopped
            left -= 1
            rename(source, target)

        monkeypatch.setattr(Ops, "rename", staticmethod(counted))
        restore(str(root), entry.name, NOW + allowed)

    for steps in range(1, 40):
        try:
            run(steps)
        except Stopped:
            continue
        break
    assert 5 < steps < 39, "it was interrupted at every step"
    assert state(path) == damaged


async def test_a_segment_without_anything_valid_is_set_aside_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    file = segment_path(path, 1)
    file.write_bytes(b"\xff" * file.stat().st_size)
    junk = file.read_bytes()
    report = repair(str(root), KEY, how="skip")
    assert report.quarantine is not None
    assert (Path(report.quarantine) / file.name).read_bytes() == junk
    _, blobs = await open_log(root)
    assert decode_gaps(blobs[GAPS_BLOB]) == ((14, 28),)


async def test_gaps_of_several_repairs_are_all_known(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    for number in (0, 1):
        flip(segment_path(path, number))
        repair(str(root), KEY, how="skip")
    _, blobs = await open_log(root)
    assert decode_gaps(blobs[GAPS_BLOB]) == ((2, 4), (16, 18))


async def test_deleting_frees_the_room_and_touches_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    for _ in range(2):
        flip(segment_path(path, 0))
        repair(str(root), KEY, how="skip")
    before = state(path)
    first, second = entries(str(root))
    delete(str(root), first.name)
    assert entries(str(root)) == [second]
    assert state(path) == before
    for name in (first.name, "../..", "", second.name + "x"):
        with pytest.raises(OutOfRange, match="is set aside"):
            delete(str(root), name)
        with pytest.raises(OutOfRange, match="is set aside"):
            restore(str(root), name, NOW)


async def test_the_quarantine_respects_the_lock_and_can_be_listed_beside_a_broker(
    tmp_path: Path,
) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    flip(segment_path(path, 0))
    repair(str(root), KEY, how="skip")
    async with open_store(root.as_uri(), SETTINGS):
        (entry,) = entries(str(root))
        for change in (
            lambda: restore(str(root), entry.name, NOW),
            lambda: delete(str(root), entry.name),
        ):
            with pytest.raises(Unavailable, match="in use by process"):
                change()
    assert entries(str(root)) == [entry]


async def test_what_an_older_version_set_aside_is_listed(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    old = root / layout.QUARANTINE / f"{path.name}.1700000000000"
    old.mkdir(parents=True)
    (old / "00000000000000000000.log").write_bytes(b"x" * 10)
    (root / layout.QUARANTINE / "notes.txt").write_bytes(b"")
    (entry,) = entries(str(root))
    assert (entry.at_ms, entry.size, entry.files) == (1_700_000_000_000, 10, 1)
    assert "not known" in entry.reason[0]


async def test_headers_alone_tell_what_only_the_files_can(tmp_path: Path) -> None:
    root = tmp_path / "log"
    path, _ = await make(root)
    (report,) = verify(str(root), KEY, headers_only=True)
    assert report.findings == []
    flip(segment_path(path, 0))
    index = sorted(path.glob("*.index"))[1]
    flip(index, 3)
    (blob,) = path.glob("*.blob")
    blob.unlink()
    found = {
        Path(f.file).name: f.severe
        for r in verify(str(root), KEY, headers_only=True)
        for f in r.findings
    }
    assert found == {index.name: False, blob.name: False}, "the CRCs are another reader's"


async def test_the_plugin_offers_all_of_it(tmp_path: Path) -> None:
    factory = load().storage("file")
    settings = factory.settings()
    root = tmp_path / "log"
    path, _ = await make(root)
    url = root.as_uri()
    assert factory.repair is not None
    assert factory.verify is not None
    assert factory.quarantine is not None
    assert list(factory.verify(url, settings, KEY)) == []
    file = segment_path(path, 0)
    whole = file.read_bytes()
    file.write_bytes(b"")
    (finding,) = (each for each in factory.verify(url, settings, KEY) if each.severe)
    assert f"0 bytes instead of {len(whole)}" in finding.text
    done = factory.repair(url, settings, KEY, "skip")
    (entry,) = factory.quarantine.entries(url, settings)
    assert f"`odradek log quarantine restore {entry.name} --storage {url}`" in done[-1]
    assert factory.quarantine.restore(url, settings, entry.name)
    async with open_store(url, SETTINGS) as store:
        with pytest.raises(Corrupt):
            await store.open_writer(KEY, Claim(2, 1))
    (entry,) = factory.quarantine.entries(url, settings)
    factory.quarantine.delete(url, settings, entry.name)
    assert list(factory.quarantine.entries(url, settings)) == []
