"""Fixtures that every test may use."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for storage_file_*.py beside the tests


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on trio alone (anyio's pytest plugin would try asyncio too)."""
    return "trio"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this environment cannot mount a tmpfs")
    yield path
    subprocess.run(["umount", str(path)], check=True)
