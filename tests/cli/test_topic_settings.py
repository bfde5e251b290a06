"""Settings of topics on the command line: what is not offered is refused with the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

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
