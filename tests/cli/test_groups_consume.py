"""`odradek consume --group`: members that share, commit and leave, and commands beside them."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tests.cli.conftest import ENVIRONMENT, Served, command

Run = Callable[..., subprocess.CompletedProcess[bytes]]

_names = count()
TIMEOUT = 30.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose groups do not wait for a first member's companions."""
    pytest.importorskip("odradek_transport_tcp")
    served = Served(
        [
            "--listen", "tcp://127.0.0.1:0", "--storage", "memory:",
            "--set", "groups.initial_rebalance_delay_ms=0",
            "--set", "groups.offsets_partitions=1",
        ],
        tmp_path_factory.mktemp("broker") / "serve.log",
    )  # fmt: skip
    yield served.address
    served.process.kill()
    served.process.wait()


class Member:
    """A running `odradek consume --group`; both its outputs can be waited for."""

    def __init__(self, address: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command("consume", *arguments, "-b", address),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        self.out = b""
        self.said = b""

    def wait_for(self, condition: Callable[["Member"], bool]) -> None:
        """Read until what was read satisfies the condition."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        pipes = [self.process.stdout, self.process.stderr]
        deadline = time.monotonic() + TIMEOUT
        while not condition(self):
            ready, _, _ = select.select(pipes, [], [], max(deadline - time.monotonic(), 0))
            assert ready, (self.out, self.said)
            for pipe in ready:
                data = os.read(pipe.fileno(), 65536)
                assert data or condition(self), (self.out, self.said)
                if pipe is self.process.stdout:
                    self.out += data
                else:
                    self.said += data

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it by a signal; return its exit code. All its output is read then."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for its end, and return the exit code."""
        out, said = self.process.communicate(timeout=TIMEOUT)
        self.out += out
        self.said += said
        return self.process.returncode

    def __enter__(self) -> "Member":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def member(address: str) -> Iterator[Callable[..., Member]]:
    """Start members; those that still run at the end are killed."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(Member(address, *arguments))


@pytest.fixture
def produce(here: Run, tmp_path: Path) -> Callable[..., None]:
    """Send values to a partition."""

    def produce(topic: str, partition: str, *values: str) -> None:
        file = tmp_path / "values"
        file.write_text("\n".join(values))
        done = here("produce", topic, "-q", "-p", partition, "-f", str(file))
        assert done.returncode == 0, done.stderr

    return produce


@pytest.fixture
def name(here: Run, produce: Callable[..., None]) -> str:
    """A topic of two partitions with four records each, and the name of a group."""
    name = f"shared-{next(_names)}"
    here("topics", "create", name, "-p", "2")
    for partition in "01":
        produce(name, partition, "a", "b", "c", "d")
    return name


@pytest.fixture
def described(here: Run) -> Callable[[str], Any]:
    """A group as `odradek groups describe` tells of it."""

    def described(group: str) -> Any:
        done = here("groups", "describe", group, "--format", "json")
        assert done.returncode == 0, done.stderr
        (document,) = json.loads(done.stdout)
        return document

    return described


def committed(document: Any) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in document["partitions"]}


def test_member_goes_on_where_its_group_stopped(
    odradek: Run, name: str, described: Callable[[str], Any]
) -> None:
    first = odradek("consume", name, "-g", name, "-n", "3", "-f", "%p%v\\n")
    assert first.returncode == 0, first.stderr
    again = odradek("consume", name, "-g", name, "-e", "-f", "%p%v\\n")
    assert again.returncode == 0, again.stderr
    lines = (first.stdout + again.stdout).split()
    assert sorted(lines) == [b"0a", b"0b", b"0c", b"0d", b"1a", b"1b", b"1c", b"1d"]
    document = described(name)
    assert (document["state"], document["members"], document["lag"]) == ("Empty", [], 0)
    assert committed(document) == {0: 4, 1: 4}
    summary = again.stderr.decode().splitlines()[-1]
    assert summary == f"5 records read as a member of group {name}; lag 0 in 2 partitions"
    nothing = odradek("consume", name, "-g", name, "-e", "-q")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("start", "values"),
    [
        ("earliest", [b"a", b"a", b"b", b"b", b"c", b"c", b"d", b"d"]),
        ("latest", []),
        ("3", [b"d", b"d"]),
        ("@0", [b"a", b"a", b"b", b"b", b"c", b"c", b"d", b"d"]),
        ("2099-01-01", []),
    ],
)
def test_start_is_for_groups_without_offsets(
    odradek: Run, name: str, start: str, values: list[bytes]
) -> None:
    done = odradek("consume", name, "-g", name, "-e", "-q", "--from", start)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.split()) == values
    again = odradek("consume", name, "-g", name, "-e", "-q", "--from", "0")
    assert again.stdout == b""


def test_member_that_does_not_commit_leaves_no_trace(odradek: Run, here: Run, name: str) -> None:
    for _ in range(2):
        done = odradek("consume", name, "-g", name, "-e", "-q", "--no-commit")
        assert len(done.stdout.split()) == 8
    shown = here("groups", "offsets", name, "--format", "json")
    assert shown.returncode == 1 or json.loads(shown.stdout) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_member_that_is_stopped_commits_and_leaves_at_once(
    member: Callable[..., Member],
    name: str,
    described: Callable[[str], Any],
    number: int,
    code: int,
) -> None:
    reading = member(name, "-g", name)
    reading.wait_for(lambda it: len(it.out.split()) == 8)
    assert reading.stop(number) == code
    document = described(name)
    assert (document["state"], document["members"]) == ("Empty", [])
    assert committed(document) == {0: 4, 1: 4}
    last = reading.said.decode().splitlines()[-1]
    assert last.startswith(f"8 records read as a member of group {name}; lag 0 in 2 partitions")


def test_members_share_the_partitions_and_take_over(
    here: Run,
    member: Callable[..., Member],
    name: str,
    produce: Callable[..., None],
    described: Callable[[str], Any],
) -> None:
    one = member(name, "-g", name, "-f", "%p%v\\n")
    one.wait_for(lambda it: len(it.out.split()) == 8)
    two = member(name, "-g", name, "-f", "%p%v\\n")
    shared = f"{name}:1: read".encode(), f"{name}:0: read".encode()
    two.wait_for(lambda it: any(each in it.said for each in shared))
    document = described(name)
    assert document["state"] == "Stable"
    assert document["protocol"] == "cooperative-sticky"
    assert [len(each["partitions"]) for each in document["members"]] == [1, 1]
    assert {row["member_id"] for row in document["partitions"]} == {
        each["member_id"] for each in document["members"]
    }
    table = here("groups", "describe", name).stdout.decode()
    assert "2 members" in table
    for partition in "01":
        produce(name, partition, "new")
    one.wait_for(lambda it: it.out.count(b"new") == 1)
    two.wait_for(lambda it: it.out.count(b"new") == 1)
    assert one.stop() == 130
    two.wait_for(lambda it: f"{name}:0,1: read".encode() in it.said)
    for partition in "01":
        produce(name, partition, "last")
    two.wait_for(lambda it: it.out.count(b"last") == 2)
    assert two.stop() == 130
    assert committed(described(name)) == {0: 6, 1: 6}


def test_groups_with_members_are_neither_reset_nor_deleted(
    here: Run, member: Callable[..., Member], name: str
) -> None:
    reading = member(name, "-g", name, "--instance-id", "static")
    reading.wait_for(lambda it: len(it.out.split()) == 8)
    done = here("groups", "reset", name, "-t", name, "--to-earliest", "--execute")
    assert done.returncode == 1
    assert b"has 1 member (it is Stable)" in done.stderr
    assert b"static member" in done.stderr
    done = here("groups", "delete", name)
    assert done.returncode == 1
    assert b"has members" in done.stderr
    done = here("groups", "offsets", "delete", name, "-t", f"{name}:0")
    assert done.returncode == 1
    assert b"GROUP_SUBSCRIBED_TO_TOPIC" in done.stderr


def test_member_without_a_common_assignor_is_told_so(
    odradek: Run, member: Callable[..., Member], name: str
) -> None:
    reading = member(name, "-g", name, "--assignor", "range")
    reading.wait_for(lambda it: len(it.out.split()) == 8)
    done = odradek("consume", name, "-g", name, "--assignor", "sticky")
    assert done.returncode == 1
    assert b"INCONSISTENT_GROUP_PROTOCOL" in done.stderr
    assert b"--assignor" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("-g", ""),
        ("-g", "g", "-p", "0"),
        ("--instance-id", "i"),
        ("--assignor", "range"),
        ("--no-commit",),
        ("-g", "g", "--assignor", "best"),
    ],
)
def test_wrong_use_is_exit_code_2_without_a_traceback(
    run_here: Run, arguments: tuple[str, ...]
) -> None:
    done = run_here("consume", "t", *arguments)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr


def test_assignors_on_offer_are_those_there_are() -> None:
    from odradek.cli.consume import ASSIGNORS
    from odradek.group.assignors import ASSIGNORS as KNOWN

    assert set(ASSIGNORS) == set(KNOWN)


def test_help_needs_no_client() -> None:
    """What only explains itself starts fast."""
    code = (
        "import sys, odradek.cli.groups, odradek.cli.consume; "
        "sys.exit('trio' in sys.modules or 'odradek.client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
