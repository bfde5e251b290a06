"""`odradek log`: a storage looked into and mended without a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.storages import Run, batch, flip, rows, segments, stored, usual
from tests.log.logs import KEY, add, committed, opened

from odradek.cli.storage import ATTEMPTS, Damage, Found, steadily, walk
from odradek.contracts.storage import (
    Claim,
    LogEdit,
    LogSnapshot,
    PartitionReader,
    SegmentInfo,
)
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.partition import PartitionLog
from odradek.log.verify import LogVerifier
from odradek.memory.storage import open_memory_store
from odradek.plugins import load
from odradek.types import PartitionKey

pytest.importorskip("odradek_storage_file")

OTHER = PartitionKey(KEY.topic_id, 1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return stored(tmp_path / "logs")


# -- verify ----------------------------------------------------------------------------------


def test_verify_of_a_sound_storage_says_so(run_here: Run, url: str) -> None:
    done = run_here("log", "verify", "--storage", url, "--format", "json")
    assert done.returncode == 0, done.stderr
    (row,) = rows(done)
    assert row["partition"] == str(KEY)
    assert (row["segments"], row["batches"], row["records"]) == (3, 12, 24)
    assert (row["start_offset"], row["end_offset"]) == (0, 24)
    assert row["problems"] == row["notes"] == []
    table = run_here("log", "verify", str(KEY), "--storage", url)
    assert table.stdout.decode().splitlines()[0].split()[-1] == "problems"
    assert table.stderr == b""


def test_verify_names_the_place_of_damage_and_the_remedy(run_here: Run, url: str) -> None:
    path = segments(url)[1]
    size = path.stat().st_size // 4
    flip(path, size + 300)
    done = run_here("log", "verify", "--storage", url, "--format", "json")
    assert done.returncode == 1
    (row,) = rows(done)
    (problem,) = row["problems"]
    assert problem.startswith(f"segment 8: bytes {size} to {2 * size}: the CRC")
    assert row["batches"] == 11, "what follows is read"
    assert f"odradek log repair {KEY} --storage {url}" in done.stderr.decode()


def test_verify_goes_on_with_the_next_partition_when_one_cannot_be_opened(
    run_here: Run, url: str, tmp_path: Path
) -> None:
    root = tmp_path / "logs"
    other = root / f"{KEY.topic_id}-1"
    other.mkdir()
    (other / "manifest").write_bytes(b"no manifest")
    done = run_here("log", "verify", "--storage", url, "--format", "json")
    assert done.returncode == 1
    good, bad = rows(done)
    assert good["problems"] == []
    assert bad["partition"] == str(OTHER)
    assert "manifest" in bad["problems"][0]
    dumped = run_here("log", "dump", "--storage", url)
    assert dumped.returncode == 1
    assert f"{OTHER}  CANNOT BE READ" in dumped.stdout.decode()
    assert "offsets 22 to 23" in dumped.stdout.decode()


def test_verify_tells_caches_from_damage(run_here: Run, url: str) -> None:
    index = segments(url)[0].with_suffix(".index")
    index.write_bytes(index.read_bytes() + b"junk")
    done = run_here("log", "verify", "--storage", url, "--format", "json")
    assert done.returncode == 0, "it is made again"
    (row,) = rows(done)
    assert index.name in row["notes"][0]


def test_verify_knows_a_gap_that_a_repair_left_from_lost_records(run_here: Run, url: str) -> None:
    path = segments(url)[1]
    size = path.stat().st_size // 4
    flip(path, size + 300)
    assert run_here("log", "repair", str(KEY), "--storage", url, "--how", "skip").returncode == 0
    assert run_here("log", "verify", "--storage", url).returncode == 0
    # The same gap, but nothing that says why:
    whole = stored(Path(url.removeprefix("file://")).with_name("lost"), lost)
    done = run_here("log", "verify", "--storage", whole, "--format", "json")
    assert done.returncode == 1
    assert rows(done)[0]["problems"] == ["segment 10: offsets 8 to 9 are missing"]


async def lost(log: PartitionLog) -> None:
    """A log whose middle segment was replaced by one that lacks its first batch."""
    await usual(log)
    await rewritten(log, {})


async def rewritten(log: PartitionLog, blobs: dict[str, bytes | None]) -> None:
    from odradek.contracts.storage import Chunk, Hint
    from odradek.record import scan

    writer = log.reader()
    segment = writer.snapshot.segments[1]
    with await writer.read(segment.id, 0, segment.size, Hint.SCAN) as data:
        held = b"".join(data.views())
    found = scan(memoryview(held))

    async def chunks() -> Any:
        start = found.positions[1]
        yield Chunk(found.metas[1:], [held[start:]])

    built = await writer.build(chunks())
    await log.edit(lambda _: LogEdit(remove=(segment.id,), add=(built,), blobs=blobs))


def test_verify_knows_a_gap_that_compaction_left(run_here: Run, tmp_path: Path) -> None:
    async def compacted(log: PartitionLog) -> None:
        await usual(log)
        await rewritten(log, {CLEANER_BLOB: CleanerState(cleaned_to=16).dump()})

    url = stored(tmp_path / "logs", compacted)
    assert run_here("log", "verify", "--storage", url).returncode == 0


def test_verify_reads_a_storage_that_is_being_written(
    run_here: Run, run: Run, serve: Callable[..., Any], tmp_path: Path
) -> None:
    url = (tmp_path / "live").as_uri()
    served = serve("--storage", url, "--set", "topics.segment.bytes=80000")
    for _ in range(4):
        made = run("produce", "t", "-b", served.address, "-q", stdin=b"%s\n" % (b"x" * 100) * 500)
        assert made.returncode == 0, made.stderr
    done = run_here("log", "verify", "--storage", url, "--format", "json")
    assert done.returncode == 0, done.stdout
    assert sum(row["records"] for row in rows(done)) == 2000
    assert run_here("log", "scrub", "--storage", url, "--rate", "0").returncode == 0
    refused = run_here("log", "quarantine", "delete", "x", "--storage", url, "--yes")
    assert refused.returncode == 1


def test_progress_is_for_terminals_and_leaves_the_answer_alone(
    run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_here("log", "verify", "--storage", url)
    assert plain.stderr == b""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    watched = run_here("log", "verify", "--storage", url)
    assert watched.returncode == 0
    assert watched.stdout == plain.stdout
    assert str(KEY) in watched.stderr.decode()


@pytest.mark.parametrize(("changes", "reads"), [(0, 1), (1, 2), (9, ATTEMPTS)])
async def test_a_log_that_looks_bad_is_read_again_only_if_it_was_changed(
    changes: int, reads: int
) -> None:
    done = 0

    async with open_memory_store(f"steadily-{changes}") as store, opened(store) as log:

        async def check(_: PartitionReader) -> bool:
            nonlocal done
            if done < changes:
                add(log, batch(done))
                log.roll()
            done += 1
            return True

        reader = await store.open_reader(KEY)
        assert await steadily(store, KEY, reader, check, lambda bad: bad)
    assert done == reads


# -- scrub -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["nan", "-1", "x"])
def test_scrub_refuses_a_rate_that_is_none(run_here: Run, url: str, rate: str) -> None:
    done = run_here("log", "scrub", "--storage", url, "--rate", rate)
    assert done.returncode == 2
    assert b"--rate" in done.stderr


def test_scrub_finds_damage_and_says_how_to_repair_it(run_here: Run, url: str) -> None:
    assert run_here("log", "scrub", "--storage", url, "--rate", "0").returncode == 0
    path = segments(url)[2]
    flip(path, 500)
    done = run_here("log", "scrub", "--storage", url, "--rate", "0", "--format", "json")
    assert done.returncode == 1
    (row,) = rows(done)
    assert row["damage"] == [
        {"segment": 16, "position": 0, "text": "the CRC of the batch is wrong"}
    ]
    assert f"odradek log repair {KEY}" in done.stderr.decode()
    table = run_here("log", "scrub", "--storage", url, "--rate", "0")
    assert "segment 16, byte 0: the CRC" in table.stdout.decode()


def test_scrub_keeps_to_its_rate(run_here: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.log.pace import Pace

    taken: list[tuple[float, int]] = []

    def take(self: Pace, size: int, now: float) -> float:
        taken.append((self._rate, size))
        return 0.0

    monkeypatch.setattr(Pace, "take", take)
    run_here("log", "scrub", "--storage", url, "--rate", "0.5")
    assert {rate for rate, _ in taken} == {512 * 1024}
    assert sum(size for _, size in taken) == sum(path.stat().st_size for path in segments(url))


# -- quarantine ------------------------------------------------------------------------------


def test_a_repair_can_be_listed_taken_back_and_deleted(run_here: Run, url: str) -> None:
    listed = run_here("log", "quarantine", "list", "--storage", url)
    assert listed.stdout == b"nothing is set aside\n"
    path = segments(url)[1]
    flip(path, 500)
    damaged = path.read_bytes()
    done = run_here("log", "repair", str(KEY), "--storage", url, "--how", "cut")
    assert done.returncode == 0
    (row,) = rows(run_here("log", "quarantine", "list", "--storage", url, "--format", "json"))
    assert row["partition"] == str(KEY)
    assert row["size"] > len(damaged)
    assert f"quarantine restore {row['name']} --storage {url}" in done.stdout.decode()
    refused = run_here("log", "quarantine", "restore", row["name"], "--storage", url)
    assert refused.returncode == 2
    assert b"--yes says so" in refused.stderr
    assert run_here("log", "verify", "--storage", url).returncode == 0
    back = run_here("log", "quarantine", "restore", row["name"], "--storage", url, "--yes")
    assert back.returncode == 0, back.stderr
    assert path.read_bytes() == damaged
    assert run_here("log", "verify", "--storage", url).returncode == 1
    assert run_here("log", "repair", str(KEY), "--storage", url, "--how", "skip").returncode == 0
    names = [
        each["name"]
        for each in rows(
            run_here("log", "quarantine", "list", "--storage", url, "--format", "json")
        )
    ]
    assert len(names) == 2
    for name in names:
        gone = run_here("log", "quarantine", "delete", name, "--storage", url, "-y")
        assert gone.returncode == 0, gone.stderr
        assert b"free again" in gone.stdout
    assert run_here("log", "verify", "--storage", url).returncode == 0


def test_quarantine_says_what_it_cannot_do(run_here: Run, url: str) -> None:
    for verb in ("restore", "delete"):
        done = run_here("log", "quarantine", verb, "nothing", "--storage", url, "--yes")
        assert done.returncode == 1
        assert b"nothing of the name 'nothing' is set aside" in done.stderr
    done = run_here("log", "quarantine", "list", "--storage", "memory:")
    assert done.stderr == b"odradek: memory: storage sets nothing aside\n"


# -- walking a segment -----------------------------------------------------------------------


async def batches_of(reader: PartitionReader) -> list[Found | Damage]:
    """Walk the first segment."""
    segment = reader.snapshot.segments[0]
    return [each async for each in walk(reader, segment, verify=True)]


def walked(url: str) -> list[Found | Damage]:
    """Walk the first segment of the first partition."""
    factory = load().storage("file")

    async def main() -> list[Found | Damage]:
        async with factory.open(url, factory.settings(read_only=True)) as store:
            return await batches_of(await store.open_reader(KEY))

    return trio.run(main)


def test_a_length_that_was_damaged_does_not_hide_what_follows(url: str) -> None:
    path = segments(url)[0]
    size = path.stat().st_size // 4
    data = bytearray(path.read_bytes())
    data[size + 8] = 0x7F  # it claims 2 GB
    path.write_bytes(data)
    first, damage, *rest = walked(url)
    assert isinstance(damage, Damage)
    assert (damage.position, damage.end) == (size, 2 * size)
    assert "says that it has" in damage.text
    assert [each.position for each in (first, *rest)] == [0, 2 * size, 3 * size]


def test_large_batches_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.cli.storage.CHUNK", 1000)
    monkeypatch.setattr("odradek.cli.storage.LARGE", 3000)

    async def fill(log: PartitionLog) -> None:
        for number, size in enumerate((10, 700, 5000, 10, 40_000, 10)):
            add(log, batch(number, size=size))
        await committed(log)

    url = stored(tmp_path / "logs", fill)
    found = walked(url)
    assert all(isinstance(each, Found) for each in found)
    assert [each.meta.base_offset for each in found if isinstance(each, Found)] == [
        0,
        2,
        4,
        6,
        8,
        10,
    ]
    large = found[4]
    flip(segments(url)[0], large.position + 30_000)
    again = walked(url)
    assert isinstance(again[4], Damage)
    assert (again[4].position, again[4].end) == (large.position, found[5].position)


def test_bytes_that_the_file_no_longer_has_are_damage(url: str) -> None:
    path = segments(url)[0]
    size = path.stat().st_size // 4
    factory = load().storage("file")

    async def main() -> list[Found | Damage]:
        async with factory.open(url, factory.settings()) as store:
            writer = await store.open_writer(KEY, Claim(1, 1))
            with path.open("r+b") as file:
                file.truncate(2 * size + 100)
            return await batches_of(writer)

    first, second, damage = trio.run(main)
    assert (first.position, second.position) == (0, size)
    assert isinstance(damage, Damage)
    assert (damage.position, damage.end) == (2 * size, 4 * size)


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["verify"], ["repair", "--how", "skip"]])
def test_a_partition_is_named_alike_in_every_command(
    run_here: Run, url: str, command: list[str]
) -> None:
    name, *rest = command
    upper = str(KEY).upper()
    done = run_here("log", name, upper, *rest, "--storage", url)
    assert done.returncode == 0, done.stderr
    for wrong in ("orders", "orders-0", str(KEY).replace("-", ":"), f"{KEY.topic_id}-+1"):
        done = run_here("log", name, wrong, *rest, "--storage", url)
        assert done.returncode == 2
        assert b"is not a partition" in done.stderr


def test_a_quarantine_of_no_directory_is_an_error(run_here: Run, tmp_path: Path) -> None:
    url = (tmp_path / "none").as_uri()
    done = run_here("log", "quarantine", "list", "--storage", url)
    assert done.returncode == 1
    assert b"No such file or directory" in done.stderr


def test_verify_tells_a_log_that_starts_above_its_end() -> None:
    segment = SegmentInfo(0, 0, 10, 0, -1, -1, 0, sealed=False)
    verifier = LogVerifier(LogSnapshot((segment,), 60, 10, ()))
    verifier.finish()
    assert verifier.problems == ["the log: starts at offset 60, and ends at 10"]
