"""The command line as people run it: processes, against a broker that is one too."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("ODRADEK")},
    "PYTHONWARNINGS": "error",
    "NO_COLOR": "1",
}


def command(*arguments: str) -> list[str]:
    """The command line of this interpreter."""
    return [sys.executable, "-m", "odradek.cli", *arguments]


class Served:
    """A running `odradek serve`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        receiving, sending = os.pipe()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command("serve", "--ready-fd", str(sending), *arguments),
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(sending,),
                env=ENVIRONMENT,
            )
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            line = pipe.readline()
        self.log = log
        assert line, log.read_text()
        self.ready: dict[str, Any] = json.loads(line)

    @property
    def address(self) -> str:
        (address,) = self.ready["addresses"].values()
        return str(address)

    def stop(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start brokers; those that still run at the end are killed."""
    pytest.importorskip("odradek_transport_tcp")
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        listen = () if "--listen" in arguments else ("--listen", "tcp://127.0.0.1:0")
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(Served([*listen, *arguments], log))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker in memory, shared by the tests of a module."""
    pytest.importorskip("odradek_transport_tcp")
    log = tmp_path_factory.mktemp("broker") / "serve.log"
    served = Served(["--listen", "tcp://127.0.0.1:0", "--storage", "memory:"], log)
    yield served.address
    served.process.kill()
    served.process.wait()


@pytest.fixture
def run() -> Run:
    """Run a command line to its end, without a broker."""

    def run(
        *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command(*arguments),
            input=stdin,
            capture_output=True,
            timeout=60,
            env={**ENVIRONMENT, **(env or {})},
            check=False,
        )

    return run


@pytest.fixture
def run_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process: for what needs no process of its own."""
    from odradek.cli.app import run

    monkeypatch.delenv("ODRADEK_BOOTSTRAP", raising=False)

    def run_here(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        code = run(arguments)
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out.encode(), said.err.encode())

    return run_here


@pytest.fixture
def odradek(run: Run, address: str) -> Run:
    """Run a command line to its end; it finds the module's broker."""

    def odradek(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return run(*arguments, stdin=stdin, env={"ODRADEK_BOOTSTRAP": address})

    return odradek


@pytest.fixture
def here(run_here: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process; it finds the module's broker."""
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", address)
    return run_here
