"""What fault tests need of the machine: root for mounts, and tools that break system calls."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

# The helpers are modules that several tests share: with --import-mode=importlib they can be
# imported only by their path from the root of the repository.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.needs import missing
from tests.interop.process import BrokerProcess


@pytest.fixture
def root() -> None:
    """Only root may mount."""
    tools = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if os.geteuid() != 0 or not all(shutil.which(t, path=tools) for t in ("mount", "mkfs.ext4")):
        missing("making a file system needs root, mount(8) and mkfs.ext4")


@pytest.fixture
def strace() -> None:
    """strace makes system calls of a running process fail."""
    if shutil.which("strace") is None:
        missing("strace is missing: scripts/install_test_tools.sh installs it")


@pytest.fixture
def random() -> Random:
    """Randomness whose seed is printed; ODRADEK_SEED repeats a run."""
    seed = int(os.environ.get("ODRADEK_SEED", str(Random().randrange(2**32))))
    print(f"ODRADEK_SEED={seed}")
    return Random(seed)


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Make brokers, not started yet, that are killed at the end: `make_broker(settings)`."""
    made: list[BrokerProcess] = []

    def make(
        settings: dict[str, object] | None = None,
        directory: Path | None = None,
        under: tuple[str, ...] = (),
    ) -> BrokerProcess:
        if directory is None:
            directory = tmp_path / f"broker{len(made)}"
            directory.mkdir()
        broker = BrokerProcess(directory, settings, under=under)
        # Not on the disk that the test fills or breaks: the test reads it
        broker.log_file = tmp_path / f"broker{len(made)}.jsonl"
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()
