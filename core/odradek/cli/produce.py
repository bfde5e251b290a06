"""`odradek produce`: lines in, records out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.connecting import TopicName, bootstrap_options, encodable, with_cluster
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.tables import format_option, show_json
from odradek.cli.text import count, duration, size

if TYPE_CHECKING:
    from odradek.client import BatchOutcome, Cluster

__all__ = ["produce"]

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Tally:
    """What became of the records so far, and how long batches took."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.failed = 0
        self.latencies: list[float] = []
        self.error: Exception | None = None

    def __call__(self, outcome: BatchOutcome) -> None:
        """Count a batch."""
        if outcome.error is not None:
            self.failed += outcome.records
            self.error = self.error or outcome.error
            return
        self.records += outcome.records
        self.bytes += outcome.size
        if len(self.latencies) < 100_000:
            self.latencies.append(outcome.seconds)

    def line(self, seconds: float) -> str:
        """Return a summary of one line."""
        if not self.records and self.failed:
            return f"no record was acknowledged in {duration(seconds)}"
        rate = f"{count(self.records / seconds)} records/s, {size(self.bytes / seconds)}/s"
        text = f"{_records(self.records)}, {size(self.bytes)} in {duration(seconds)}: {rate}"
        if self.latencies:
            ordered = sorted(self.latencies)
            middle = ordered[len(ordered) // 2]
            late = ordered[int(len(ordered) * 0.99)]
            text += f"; batches acknowledged in {duration(middle)} (p50), {duration(late)} (p99)"
        return text


@click.command()
@click.argument("topic", type=TopicName())
@click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    help="Read this file instead of standard input.",
)
@click.option("-K", "--key-separator", metavar="TEXT", help="What comes before it is the key.")
@click.option("-k", "--key", metavar="TEXT", help="One key for all records.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Default: by key, or in turn.")
@click.option(
    "-z", "--compression", type=click.Choice(_COMPRESSIONS), default="none", show_default=True
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Whose acknowledgement to wait for: of the in-sync replicas, the leader, nobody.",
)
@click.option("--null", "null_marker", metavar="TEXT", help="A key or value that stands for null.")
@click.option(
    "--delimiter",
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="What ends a record; \\n, \\t, \\0 and \\xHH are understood.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=1024 * 1024,
    show_default=True,
    help="Of one record, and of one request.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@bootstrap_options
@format_option
def produce(
    topic: str,
    file: str | None,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    null_marker: str | None,
    delimiter: str,
    max_bytes: int,
    quiet: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Send each line of standard input or a file to TOPIC as a record.

    Lines are bytes: nothing is decoded. Ends with 4 when some records were not acknowledged, and
    with 1 when none was.
    """
    if key is not None and key_separator is not None:
        raise CommandFailed("--key and --key-separator exclude each other", code=ExitCode.USAGE)
    separator = None
    if key_separator is not None:
        separator = _unescape_option("--key-separator", key_separator)
        if not separator:
            raise CommandFailed("--key-separator is empty", code=ExitCode.USAGE)
    parse = Parser(key, separator, null_marker)
    fixed = tuple(_header(each) for each in headers)
    ending = _unescape_option("--delimiter", delimiter)
    if not ending:
        raise CommandFailed("--delimiter is empty", code=ExitCode.USAGE)

    async def body(cluster: Cluster) -> int:
        import trio

        from odradek.cli.lines import read_lines
        from odradek.client import ProducerSettings, open_producer
        from odradek.record import CompressionType

        settings = ProducerSettings(
            acks=-1 if acks == "all" else int(acks),
            idempotent=acks == "all",
            compression=CompressionType[compression.upper()],
            max_request_bytes=max_bytes + 1024,
            delivery_timeout=max(timeout, 1.0),
        )
        tally = Tally()
        started = trio.current_time()
        with ExitStack() as stack:
            stack.enter_context(_told_when_stopped(tally, quiet))
            if file is None:
                fd = sys.stdin.fileno()
            else:
                fd = os.open(file, os.O_RDONLY)
                stack.callback(os.close, fd)
            progress = None if quiet else stack.enter_context(_progress(fd, file))
            async with open_producer(cluster, settings, observer=tally) as producer:
                try:
                    async for lines in read_lines(fd, delimiter=ending, longest=max_bytes):
                        done = 0
                        for line in lines:
                            name, value = parse(line)
                            done += len(line) + len(ending)
                            await producer.send(
                                topic, value, key=name, headers=fixed, partition=partition
                            )
                        if progress is not None:
                            progress(done, tally.records)
                        if tally.error is not None:
                            break
                except OSError as error:
                    raise CommandFailed(f"{file or 'standard input'}: {error.strerror}") from None
                await producer.flush()
                if progress is not None:
                    progress(0, tally.records)
        seconds = trio.current_time() - started
        if form == "json":
            show_json(
                {
                    "topic": topic,
                    "records": tally.records,
                    "bytes": tally.bytes,
                    "failed": tally.failed,
                    "seconds": seconds,
                }
            )
        return _finish(tally, seconds, quiet or form == "json")

    return with_cluster(bootstrap, timeout, body)


@contextmanager
def _told_when_stopped(tally: Tally, quiet: bool) -> Iterator[None]:
    """Say what became of the records when a signal ends the command."""
    import trio

    try:
        yield
    except BaseException:  # a cancellation, by itself or in a group with those of tasks
        if not quiet and trio.current_effective_deadline() == float("-inf"):
            text = f"stopped: {_records(tally.records)} acknowledged"
            if tally.failed:
                text += f"; {count(tally.failed)} sent or waiting, and not acknowledged"
            click.echo(text, err=True)
        raise


def _records(number: int) -> str:
    return "1 record" if number == 1 else f"{count(number)} records"


def _finish(tally: Tally, seconds: float, quiet: bool) -> int:
    from odradek.cli.app import report
    from odradek.cli.exits import explain

    if not quiet:
        click.echo(tally.line(max(seconds, 1e-6)), err=True)
    if tally.error is None:
        return ExitCode.OK
    explained = explain(tally.error)
    if explained is None:
        raise tally.error
    message, hint, code = explained
    were = "was" if tally.failed == 1 else "were"
    report(f"{_records(tally.failed)} {were} not acknowledged: {message}", hint)
    return code if not tally.records else ExitCode.PARTLY_FAILED


class Parser:
    """Takes a line apart into key and value."""

    def __init__(self, key: str | None, separator: bytes | None, null: str | None) -> None:
        self._null = None if null is None else os.fsencode(null)
        self._key = None if key is None else os.fsencode(key)
        self._separator = separator

    def __call__(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        """Return key and value; without the separator in it, the line is all value."""
        key, value = self._key, line
        if self._separator:
            before, separator, after = line.partition(self._separator)
            if separator:
                key, value = before, after
        if self._null is not None:
            return (None if key == self._null else key, None if value == self._null else value)
        return key, value


def unescape(text: str) -> bytes:
    """Return the bytes of a command-line argument, with \\n, \\t, \\r, \\0, \\\\ and \\xHH.

    Raises ValueError for a backslash before anything else.
    """
    import re

    simple = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if not code:
            raise ValueError("a backslash stands before n, t, r, 0, xHH or another backslash")
        return bytes((int(code[1:], 16),)) if len(code) == 3 else simple[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|[ntr0\\]|)", replace, os.fsencode(text))


def _unescape_option(name: str, text: str) -> bytes:
    try:
        return unescape(text)
    except ValueError as error:
        raise CommandFailed(f"{name} {text!r}: {error}", code=ExitCode.USAGE) from None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandFailed(f"--header {text!r} is not NAME=VALUE", code=ExitCode.USAGE)
    return encodable(name, "a header's name"), os.fsencode(value)


class _progress:
    """A bar on standard error where that is a terminal and the input is none; else nothing."""

    def __init__(self, fd: int, file: str | None) -> None:
        self._shown = sys.stderr.isatty() and not os.isatty(fd)
        self._total = os.fstat(fd).st_size if file is not None else None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _progress:
        if self._shown:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TransferSpeedColumn,
            )

            columns: Iterable[Any] = (
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TextColumn("{task.fields[records]} acknowledged"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, records="0")
        return self

    def __call__(self, advance: int, records: int) -> None:
        """Show that so many bytes more were read, and so many records acknowledged."""
        if self._bar is not None:
            self._bar.update(self._task, advance=advance, records=count(records))

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
