"""`odradek serve`: its start, what it says, how it ends, what it leaves behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Serve = Callable[..., Any]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_what_it_is_and_stops_cleanly(serve: Serve, number: int) -> None:
    served = serve("--storage", "memory:")
    assert served.ready["broker_id"] == 1
    assert served.ready["pid"] == served.process.pid
    assert served.stop(number) == 0
    said = served.log.read_text().splitlines()
    assert said[0] == f"broker 1 of cluster {served.ready['cluster_id']}"
    assert said[1].split() == ["listening", f"tcp://{served.address}"]
    assert said[2].endswith("durability none: nothing survives a stop")
    assert said[3].split() == ["coordinator", "memory:"]
    assert said[-1] == "stopped"


def test_serve_raises_the_limit_of_open_files(serve: Serve) -> None:
    served = serve("--storage", "memory:")
    limits = Path(f"/proc/{served.process.pid}/limits")
    if not limits.exists():
        pytest.skip("no /proc here")
    (line,) = [each for each in limits.read_text().splitlines() if each.startswith("Max open")]
    soft, hard = line.split()[3:5]
    assert soft == hard


def test_serve_refuses_an_address_in_use_with_exit_code_1(serve: Serve, run: Run) -> None:
    first = serve("--storage", "memory:")
    second = run("serve", "--storage", "memory:", "--listen", f"tcp://{first.address}")
    assert second.returncode == 1
    assert first.address in second.stderr.decode()
    assert b"Traceback" not in second.stderr


def test_serve_refuses_a_scheme_that_nobody_serves(run: Run) -> None:
    done = run("serve", "--storage", "ftp://x", "--listen", "memory://here")
    assert done.returncode == 2
    assert b"no plugin serves ftp: as a storage" in done.stderr
    assert b"Traceback" not in done.stderr


def test_serve_keeps_records_and_topics_over_a_restart(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("odradek_storage_file")
    where = ("--storage", f"file://{tmp_path}/logs")
    first = serve(*where)
    sent = b"".join(b"%d\n" % n for n in range(1000))
    assert run("produce", "kept", "-q", "-b", first.address, stdin=sent).returncode == 0
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    second = serve(*where)
    assert run("consume", "kept", "-e", "-b", second.address).stdout == sent
    assert second.stop(signal.SIGTERM) == 0

    verified = run("log", "verify", *where, "--format", "json")
    assert verified.returncode == 0, verified.stderr
    (row,) = json.loads(verified.stdout)
    assert (row["records"], row["end_offset"], row["problems"]) == (1000, 1000, [])
    dumped = run("log", "dump", "--records", *where, "--format", "json").stdout.splitlines()
    records = [each for each in map(json.loads, dumped) if each["kind"] == "record"]
    assert [each["value"] for each in records] == [str(n) for n in range(1000)]

    (segment,) = [each for each in (tmp_path / "logs").rglob("*.log") if each.stat().st_size]
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 1
    segment.write_bytes(damaged)
    verified = run("log", "verify", *where)
    assert verified.returncode == 1
    assert b"the CRC of the batch is wrong" in verified.stdout


def test_serve_logs_json_without_control_characters(serve: Serve, run: Run) -> None:
    served = serve("--storage", "memory:", "--log-format", "json", "--set", "broker.id=7")
    assert served.ready["broker_id"] == 7
    assert served.stop(signal.SIGTERM) == 0
    for line in served.log.read_text().splitlines():
        if line.startswith("{"):
            assert json.loads(line)["level"]


def test_start_up_imports_neither_rich_nor_the_client() -> None:
    code = (
        "import sys\n"
        "from odradek.cli.app import run\n"
        "run(['serve', '--help'])\n"
        "import odradek.cli.serve, odradek.broker, odradek.cli.running, odradek.cli.logs\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('rich', 'psutil', 'httpx')"
        " or m.startswith('odradek.client')]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
