"""Files flipped, cut, emptied, removed or added while the broker was down.

Faults F14 and F15. Whatever happened, a start either serves everything, or says which file is bad
and what to do; no acknowledged record goes away without a word, and other partitions are served.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.traffic import Unserved, Writer, batch_of, create, produce, until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

FLIPS = int(os.environ.get("ODRADEK_FLIPS", "12"))
SETTINGS = {"topics.segment.bytes": 16 * 1024, "storage.ballast_bytes": 4096}
INDEXES = (".index", ".timeindex", ".rows")
Damage = Callable[[Path], None]


class Pristine:
    """A broker's directory with the topics `victim` and `other`, and what was acknowledged."""

    def __init__(self, broker: BrokerProcess, victim: Writer, other: Writer) -> None:
        self.directory = broker.directory
        self.victim = victim
        self.other = other
        with Probe(broker.address) as probe:
            self.name = f"{probe.topic_id('victim')}-0"
            self.other_name = f"{probe.topic_id('other')}-0"


def unchecked(directory: Path) -> bool:
    """Whether the active segment goes on behind the recovery point in the manifest."""
    active = json.loads((directory / "manifest").read_bytes().split(b"\n", 1)[1])["active"]
    last = max(directory.glob("*.log"))
    return bool(int(last.stem) > active["base"] or last.stat().st_size > active["size"])


@pytest.fixture(scope="module", params=["stopped", "killed"])
def pristine(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pristine]:
    broker = BrokerProcess(tmp_path_factory.mktemp("pristine"), SETTINGS)
    broker.start()
    try:
        with Probe(broker.address) as probe:
            probe.create_topic("victim")
            probe.create_topic("other")
        with (
            Writer(broker.address, "victim", batch_size=2000) as victim,
            Writer(broker.address, "other") as other,
        ):
            for step in range(1, 11):  # in steps, or librdkafka would make two batches of it
                victim.send_until(60 * step)
                victim.settle()
            for step in range(1, 6):
                other.send_until(20 * step)
                other.settle()
            made = Pristine(broker, victim, other)
            settled = 0
            while settled < 3:  # until a start has something to check, and no manifest is under way
                victim.send_until(len(victim.acknowledged) + 1)
                victim.settle()
                settled = settled + 1 if unchecked(broker.data / made.name) else 0
        if request.param == "stopped":
            broker.stop()
        else:
            broker.kill()
        yield made
    finally:
        broker.kill()


class Scene:
    """A copy of the pristine directory, to be damaged before it is served."""

    def __init__(self, broker: BrokerProcess, pristine: Pristine) -> None:
        self.broker = broker
        self.victim = pristine.victim
        self.other = pristine.other
        self.directory = broker.data / pristine.name
        self.other_directory = broker.data / pristine.other_name

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.directory.glob(pattern))

    def said(self) -> str:
        return self.broker.log_file.read_text()

    def start(self) -> None:
        self.broker.start()
        assert self.other.misses(self.broker.address) == [], "another partition suffers"

    def serves_everything(self) -> None:
        address = self.broker.address
        assert self.victim.misses(address) == []
        number = self.victim.sent[0]
        answer = produce(address, "victim", batch_of([b"%d." % number]))
        assert answer.error_code == 0
        assert answer.base_offset == number
        assert self.victim.misses(address) == []

    def is_offline(self, *names: str) -> None:
        """Nothing of the partition is served, and the message names the file and a way out."""
        answer = produce(self.broker.address, "victim", batch_of([b"x"]))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(Unserved):
            self.victim.misses(self.broker.address)
        for text in (answer.error_message or "", "\n".join(self.broker.problems())):
            for name in names:
                assert name in text
            assert "restore" in text or "repair" in text


@pytest.fixture
def scene(make_broker: Callable[..., BrokerProcess], pristine: Pristine, tmp_path: Path) -> Scene:
    directory = tmp_path / "copy"
    shutil.copytree(pristine.directory, directory)
    broker = make_broker(SETTINGS, directory)
    return Scene(broker, pristine)


