"""Groups from the command line: what is shown, moved and deleted, and what is refused."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import ENVIRONMENT, command

from odradek.cli.groups import groups
from odradek.cli.times import parse_span

Run = Callable[..., subprocess.CompletedProcess[bytes]]

_names = count()


def lines(output: bytes) -> list[str]:
    return output.decode().splitlines()


@pytest.fixture
def name() -> str:
    """The name of a topic and of a group that no other test uses."""
    return f"g{next(_names)}"


@pytest.fixture
def told(here: Run) -> Callable[..., Any]:
    """Run `odradek groups ... --format json` and return the document."""

    def told(*arguments: str, code: int = 0) -> Any:
        done = here("groups", *arguments, "--format", "json")
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout)

    return told


@pytest.fixture
def filled(here: Run, name: str, tmp_path: Path) -> str:
    """A topic of two partitions with five records in each, and a group at offset 2 of both."""
    here("topics", "create", name, "-p", "2")
    values = tmp_path / "values"
    values.write_bytes(b"a\nb\nc\nd\ne\n")
    for partition in "01":
        sent = here("produce", name, "-f", str(values), "-q", "-p", partition)
        assert sent.returncode == 0, sent.stderr
    made = here("groups", "reset", name, "-t", name, "--to-offset", "2", "--create", "--execute")
    assert made.returncode == 0, made.stderr
    return name


def offsets(rows: list[dict[str, Any]], key: str = "offset") -> dict[int, Any]:
    return {row["partition"]: row[key] for row in rows}


def test_groups_are_listed_with_their_state(told: Callable[..., Any], filled: str) -> None:
    def listed(*arguments: str) -> dict[str, Any]:
        return {each["group"]: each for each in told("list", *arguments)}

    assert listed()[filled] == {
        "group": filled,
        "state": "Empty",
        "type": "classic",
        "protocol_type": "",
        "coordinator": 1,
    }
    assert filled in listed("--state", "empty")
    assert filled not in listed("-s", "Stable")
    assert filled in listed("--type", "classic")
    assert filled not in listed("--type", "share")


def test_group_is_described_with_lag_of_each_partition_and_in_total(
    here: Run, told: Callable[..., Any], filled: str
) -> None:
    (document,) = told("describe", filled)
    assert document["lag"] == 6
    assert document["members"] == []
    assert document["coordinator"]["id"] == 1
    row = document["partitions"][1]
    assert row == {
        "topic": filled,
        "partition": 1,
        "offset": 2,
        "leader_epoch": None,
        "metadata": "",
        "start_offset": 0,
        "end_offset": 5,
        "lag": 3,
        "member_id": None,
    }
    shown = lines(here("groups", "describe", filled).stdout)
    assert shown[0].startswith(f"{filled}  Empty  coordinator 1 (")
    assert shown[0].endswith("0 members  lag 6")
    assert shown[1].split() == ["topic", "partition", "offset", "start", "end", "lag"]
    assert shown[2].split() == [filled, "0", "2", "0", "5", "3"]


def test_every_group_is_described_when_none_is_named(told: Callable[..., Any], filled: str) -> None:
    assert filled in {each["group"] for each in told("describe")}


def test_lag_is_unknown_where_the_topic_is_gone(
    here: Run, told: Callable[..., Any], filled: str, name: str
) -> None:
    other = f"{name}-other"
    here("topics", "create", other, "-p", "1")
    here("groups", "reset", filled, "-t", other, "--to-latest", "--execute")
    assert here("topics", "delete", other).returncode == 0
    (document,) = told("describe", filled)
    gone = [row for row in document["partitions"] if row["topic"] == other]
    assert [row["lag"] for row in gone] in ([], [None])  # forgotten by the broker, or not yet
    assert document["lag"] == 6


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 5),
        (("--to-offset", "4"), 4),
        (("--shift-by", "-1"), 1),
        (("--shift-by", "+2"), 4),
        (("--to-time", "@0"), 0),
        (("--to-time", "2099-01-01"), 5),
        (("--by-duration", "1d"), 0),
    ],
)
def test_reset_shows_what_would_become_and_does_it_only_when_told(
    here: Run, told: Callable[..., Any], filled: str, target: tuple[str, ...], expected: int
) -> None:
    planned = told("reset", filled, "--all-topics", *target)
    assert offsets(planned, "old_offset") == {0: 2, 1: 2}
    assert offsets(planned, "new_offset") == {0: expected, 1: expected}
    assert offsets(planned, "lag") == {0: 5 - expected, 1: 5 - expected}
    assert not any(row["done"] or row["clamped"] for row in planned)
    assert offsets(told("offsets", filled)) == {0: 2, 1: 2}

    done = here("groups", "reset", filled, "-t", f"{filled}:1", *target, "--execute")
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done.stdout)[1].split()[:4] == [filled, "1", "2", str(expected)]
    assert offsets(told("offsets", filled)) == {0: 2, 1: expected}


def test_dry_run_says_that_it_is_one(here: Run, filled: str) -> None:
    done = here("groups", "reset", filled, "--all-topics", "--to-latest")
    assert lines(done.stdout)[0].split() == [
        "topic", "partition", "old", "new", "start", "end", "lag",
    ]  # fmt: skip
    assert lines(done.stderr) == ["dry run: nothing was changed; --execute does it"]


def test_offset_beyond_the_log_becomes_the_nearest_and_says_so(
    here: Run, told: Callable[..., Any], filled: str
) -> None:
    here("topics", "trim", filled, "--before", "3", "-p", "0")
    rows = told("reset", filled, "--all-topics", "--to-offset", "1")
    assert [(row["wanted_offset"], row["new_offset"], row["clamped"]) for row in rows] == [
        (1, 3, True),
        (1, 1, False),
    ]
    high = here("groups", "reset", filled, "--all-topics", "--to-offset", "9")
    assert b"not 9: that is beyond the end of the log" in high.stdout
    low = here("groups", "reset", filled, "--all-topics", "--shift-by", "-1")
    assert b"not 1: that is beyond the start of the log" in low.stdout


def test_offsets_are_kept_in_a_file_and_put_back(
    odradek: Run, told: Callable[..., Any], filled: str, tmp_path: Path
) -> None:
    kept = tmp_path / "offsets.json"
    kept.write_bytes(odradek("groups", "offsets", filled, "--format", "json").stdout)
    told("reset", filled, "--all-topics", "--to-latest", "--execute")
    assert offsets(told("offsets", filled)) == {0: 5, 1: 5}
    told("reset", filled, "-t", f"{filled}:0", "--from-file", str(kept), "--execute")
    assert offsets(told("offsets", filled)) == {0: 2, 1: 5}
    listed = f'"{filled}",1,4\n'.encode()
    done = odradek("groups", "reset", filled, "--from-file", "-", "--execute", stdin=listed)
    assert done.returncode == 0, done.stderr
    assert offsets(told("offsets", filled)) == {0: 2, 1: 4}


def test_partitions_without_an_offset_are_reset_too_but_not_shifted(
    here: Run, told: Callable[..., Any], filled: str
) -> None:
    here("topics", "add-partitions", filled, "--to", "3")
    assert offsets(told("reset", filled, "--all-topics", "--to-earliest"), "old_offset") == {
        0: 2,
        1: 2,
        2: None,
    }
    assert offsets(told("reset", filled, "--all-topics", "--shift-by", "1"), "new_offset") == {
        0: 3,
        1: 3,
    }
    done = here("groups", "reset", filled, "-t", filled, "--shift-by", "1")
    assert done.returncode == 1
    assert f"partition {filled}-2 has no committed offset".encode() in done.stderr


def test_offsets_and_groups_are_deleted(here: Run, told: Callable[..., Any], filled: str) -> None:
    done = here("groups", "offsets", "delete", filled, "-t", f"{filled}:0")
    assert (done.returncode, lines(done.stdout)) == (0, [f"deleted offset of {filled}-0"])
    assert offsets(told("offsets", "show", filled)) == {1: 2}
    again = told("offsets", filled, "-t", f"{filled}:0")
    assert again == []
    done = here("groups", "delete", filled, "nope")
    assert done.returncode == 4
    assert lines(done.stdout) == [f"deleted {filled}"]
    assert b"there is no group 'nope'" in done.stderr
    assert here("groups", "delete", filled, "--if-exists").returncode == 0
    assert told("delete", "nope", code=1) == [
        {"name": "nope", "done": False, "error": "GROUP_ID_NOT_FOUND"}
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "{}"),
        ("offsets", "{}"),
        ("offsets", "delete", "{}", "--all-topics"),
        ("reset", "{}", "--all-topics", "--to-latest"),
    ],
)
def test_unknown_group_is_a_failure_that_names_those_like_it(
    here: Run, filled: str, arguments: tuple[str, ...]
) -> None:
    wrong = f"{filled}x"
    done = here("groups", *(each.format(wrong) for each in arguments))
    assert done.returncode == 1
    first, hint = lines(done.stderr)
    assert first == f"odradek: there is no group '{wrong}'"
    assert f"'{filled}'" in hint


def test_known_groups_are_described_beside_unknown_ones(here: Run, filled: str) -> None:
    done = here("groups", "describe", filled, "nothing-like-it")
    assert done.returncode == 4
    assert lines(done.stdout)[0].startswith(filled)
    assert lines(done.stderr) == [
        "odradek: there is no group 'nothing-like-it'",
        "  `odradek groups list` shows what there is",
    ]


def test_wrong_partitions_are_refused(here: Run, filled: str) -> None:
    done = here("groups", "reset", filled, "-t", f"{filled}:0,7", "--to-latest")
    assert done.returncode == 2
    assert f"there is no {filled}:7".encode() in done.stderr
    done = here("groups", "reset", filled, "-t", "no-such-topic", "--to-latest")
    assert done.returncode == 1
    assert b"odradek topics list" in done.stderr


def test_ids_of_groups_cannot_act_on_the_terminal(
    here: Run, told: Callable[..., Any], filled: str
) -> None:
    evil = f"\x1b]0;owned\x07\u202e{filled}\u009b"
    made = here("groups", "reset", evil, "-t", filled, "--to-latest", "--create", "--execute")
    assert made.returncode == 0, made.stderr
    outputs = [
        here("groups", *arguments)
        for arguments in (
            ("list",),
            ("list", "--format", "json"),
            ("describe", evil),
            ("describe", f"{evil}?"),
            ("offsets", evil),
            ("reset", f"{evil}?", "--all-topics", "--to-latest"),
            ("delete", evil),
            ("delete", evil),
        )
    ]
    for done in outputs:
        said = (done.stdout + done.stderr).decode()
        assert all(each.isprintable() or each == "\n" for each in said), said
        assert "\x1b" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", ""),
        ("describe", "\udcff"),
        ("list", "--state", "happy"),
        ("delete",),
        ("offsets", "g", "-t", "t", "--all-topics"),
        ("offsets", "delete", "g"),
        ("reset", "g"),
        ("reset", "g", "-t", "t"),
        ("reset", "g", "--to-latest"),
        ("reset", "g", "-t", "t", "--all-topics", "--to-latest"),
        ("reset", "g", "-t", "t", "--to-latest", "--to-earliest"),
        ("reset", "g", "-t", "t", "--to-offset", "-1"),
        ("reset", "g", "-t", "t", "--to-time", "latest"),
        ("reset", "g", "-t", "t", "--to-time", "12345"),
        ("reset", "g", "-t", "t", "--to-time", "yesterday"),
        ("reset", "g", "-t", "t", "--by-duration", "a while"),
        ("reset", "g", "-t", "t:", "--to-latest"),
        ("reset", "g", "-t", "t:-1", "--to-latest"),
        ("reset", "g", "-t", ":1", "--to-latest"),
        ("reset", "g", "--from-file", "/no/such/file"),
        ("reset", "g", "--from-file", "/dev/null"),
    ],
)
def test_wrong_use_is_exit_code_2_without_a_traceback(
    run_here: Run, arguments: tuple[str, ...]
) -> None:
    done = run_here("groups", *arguments)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr


def test_every_command_explains_itself(run_here: Run) -> None:
    for name in ("", *groups.commands):
        done = run_here("groups", *filter(None, [name]), "--help")
        assert done.returncode == 0
        assert len(done.stdout) > 200


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("2h", 7_200_000),
        ("1w", 604_800_000),
        ("PT5M", 300_000),
        ("P1DT12H", 129_600_000),
        ("P1DT2H3M4S", 93_784_000),
    ],
)
def test_span_of_time_is_read(text: str, ms: int) -> None:
    assert parse_span(text) == ms


@pytest.mark.parametrize("text", ["", "2", "-2h", "P", "PT", "1y", "2h3m", "P1M"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="span of time"):
        parse_span(text)


def test_damaged_partition_of_groups_is_told_and_repaired(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("odradek_storage_file")
    storage = tmp_path / "log"
    given = ("--storage", f"file://{storage}", "--set", "groups.offsets_partitions=2")

    def run(served: Any, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*command(*arguments), "--bootstrap", served.address],
            capture_output=True,
            check=False,
            env=ENVIRONMENT,
            timeout=60,
        )

    served = serve(*given)
    assert run(served, "topics", "create", "events", "-p", "1").returncode == 0
    for group in "ab":  # one in each partition
        for offset in "01":
            moved = ("groups", "reset", group, "-t", "events", "--to-offset", offset)
            assert run(served, *moved, "--create", "--execute").returncode == 0
    assert served.stop(signal.SIGTERM) == 0
    damaged = max(storage.rglob("*.log"), key=lambda path: path.stat().st_size)
    with damaged.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff\xff\xff")

    served = serve(*given)
    listed = run(served, "groups", "list")
    assert listed.returncode == 4
    assert len(lines(listed.stdout)) == 2, "the heading, and the group of the other partition"
    assert b"broker 1 cannot read some partitions of __consumer_offsets" in listed.stderr
    left = lines(listed.stdout)[1].split()[0]
    lost = ({"a", "b"} - {left}).pop()
    asked = run(served, "groups", "describe", lost, "--timeout", "1")
    assert asked.returncode == 1
    assert b"__consumer_offsets cannot be read: " in asked.stderr
    told = served.log.read_text()
    found = re.search(r"odradek log repair (\S+) --storage (\S+) --how", told)
    assert found, told
    assert "__consumer_offsets" in told
    assert served.stop(signal.SIGTERM) == 0

    repair = command("log", "repair", found[1], "--storage", found[2], "--how", "skip")
    subprocess.run(repair, env=ENVIRONMENT, timeout=60, check=True)
    served = serve(*given)
    listed = run(served, "groups", "list")
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert {each.split()[0] for each in lines(listed.stdout)[1:]} == {"a", "b"}
    assert run(served, "groups", "describe", lost).returncode == 0
