"""The examples of docs/embedding.md run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "embedding"

pytestmark = pytest.mark.skipif(
    find_spec("odradek_transport_tcp") is None, reason="the tcp transport is not installed"
)


def run(*arguments: str | Path, directory: Path = EXAMPLES) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_example_is_in_the_table_of_the_readme() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"| [{path.name}]({path.name}) |" in table


def test_script_consumes_what_it_produced() -> None:
    first, *records, committed = run("script.py")
    assert first.startswith("any Kafka client can connect to 127.0.0.1:")
    assert records[-1] == "9 b'9' b'81'"
    assert "offset=10" in committed


@pytest.mark.skipif(
    find_spec("odradek_storage_file") is None, reason="the file storage is not installed"
)
def test_trio_service_closes_its_logs(tmp_path: Path) -> None:
    assert run("trio_service.py", tmp_path) == []
    assert (tmp_path / "clean-shutdown").exists()


@pytest.mark.interop
def test_asyncio_service_consumes_what_it_produced() -> None:
    pytest.importorskip("aiokafka")
    assert run("asyncio_service.py") == ["b'0'", "b'1'", "b'2'"]


@pytest.mark.interop
def test_tests_of_the_example_pass(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    for name in ("orders.py", "test_orders.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py",
                 directory=tmp_path)  # fmt: skip
    assert output[-1].startswith("5 passed")
