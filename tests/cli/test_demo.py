"""The demo: real data, every step checked, and nothing left behind that was not asked for."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.demo.checksum import PartitionSum
from odradek.cli.demo.insights import Insights, sparkline
from odradek.cli.demo.metrics import Sampler
from odradek.cli.demo.place import claim
from odradek.cli.demo.sources import from_paths
from odradek.cli.exits import CommandFailed

Run = Callable[..., subprocess.CompletedProcess[bytes]]

DPKG = b"""\
2026-01-31 12:00:01 status installed libc6:amd64 2.36-9
2026-01-31 12:00:02 upgrade tar:amd64 1.34 1.35
2026-01-31 13:00:00 startup archives unpack

2026-01-31 12:00:03 status installed libc6:amd64 2.36-10
"""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory of logs."""
    directory = tmp_path / "var"
    directory.mkdir()
    (directory / "dpkg.log").write_bytes(DPKG)
    (directory / "odd name!.log").write_bytes(b"\xff\xfe\x1b[31m\n" * 500)
    return directory


def _needs_the_plugins() -> None:
    pytest.importorskip("odradek_transport_tcp")
    pytest.importorskip("odradek_storage_file")


def test_demo_checks_everything_and_ends_by_itself_without_a_terminal(
    run: Run, logs: Path, tmp_path: Path
) -> None:
    _needs_the_plugins()
    where = tmp_path / "demo"
    done = run("demo", str(logs), "--dir", str(where), "--port", "0", "--seconds", "0.3")
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert re.search(r"every count and SHA-256 of 9\s+partitions agrees", said)
    assert re.search(r"logs\.dpkg .* 4 ", said)
    assert "busiest hour 2026-01-31 12:00, 3 lines" in said
    assert "\x1b" not in said
    assert list((where / "logs").rglob("*.log"))
    address = re.search(r"-b (127\.0\.0\.1:\d+)", said)
    assert address is not None
    assert run("topics", "list", "-b", address[1], "--timeout", "0.2").returncode == 3

    again = run("demo", "--dir", str(where), "--no-keep", "--seconds", "0.1", "--port", "0")
    assert again.returncode == 0, again.stderr
    assert not where.exists()


def test_demo_cuts_lines_that_no_request_could_carry(run: Run, tmp_path: Path) -> None:
    _needs_the_plugins()
    log = tmp_path / "z.log"
    log.write_bytes(b"Start-Date: " + b"\0" * 3_000_000 + b"\nshort\n")
    where = ("--dir", str(tmp_path / "demo"), "--port", "0", "--no-stay")
    done = run("demo", str(log), *where, "--seconds", "0.1")
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "every count and SHA-256" in said
    assert "1 line was longer than 512.0 KiB and cut" in said


@pytest.mark.parametrize("name", ["missing", "x" * 300])
def test_demo_refuses_paths_that_cannot_be_looked_at(
    run_here: Run, tmp_path: Path, name: str
) -> None:
    done = run_here("demo", str(tmp_path / name))
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"odradek: {tmp_path / name}: ")


def test_demo_on_a_terminal_goes_on_until_it_is_interrupted(logs: Path, tmp_path: Path) -> None:
    _needs_the_plugins()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "odradek.cli", "demo", str(logs), "--no-keep", "--port", "0"]
    with subprocess.Popen(
        [*command, "--seconds", "0.2", "--dir", str(tmp_path / "demo")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        while b"Ctrl-C stops it" not in said:
            said += os.read(ours, 65536)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        while b"The broker has stopped" not in said:
            said += os.read(ours, 65536)
        assert process.wait(20) == 0
    os.close(ours)
    assert not (tmp_path / "demo").exists()


def test_demo_never_empties_a_directory_that_is_not_its_own(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    with pytest.raises(CommandFailed, match="not empty"), claim(tmp_path, keep=False):
        pass
    assert precious.read_text() == "mine"


def test_demo_directory_belongs_to_one_demo_at_a_time(tmp_path: Path) -> None:
    where = tmp_path / "demo"
    with claim(where, keep=True) as place:
        (place.directory / "old").touch()
        with pytest.raises(CommandFailed, match="another demo"), claim(where, keep=True):
            pass
    with claim(where, keep=False):
        assert not (where / "old").exists()
    assert not where.exists()


def test_log_lines_are_keyed_by_package_and_empty_ones_left_out(logs: Path) -> None:
    dpkg, odd = from_paths([logs])
    assert (dpkg.topic, odd.topic) == ("logs.dpkg", "logs.odd-name")
    lines = list(dpkg.lines())
    assert [key for key, _ in lines] == [b"libc6", b"tar", None, b"libc6"]
    assert b"\n".join(value for _, value in lines) + b"\n" == DPKG.replace(b"\n\n", b"\n")
    assert [value for _, value in odd.lines()] == [b"\xff\xfe\x1b[31m"] * 500


def test_logs_of_the_same_name_have_topics_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.log").write_text("line")
    found = from_paths([tmp_path / "a", tmp_path / "b" / "x.log"])
    assert [each.topic for each in found] == ["logs.x", "logs.x-2"]


def test_partition_sum_tells_order_keys_and_nulls_apart() -> None:
    def total(*records: tuple[bytes | None, bytes | None]) -> str:
        found = PartitionSum()
        for key, value in records:
            found.add(key, value)
        return str(found)

    sums = {
        total((b"a", b"b")),
        total((b"ab", b"")),
        total((None, b"ab")),
        total((b"", b"ab")),
        total((b"a", None)),
        total((b"a", b"b"), (b"c", b"d")),
        total((b"c", b"d"), (b"a", b"b")),
    }
    assert len(sums) == 7
    assert total((b"a", b"b")) == total((b"a", b"b"))


def test_sampler_measures_this_machine() -> None:
    insights = Insights()
    for key, value in Sampler().sample(processes=True):
        assert f'"metric":"{key.decode()}"'.encode() in value
        insights.add("metrics", key, value)
    found = insights.result()
    assert len(found["cpu"]) == 1
    assert found["memory"]["total"] > 1 << 20


def test_insights_find_the_busiest_hour_and_the_last_line() -> None:
    insights = Insights()
    for line in filter(None, DPKG.splitlines()):
        insights.add("logs.dpkg", b"k", line)
    facts = insights.result()["logs"]["logs.dpkg"]
    assert facts["busiest_hour"] == ("2026-01-31 12:00", 3)
    assert facts["last_line"].startswith("2026-01-31 13:00:00")


def test_sparkline_goes_from_nothing_to_its_highest() -> None:
    assert sparkline([0, 50, 100], 100) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
