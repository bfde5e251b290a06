"""Topics, produce and consume against a broker: output, exit codes, errors of one line."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def lines(output: bytes) -> list[str]:
    return output.decode().splitlines()


def test_topics_are_created_listed_described_altered_and_deleted(odradek: Run) -> None:
    done = odradek("topics", "create", "life", "-p", "2", "-c", "retention.ms=60000")
    assert (done.returncode, lines(done.stdout)) == (0, ["created life"]), done.stderr
    again = odradek("topics", "create", "life", "other")
    assert again.returncode == 4
    assert b"life: TOPIC_ALREADY_EXISTS" in again.stderr
    assert odradek("topics", "create", "life", "--if-not-exists").returncode == 0

    assert odradek("topics", "alter", "life", "--set", "max.message.bytes=5000").returncode == 0
    assert odradek("topics", "add-partitions", "life", "--to", "3").returncode == 0
    (document,) = json.loads(odradek("topics", "describe", "life", "--format", "json").stdout)
    assert len(document["partitions"]) == 3
    assert document["settings"] == {"retention.ms": "60000", "max.message.bytes": "5000"}

    listed = json.loads(odradek("topics", "list", "--format", "json").stdout)
    assert {each["topic"]: each["partitions"] for each in listed}["life"] == 3
    assert (
        "life"
        in lines(odradek("topics", "list").stdout)[1] + odradek("topics", "list").stdout.decode()
    )

    assert odradek("topics", "delete", "life", "other").returncode == 0
    gone = odradek("topics", "describe", "life")
    assert gone.returncode == 1
    assert b"odradek topics list" in gone.stderr


def test_changes_of_topics_are_told_as_json(odradek: Run) -> None:
    def told(*arguments: str) -> tuple[int, object]:
        done = odradek("topics", *arguments, "--format", "json")
        return done.returncode, json.loads(done.stdout)

    good = {"name": "j", "done": True, "error": None}
    bad = {"name": "j", "done": False, "error": "TOPIC_ALREADY_EXISTS"}
    assert told("create", "j", "-p", "1") == (0, [good])
    assert told("create", "j", "k") == (4, [bad, {**good, "name": "k"}])
    assert told("alter", "j", "--set", "retention.ms=60000") == (0, [good])
    assert told("trim", "j", "--before", "latest") == (0, [{**good, "name": "j-0"}])
    assert told("add-partitions", "j", "--to", "2") == (0, [good])
    assert told("delete", "j", "k") == (0, [good, {**good, "name": "k"}])


def test_produce_sums_up_as_json(odradek: Run) -> None:
    done = odradek("produce", "summed", "--format", "json", stdin=b"a\nbc\n")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert document.pop("seconds") > 0
    assert document.pop("bytes") > 0
    assert document == {"topic": "summed", "records": 2, "failed": 0}


def test_bytes_come_back_as_they_were_sent(odradek: Run) -> None:
    sent = b"k1:plain\nk2:\xff\x00\x1b[31m\n:empty key\nno key\nk3:NULL\nlast without newline"
    done = odradek("produce", "bytes", "-K", ":", "--null", "NULL", "-H", "h=\u00fc", stdin=sent)
    assert done.returncode == 0, done.stderr
    assert b"6 records" in done.stderr
    back = odradek("consume", "bytes", "-e", "-f", "%k|%v|%h\\n", "--null", "~")
    assert back.stdout.split(b"\n") == [
        b"k1|plain|h=\xc3\xbc",
        b"k2|\xff\x00\x1b[31m|h=\xc3\xbc",
        b"|empty key|h=\xc3\xbc",
        b"~|no key|h=\xc3\xbc",
        b"k3|~|h=\xc3\xbc",
        b"~|last without newline|h=\xc3\xbc",
        b"",
    ]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_many_lines_come_back_whole(odradek: Run, compression: str) -> None:
    sent = b"".join(b"line %d\n" % n for n in range(20_000))
    topic = f"many-{compression}"
    assert odradek("produce", topic, "-q", "-z", compression, stdin=sent).stderr == b""
    assert odradek("consume", topic, "-e").stdout == sent
    some = odradek("consume", topic, "--from", "19990", "-n", "3", "-f", "%o %v\\n")
    assert lines(some.stdout) == ["19990 line 19990", "19991 line 19991", "19992 line 19992"]


def test_trim_deletes_what_lies_before(odradek: Run) -> None:
    odradek("produce", "trimmed", "-q", stdin=b"a\nb\nc\n")
    done = odradek("topics", "trim", "trimmed", "--before", "2")
    assert lines(done.stdout) == ["trimmed trimmed-0, which starts at 2"]
    assert odradek("consume", "trimmed", "-e").stdout == b"c\n"
    assert odradek("consume", "trimmed", "-e", "--from", "0").returncode == 1


def test_consume_says_when_it_begins_beyond_the_end(odradek: Run) -> None:
    odradek("produce", "short", "-q", stdin=b"a\nb\n")
    done = odradek("consume", "short", "-e", "--from", "99999999")
    assert (done.returncode, done.stdout) == (0, b"")
    assert lines(done.stderr) == ["odradek: short-0 ends at offset 2, before 99999999"]
    assert odradek("consume", "short", "-e", "--from", "2").stderr == b""


def test_consume_escapes_on_a_terminal_and_not_when_raw(odradek: Run, address: str) -> None:
    odradek("produce", "evil", "-q", stdin=b"\x1b]0;owned\x07\n")
    for raw, expected in (((), b"\\x1b]0;owned\\x07"), (("--raw",), b"\x1b]0;owned\x07")):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "odradek.cli", "consume", "evil", "-e", *raw]
        with subprocess.Popen([*command, "-b", address], stdout=theirs) as process:
            os.close(theirs)
            shown = b""
            while expected not in shown:
                shown += os.read(ours, 4096)
            assert process.wait(20) == 0
        os.close(ours)


def test_consume_ends_quietly_when_its_reader_does(odradek: Run, address: str) -> None:
    odradek("produce", "long", "-q", stdin=b"x" * 99 + b"\n" + b"line\n" * 100_000)
    command = [sys.executable, "-m", "odradek.cli", "consume", "long", "-b", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


@pytest.mark.parametrize(
    "arguments",
    [("topics", "list"), ("topics", "describe"), ("consume", "full", "-e"), ("version",)],
)
def test_output_that_cannot_be_written_is_one_line(
    odradek: Run, address: str, arguments: tuple[str, ...]
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    odradek("produce", "full", "-q", stdin=b"line\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "odradek.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "ODRADEK_BOOTSTRAP": address},
            timeout=60,
            check=False,
        )
    assert lines(done.stderr) == ["odradek: standard output: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_consume_ends_by_signals_with_their_codes(
    odradek: Run, address: str, number: int, code: int
) -> None:
    odradek("produce", "waiting", "-q", stdin=b"one\n")
    command = [sys.executable, "-m", "odradek.cli", "consume", "waiting", "-b", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_produce_ended_by_a_signal_says_what_was_acknowledged(
    odradek: Run, address: str, number: int, code: int
) -> None:
    topic = f"stopped-{code}"
    odradek("topics", "create", topic, "-p", "1")
    command = [sys.executable, "-m", "odradek.cli", "produce", topic, "-b", address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert odradek("consume", topic, "-n", "2").stdout == b"one\ntwo\n"
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stderr.read().startswith(b"stopped: ")


def test_unreachable_broker_is_one_line_and_exit_code_3(run: Run) -> None:
    pytest.importorskip("odradek_transport_tcp")
    done = run("topics", "list", "-b", "127.0.0.1:1", "--timeout", "0.2")
    assert done.returncode == 3
    first, hint = lines(done.stderr)
    assert first.startswith("odradek: ")
    assert "127.0.0.1:1" in first
    assert "--bootstrap" in hint


def test_refused_record_says_why_and_what_to_do(odradek: Run) -> None:
    odradek("topics", "create", "small", "-c", "max.message.bytes=1000")
    done = odradek("produce", "small", stdin=b"x" * 3000 + b"\n")
    assert done.returncode == 1
    assert b"1 record was not acknowledged: MESSAGE_TOO_LARGE" in done.stderr
    assert b"no record was acknowledged in" in done.stderr
    assert b"max.message.bytes" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("topicz",),
        ("topics", "create"),
        ("topics", "alter", "t"),
        ("topics", "create", "t", "-c", "nonsense"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "-f", "%z"),
        ("produce", "t", "-k", "a", "-K", ":"),
        ("produce", "t", "-K", ""),
        ("produce", "t", "-K", "\\q"),
        ("produce", "t", "--delimiter", ""),
        ("produce", "t", "--delimiter", "\\x"),
        ("topics", "list", "-b", "tcp://a:1,memory://b"),
        ("topics", "create", "\udcff"),
        ("topics", "alter", "t", "--set", "retention.ms=\udcff"),
        ("consume", "\udcff"),
        ("produce", "t", "-H", "\udcff=1"),
        ("serve", "--set", "broker.idd=1"),
        ("serve", "--listen", "nonsense"),
        ("serve", "--ready-fd", "99"),
        ("config", "check", "--listen", "tcp://0.0.0.0:9092"),
    ],
)
def test_wrong_use_is_exit_code_2_without_a_traceback(
    run_here: Run, arguments: tuple[str, ...]
) -> None:
    done = run_here(*arguments)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr
