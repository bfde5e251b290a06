"""Commands that need no broker: config, plugins, version, help."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]

MEMORY = ("--storage", "memory:", "--listen", "memory://here")


def test_config_check_names_every_problem(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "odradek.toml"
    file.write_text('[broker]\nidd = 1\nrack = 5\n[storage]\nurl = "nowhere"\n')
    done = run("config", "check", str(file))
    assert done.returncode == 2
    said = done.stderr.decode().splitlines()
    assert len(said) == 3
    assert all(line.startswith("odradek: ") for line in said)
    assert 'did you mean "id"' in said[0]
    assert run("config", "check", *MEMORY).returncode == 0


def test_config_show_can_be_read_back(run: Run, tmp_path: Path) -> None:
    shown = run("config", "show", *MEMORY, "--set", "broker.id=5").stdout
    file = tmp_path / "odradek.toml"
    topics = shown.index(b"[topics]")
    file.write_bytes(shown[:topics])
    document = json.loads(run("config", "show", str(file), "--format", "json").stdout)
    assert document["broker"]["id"] == 5
    assert document["storage"]["url"] == "memory:"


def test_config_reference_explains_what_is_asked_for(run: Run) -> None:
    rows = json.loads(run("config", "reference", "retention", "--format", "json").stdout)
    assert "topics.retention.ms" in {row["setting"] for row in rows}
    assert all(row["doc"] for row in rows)
    text = run("config", "reference", "auto_create").stdout.decode()
    assert text.startswith("broker.auto_create_topics = true")


def test_plugins_lists_what_each_serves(run: Run) -> None:
    rows = json.loads(run("plugins", "--format", "json").stdout)
    found = {row["plugin"]: row for row in rows}
    assert found["memory"]["storage"] == ["memory"]
    assert found["embedded"]["coordinator"] == ["embedded"]


def test_version_names_odradek_and_python(run: Run) -> None:
    document = json.loads(run("version", "--format", "json").stdout)
    assert {"odradek", "python", "trio"} <= document.keys()


@pytest.mark.parametrize(
    "command", ["", "serve", "topics", "produce", "consume", "log", "config", "plugins", "demo"]
)
def test_every_command_has_help(run: Run, command: str) -> None:
    done = run(*filter(None, [command]), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: odradek")
