"""Settings of topics on the command line: what is not offered is refused with the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Served

from odradek.config import topic_settings

Run = Callable[..., subprocess.CompletedProcess[bytes]]

REFUSED = [
    ("preallocate=true", b"preallocate is not offered: segments are not preallocated"),
    ("unclean.leader.election.enable=true", b"only false is supported"),
    ("retention.msec=1", b'did you mean "retention.ms"'),
]


@pytest.mark.parametrize(("setting", "reason"), REFUSED)
def test_refused_setting_says_why_and_changes_nothing(
    odradek: Run, setting: str, reason: bytes
) -> None:
    created = odradek("topics", "create", "refused", "-c", setting)
    assert created.returncode == 1
    assert b"INVALID_CONFIG" in created.stderr
    assert reason in created.stderr
    assert odradek("topics", "describe", "refused").returncode == 1

    assert odradek("topics", "create", "kept", "--if-not-exists").returncode == 0
    altered = odradek("topics", "alter", "kept", "--set", setting, "--set", "segment.ms=5")
    assert altered.returncode == 1
    assert reason in altered.stderr
    (document,) = json.loads(odradek("topics", "describe", "kept", "--format", "json").stdout)
    assert document["settings"] == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "twice", "-c", "segment.ms=5", "-c", "retention.ms=1", "-c", " segment.ms=6"),
        ("alter", "twice", "--set", "segment.ms=5", "--set", "segment.ms=5"),
        ("alter", "twice", "--set", "segment.ms=5", "--unset", "segment.ms"),
        ("alter", "twice", "--unset", "segment.ms", "--unset", "segment.ms"),
    ],
)
def test_setting_given_twice_is_refused(here: Run, arguments: tuple[str, ...]) -> None:
    done = here("topics", *arguments)
    assert done.returncode == 2
    assert b"segment.ms is given twice" in done.stderr


@pytest.fixture
def configured(serve: Callable[..., Served], tmp_path: Path) -> Served:
    """A broker with a default of its own for topics."""
    config = tmp_path / "odradek.toml"
    config.write_text('[storage]\nurl = "memory:"\n[topics]\nsegment.ms = 3600000\n')
    return serve("--config", str(config))


def test_described_setting_says_where_it_comes_from(run: Run, configured: Served) -> None:
    def topics(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run("topics", *arguments, "-b", configured.address)

    assert topics("create", "origins", "-c", "retention.ms=60000").returncode == 0

    (document,) = json.loads(topics("describe", "origins", "--format", "json").stdout)
    assert document["settings"] == {"retention.ms": "60000", "segment.ms": "3600000"}
    assert document["origins"] == {"retention.ms": "topic", "segment.ms": "broker"}
    text = topics("describe", "origins").stdout.decode()
    assert text.startswith(f"origins  id {document['topic_id']}  1 partition\n")
    assert "  retention.ms = 60000  (topic)\n" in text
    assert "  segment.ms = 3600000  (broker)\n" in text

    done = topics("describe", "origins", "--all-settings", "--format", "json")
    (document,) = json.loads(done.stdout)
    assert document["origins"].keys() == document["settings"].keys() == topic_settings().keys()
    assert document["origins"]["retention.bytes"] == "default"
    assert document["origins"]["segment.ms"] == "broker"
    text = topics("describe", "origins", "--all-settings").stdout.decode()
    assert "  retention.bytes = -1  (default)\n" in text
