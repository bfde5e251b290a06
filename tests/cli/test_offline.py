"""Commands that need no broker: config, plugins, version, help."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import odradek.record
from odradek.cli.app import COMMANDS
from odradek.cli.exits import ExitCode

Run = Callable[..., subprocess.CompletedProcess[bytes]]

MEMORY = ("--storage", "memory:", "--listen", "memory://here")


def test_config_check_names_every_problem(run_here: Run, tmp_path: Path) -> None:
    file = tmp_path / "odradek.toml"
    file.write_text('[broker]\nidd = 1\nrack = 5\n[storage]\nurl = "nowhere"\n')
    done = run_here("config", "check", str(file))
    assert done.returncode == 2
    said = done.stderr.decode().splitlines()
    assert len(said) == 3
    assert all(line.startswith("odradek: ") for line in said)
    assert 'did you mean "id"' in said[0]
    assert run_here("config", "check", *MEMORY).returncode == 0


def test_config_show_can_be_read_back(run_here: Run, tmp_path: Path) -> None:
    shown = run_here("config", "show", *MEMORY, "--set", "broker.id=5").stdout
    file = tmp_path / "odradek.toml"
    topics = shown.index(b"[topics]")
    file.write_bytes(shown[:topics])
    document = json.loads(run_here("config", "show", str(file), "--format", "json").stdout)
    assert document["broker"]["id"] == 5
    assert document["storage"]["url"] == "memory:"


def test_config_reference_explains_what_is_asked_for(run_here: Run) -> None:
    rows = json.loads(run_here("config", "reference", "retention", "--format", "json").stdout)
    assert "topics.retention.ms" in {row["setting"] for row in rows}
    assert all(row["doc"] for row in rows)
    text = run_here("config", "reference", "auto_create").stdout.decode()
    assert text.startswith("broker.auto_create_topics = true")


def test_plugins_lists_what_each_serves(run_here: Run) -> None:
    rows = json.loads(run_here("plugins", "--format", "json").stdout)["plugins"]
    found = {row["plugin"]: row for row in rows}
    assert found["memory"]["storage"] == ["memory"]
    assert found["embedded"]["coordinator"] == ["embedded"]


def test_plugins_and_version_say_which_codec_is_in_force(run_here: Run) -> None:
    said = json.loads(run_here("plugins", "--format", "json").stdout)["record_codec"]
    assert said["accelerated"] is odradek.record.accelerated
    assert said["implementation"] == odradek.record.implementation()
    text = run_here("plugins").stdout.decode()
    assert f"record codec: {said['implementation']}" in text.splitlines()
    versions = json.loads(run_here("version", "--format", "json").stdout)
    assert versions["record codec"] == said["implementation"]


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_log_says_when_there_are_no_logs(run_here: Run, tmp_path: Path, command: str) -> None:
    pytest.importorskip("odradek_storage_file")
    missing = run_here("log", command, "--storage", (tmp_path / "none").as_uri())
    assert missing.returncode == 1
    said = missing.stderr.decode()
    assert said == f"odradek: cannot read {tmp_path}/none: No such file or directory\n"
    empty = run_here("log", command, "--storage", tmp_path.as_uri())
    assert empty.returncode == 1
    assert empty.stderr.startswith(b"odradek: there are no logs in this storage\n")


def test_version_names_odradek_and_python(run_here: Run) -> None:
    document = json.loads(run_here("version", "--format", "json").stdout)
    assert {"odradek", "python", "trio"} <= document.keys()


@pytest.mark.parametrize(
    "command", ["", "serve", "topics", "produce", "consume", "log", "config", "plugins", "demo"]
)
def test_every_command_has_help(run_here: Run, command: str) -> None:
    done = run_here(*filter(None, [command]), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: odradek")


def test_reference_names_every_command_and_exit_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    for name in COMMANDS:
        assert re.search(rf"^\| `{name}\b", text, re.MULTILINE), name
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {int(code) for code in ExitCode}


def test_interrupt_while_importing_is_its_exit_code_and_no_traceback() -> None:
    # A module that is imported early, and interrupts: Ctrl-C at that very moment.
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'odradek.cli.exits':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from odradek.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "version"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_log_repair_makes_a_damaged_partition_open(
    run: Run, run_here: Run, serve: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("odradek_storage_file")
    url = (tmp_path / "logs").as_uri()
    served = serve("--storage", url)
    for _ in range(2):
        made = run("produce", "t", "-b", served.address, "-q", stdin=b"one\ntwo\n")
        assert made.returncode == 0, made.stderr
    assert served.stop(signal.SIGTERM) == 0
    (segment,) = (tmp_path / "logs").glob("*-0/*.log")
    partition = segment.parent.name
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    assert run_here("log", "verify", "--storage", url).returncode == 1
    manifest = segment.parent / "manifest"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"damaged")
    said = run_here("log", "verify", "--storage", url).stderr.decode()
    assert f"`odradek log repair {partition} --storage {url} --how cut|skip`" in said
    manifest.write_bytes(whole)
    done = run_here("log", "repair", partition, "--storage", url, "--how", "skip")
    assert done.returncode == 0, done.stderr
    assert b"quarantine" in done.stdout
    assert run_here("log", "verify", "--storage", url).returncode == 0


def test_log_repair_refuses_what_it_cannot_do(run_here: Run, tmp_path: Path) -> None:
    pytest.importorskip("odradek_storage_file")
    key = "0b3c9a52-7d3e-4c57-9f0e-1d3a5b7c9e11-0"
    done = run_here("log", "repair", key, "--storage", "memory:", "--how", "cut")
    assert (done.returncode, done.stderr) == (1, b"odradek: memory: storage has no repair\n")
    assert (
        run_here("log", "repair", "x", "--storage", tmp_path.as_uri(), "--how", "cut").returncode
        == 2
    )
    done = run_here("log", "repair", key, "--storage", tmp_path.as_uri(), "--how", "cut")
    assert done.returncode == 1
    assert b"there is no log of" in done.stderr