stopped = pytest.mark.parametrize("pristine", ["stopped"], indirect=True)
killed = pytest.mark.parametrize("pristine", ["killed"], indirect=True)


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit at a fraction of the file."""
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * at), len(data) - 1)] ^= 0x10
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()


ways = pytest.mark.parametrize("damage", [flip, empty, halve, remove])
losses = pytest.mark.parametrize("damage", [empty, halve, remove])


# -- segments --------------------------------------------------------------------------------


@stopped
@losses
def test_a_sealed_segment_that_lost_bytes_takes_the_partition_offline(
    scene: Scene, damage: Damage
) -> None:
    segment = scene.files("*.log")[1]
    damage(segment)
    scene.start()
    scene.is_offline(str(segment))


@stopped
@losses
def test_an_active_segment_that_lost_durable_bytes_takes_the_partition_offline(
    scene: Scene, damage: Damage
) -> None:
    segment = scene.files("*.log")[-1]
    damage(segment)
    scene.start()
    scene.is_offline(str(segment))


@killed
def test_a_bad_batch_with_good_ones_behind_it_takes_the_partition_offline(scene: Scene) -> None:
    """It is no torn tail, so nothing is cut off."""
    (segment,) = scene.other_directory.glob("*.log")  # never rolled: all of it is checked
    flip(segment, 0.3)
    before = segment.read_bytes()
    broker = scene.broker.start()
    answer = produce(broker.address, "other", batch_of([b"x"]))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert str(segment) in (answer.error_message or "")
    assert "valid batch after it" in (answer.error_message or "")
    assert segment.read_bytes() == before
    scene.serves_everything()


@killed
def test_a_bad_batch_at_the_very_end_is_cut_and_reported(scene: Scene) -> None:
    """After a crash nobody can tell it from a write that was torn."""
    segment = scene.files("*.log")[-1]
    flip(segment, 1.0)
    scene.start()
    assert any("is not there" in miss for miss in scene.victim.misses(scene.broker.address))
    assert "cut" in scene.said()
    assert str(segment) in scene.said()


def test_a_flipped_bit_in_a_segment_is_never_served_as_data(scene: Scene) -> None:
    """A sealed segment is not read at the start: who reads it finds the CRC of the batch wrong."""
    flip(scene.files("*.log")[0])
    scene.start()
    with pytest.raises(Unserved):
        scene.victim.misses(scene.broker.address)


# -- what is found in the background, and repaired ------------------------------------------


def tool(*arguments: str) -> str:
    """Run `odradek log`, and return what it says on standard output."""
    command = [sys.executable, "-m", "odradek.cli", "log", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@stopped
def test_scrubbing_finds_what_nobody_reads_and_the_remedy_that_it_names_works(
    scene: Scene,
) -> None:
    segment = scene.files("*.log")[1]
    whole = segment.read_bytes()
    flip(segment, 150 / len(whole))  # in the records of its first batch
    problem = ""
    for turn in range(2):  # it is told after every start
        scene.broker.log_file.write_text("")
        scene.start()
        until(lambda: "is damaged" in scene.said(), "the report of the damage")
        (problem,) = scene.broker.problems()
        assert "topic victim" in problem
        assert f"segment {int(segment.stem)} " in problem
        number = scene.victim.sent[0] + turn
        answer = produce(scene.broker.address, "victim", batch_of([b"%d." % number]))
        assert answer.error_code == 0, "it goes on"
        scene.broker.stop()
    (command,) = re.findall(r"`odradek log (repair [^`]*) --how cut\|skip`", problem)
    tool(*command.split(), "--how", "skip")
    tool("verify", "--storage", scene.broker.data.as_uri())
    (aside,) = json.loads(
        tool("quarantine", "list", "--storage", scene.broker.data.as_uri(), "--format", "json")
    )
    scene.broker.log_file.write_text("")
    scene.start()
    misses = scene.victim.misses(scene.broker.address)
    assert misses, "the damaged batch is left out"
    scene.broker.stop()
    assert scene.broker.problems() == []
    # The good copy turns up: back to what it was, and the copy in its place.
    tool("quarantine", "restore", aside["name"], "--storage", scene.broker.data.as_uri(), "--yes")
    segment.write_bytes(whole)
    tool("verify", "--storage", scene.broker.data.as_uri())
    scene.start()
    assert scene.victim.misses(scene.broker.address) == []
    scene.broker.stop()
    assert scene.broker.problems() == []


# -- what can be made again ------------------------------------------------------------------


@ways
def test_damaged_indexes_are_made_again(scene: Scene, damage: Damage) -> None:
    indexes = [path for suffix in INDEXES for path in scene.files(f"*{suffix}")]
    assert len(indexes) >= len(INDEXES)
    for path in indexes:
        damage(path)
    scene.start()
    scene.serves_everything()
    scene.broker.stop()
    assert scene.broker.problems() == []


@ways
def test_files_that_only_help_may_be_damaged(scene: Scene, damage: Damage) -> None:
    for name in ("leader-epoch-checkpoint", "../ballast", "../clean-shutdown"):
        path = scene.directory / name
        if path.exists():
            damage(path)
    scene.start()
    scene.serves_everything()
    scene.broker.stop()
    assert scene.broker.problems() == []


@stopped
def test_strays_are_left_alone_or_swept_and_never_served(scene: Scene) -> None:
    broker, directory = scene.broker, scene.directory
    strays = [broker.data / "notes.txt", directory / "notes.txt", directory / "7.log"]
    for path in strays:
        path.write_bytes(b"nobody knows")
    (directory / "old-manifest.tmp").write_bytes(b"half a manifest")
    (directory / "99.blob").write_bytes(b"a blob that nothing names")
    (directory / "5.built.log").write_bytes(b"half a segment")
    gone = broker.data / f"{directory.name}.0123abcd.deleted"
    gone.mkdir()
    (gone / "00000000000000000000.log").write_bytes(b"x")
    lost = broker.data / "00000000-0000-4000-8000-000000000000-0"
    shutil.copytree(directory, lost)
    scene.start()
    scene.serves_everything()
    for path in strays:
        assert path.read_bytes() == b"nobody knows"
    assert not (directory / "old-manifest.tmp").exists()
    assert not (directory / "99.blob").exists()
    assert not (directory / "5.built.log").exists()
    assert lost.exists(), "the log of a topic that is not known is somebody's data"
    assert "of no topic that the coordinator knows" in scene.said()
    broker.stop()


# -- what cannot -----------------------------------------------------------------------------


@stopped
@ways
def test_a_damaged_manifest_takes_the_partition_offline(scene: Scene, damage: Damage) -> None:
    damage(scene.directory / "manifest")
    scene.start()
    scene.is_offline("manifest", str(scene.directory))


@stopped
@ways
def test_a_damaged_blob_is_told_of_and_done_without(scene: Scene, damage: Damage) -> None:
    blob = scene.files("*.blob")[-1]
    damage(blob)
    scene.start()
    scene.serves_everything()
    assert f"{blob} is missing or damaged" in scene.said()


@stopped
def test_a_log_that_is_gone_is_told_of(scene: Scene) -> None:
    shutil.rmtree(scene.directory)
    scene.start()
    (problem,) = scene.broker.problems()
    assert "victim-0" in problem
    assert "restore" in problem


@stopped
def test_a_storage_that_is_not_mounted_is_told_of(scene: Scene) -> None:
    shutil.rmtree(scene.broker.data)
    scene.broker.start()
    (problem,) = scene.broker.problems()
    assert "2 partitions (other-0, victim-0)" in problem
    assert "mount" in problem


@stopped
def test_data_whose_coordinator_is_gone_is_kept_and_told_of(scene: Scene) -> None:
    before = [path.read_bytes() for path in scene.files("*.log")]
    shutil.rmtree(scene.broker.directory / "coordinator")
    scene.broker.start()
    (problem,) = scene.broker.problems()
    assert "2 partitions" in problem
    assert "restore the coordinator" in problem
    assert create(scene.broker.address, "victim") == 0
    assert [path.read_bytes() for path in scene.files("*.log")] == before


@stopped
@pytest.mark.parametrize("damage", [flip, empty])
def test_a_damaged_coordinator_refuses_the_start(scene: Scene, damage: Damage) -> None:
    database = scene.broker.directory / "coordinator" / "coordinator.db"
    if damage is flip:
        data = bytearray(database.read_bytes())
        data[data.index(b"victim") + 2] ^= 1
        database.write_bytes(data)
    else:
        damage(database)
    with pytest.raises(RuntimeError, match=r"(?s)coordinator\.db is damaged.*restore"):
        scene.broker.start()


# -- any byte --------------------------------------------------------------------------------


@killed
def test_a_flipped_bit_anywhere_loses_nothing_without_a_word(
    scene: Scene, pristine: Pristine, random: Random
) -> None:
    broker = scene.broker
    names = [
        path.relative_to(pristine.directory)
        for path in sorted(pristine.directory.rglob("*"))
        if path.is_file() and path.stat().st_size and path.name != "log.jsonl"
    ]
    for _ in range(FLIPS):
        shutil.rmtree(broker.directory)
        shutil.copytree(pristine.directory, broker.directory)
        broker.log_file.write_text("")
        name = random.choice(names)
        data = bytearray((broker.directory / name).read_bytes())
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        (broker.directory / name).write_bytes(data)
        what = f"{name}, byte {at}"
        started = True
        try:
            broker.start()
        except RuntimeError:
            started = False
        said = scene.said()
        assert "Traceback" not in said, what
        if not started:
            assert name.name in said, what
            continue
        for writer in (scene.victim, scene.other):
            try:
                misses = writer.misses(broker.address)
            except Unserved:
                continue  # refused, with an error, and not left out
            assert misses == [] or "cut" in said or "no topic" in said, what
        broker.kill()
