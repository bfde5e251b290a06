"""The demo's last word: what happened, what the data says, what to type next."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import frozen
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from odradek.cli.demo.insights import sparkline
from odradek.cli.demo.place import Place
from odradek.cli.demo.publish import METRICS, Published
from odradek.cli.demo.sources import LONGEST_LINE, LogSource
from odradek.cli.text import count, duration, escape, size

__all__ = ["Outcome", "show_summary"]

_WIDE = 100
"""Columns of a terminal from which on the table says where each topic's lines come from."""


@frozen
class Outcome:
    """Everything there is to tell. `stored`: bytes in segments by (topic, partition)."""

    address: str
    place: Place
    logs: list[LogSource]
    published: Published
    checked: dict[str, Any]
    mismatches: list[str]
    stored: dict[tuple[str, int], int]
    directories: dict[tuple[str, int], Path]
    start_seconds: float


def show_summary(console: Console, outcome: Outcome, *, staying: bool, kept: bool) -> None:
    """Print it. `staying`: the broker goes on afterwards; `kept`: its data does."""
    _verdict(console, outcome)
    _topics(console, outcome)
    _speed(console, outcome)
    _facts(console, outcome)
    _files(console, outcome, kept)
    _next(console, outcome, staying, kept)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold cyan"))


def _verdict(console: Console, outcome: Outcome) -> None:
    records = sum(outcome.published.records.values())
    partitions = len(outcome.stored)
    console.print()
    if outcome.mismatches:
        console.print(Text("✗ What came back is not what was sent", style="bold red"))
        for mismatch in outcome.mismatches[:10]:
            console.print(Text(f"  {mismatch}", style="red"))
        return
    line = Text()
    line.append("✓ ", style="bold green")
    line.append(f"{count(records)} records", style="bold")
    line.append(" of this machine went into the broker and came back in a second process: ")
    line.append(f"every count and SHA-256 of {partitions} partitions agrees.")
    console.print(line)


def _topics(console: Console, outcome: Outcome) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    wide = console.width >= _WIDE
    table.add_column("topic", style="bold", no_wrap=True)
    if wide:
        table.add_column("from", no_wrap=True)
    for name in ("parts", "records", "in", "on disk", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    notes = {source.topic: source.note for source in outcome.logs}
    notes[METRICS] = f"psutil, {outcome.published.samples} samples"
    for topic in sorted(outcome.published.records):
        came = outcome.published.sizes[topic]
        lies = sum(each for (name, _), each in outcome.stored.items() if name == topic)
        parts = sum(1 for name, _ in outcome.stored if name == topic)
        note = [Text(escape(notes.get(topic, "")), style="dim")] if wide else []
        table.add_row(
            Text(topic),
            *note,
            str(parts),
            count(outcome.published.records[topic]),
            size(came),
            size(lies),
            f"{came / lies:.1f} : 1" if lies else "",
        )
    came, lies = sum(outcome.published.sizes.values()), sum(outcome.stored.values())
    if len(outcome.published.records) > 1:
        table.add_section()
        table.add_row(
            *([""] * (2 if wide else 1)),
            str(len(outcome.stored)),
            count(sum(outcome.published.records.values())),
            size(came),
            size(lies),
            f"{came / lies:.1f} : 1" if lies else "",
            style="bold",
        )
    console.print(table)


def _pairs(console: Console, rows: list[tuple[str, Text | str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    console.print(Padding(grid, (0, 0, 0, 2)))


def _speed(console: Console, outcome: Outcome) -> None:
    published, checked = outcome.published, outcome.checked
    rows: list[tuple[str, Text | str]] = [
        ("broker start", f"{duration(outcome.start_seconds)}, Python and all")
    ]
    logged = sum(n for topic, n in published.records.items() if topic != METRICS)
    if logged:
        amount = sum(n for topic, n in published.sizes.items() if topic != METRICS)
        took = max(published.log_seconds, 1e-6)
        rows.append(
            (
                "publishing",
                f"{count(logged)} log lines in {duration(took)}: {count(logged / took)}/s, "
                f"{size(amount / took)}/s, read and compressed on the way",
            )
        )
    latencies = sorted(published.latencies[1:])  # the first one opened the connection too
    if latencies:
        each = published.records[METRICS] // max(published.samples, 1)
        rows.append(
            (
                "acknowledgement",
                f"{duration(latencies[len(latencies) // 2])} in the median, "
                f"{duration(latencies[-1])} at most, for {each} metrics at a time: on disk "
                "(fdatasync) before it is given",
            )
        )
    took = max(float(checked["seconds"]), 1e-6)
    back = sum(checked["records"].values())
    rows.append(("reading back", f"{count(back)} records alongside, within {duration(took)}"))
    _heading(console, "How fast")
    _pairs(console, rows)


def _facts(console: Console, outcome: Outcome) -> None:
    facts = outcome.checked["insights"]
    rows: list[tuple[str, Text | str]] = []
    cpu = facts["cpu"]
    if cpu:
        line = Text(sparkline(cpu[-60:], 100.0), style="green")
        line.append(f"  {sum(cpu) / len(cpu):.0f} % on average, {max(cpu):.0f} % at most", "")
        rows.append(("cpu", line))
    memory = facts["memory"]
    if memory:
        used = memory["total"] - memory["available"]
        rows.append(
            (
                "memory",
                f"{size(used)} of {size(memory['total'])} in use ({memory['percent']:.0f} %)",
            )
        )
    busiest = ", ".join(f"{escape(name)} {cpu:.0f} %" for name, cpu in facts["busiest_processes"])
    if busiest:
        rows.append(("busiest processes", busiest))
    for topic, log in facts["logs"].items():
        rows.append((topic.removeprefix("logs."), _log_text(log)))
    _heading(console, "What the records say")
    _pairs(console, rows)
    if not facts["logs"]:
        text = "No log file here is readable and not empty, so it is metrics only"
        console.print(Text(f"  {text}. Give some: odradek demo PATH...", style="yellow"))
    cut = outcome.published.cut
    if cut:
        what = "1 line was" if cut == 1 else f"{count(cut)} lines were"
        console.print(Text(f"  {what} longer than {size(LONGEST_LINE)} and cut", style="yellow"))
    for problem in outcome.published.unreadable:
        console.print(Text(f"  left out: {escape(problem)}", style="yellow"))


def _log_text(log: dict[str, Any]) -> Text:
    text = Text(overflow="ellipsis", no_wrap=True)
    said = []
    if log["busiest_hour"]:
        hour, lines = log["busiest_hour"]
        said.append(f"busiest hour {hour}, {count(lines)} lines")
    if log["busiest_key"] and log["busiest_key"][1] > 1:
        key, lines = log["busiest_key"]
        said.append(f"busiest of {count(log['keys'])} keys {escape(key)}, {count(lines)} lines")
    text.append("; ".join(said))
    if said:
        text.append("\n")
    text.append("last: ", "dim")
    text.append(escape(log["last_line"]), "italic")
    return text


def _files(console: Console, outcome: Outcome, kept: bool) -> None:
    _heading(console, "Where it lies")
    console.print(Text(f"  {outcome.place.logs}/", style="bold"), soft_wrap=True)
    found = []
    for (topic, number), directory in outcome.directories.items():
        for path in directory.glob("*.log"):
            length = path.stat().st_size
            if length:
                found.append((length, f"{directory.name}/{path.name}", f"{topic}-{number}"))
    found.sort(reverse=True)
    widest = max((len(partition) for _, _, partition in found[:5]), default=0)
    for length, name, partition in found[:5]:
        line = Text(f"  {size(length):>10}  ", style="green")
        line.append(f"{partition:<{widest}}", "default")
        line.append(f"  {name}", "dim")
        console.print(line, no_wrap=True, overflow="ellipsis")
    if len(found) > 5:
        console.print(Text(f"{'':14}and {len(found) - 5} more", style="dim"))
    if not kept:
        console.print(Text("  It goes when the demo ends; --keep leaves it.", style="dim"))


def _next(console: Console, outcome: Outcome, staying: bool, kept: bool) -> None:
    me = _own_command()
    address = outcome.address
    topic = max(outcome.published.records, key=lambda name: outcome.published.records[name])
    rows = []
    if staying:
        _heading(console, "What to type next, in another terminal")
    elif kept:
        _heading(console, "What to type next")
        where = outcome.place.logs.absolute().as_uri()
        coordinator = quote(str(outcome.place.directory.absolute() / "coordinator"))
        rows.append(
            (
                f"{me} serve --listen tcp://{address} --storage {where} "
                f"--coordinator embedded:{coordinator} &",
                "the same broker again, with all of this",
            )
        )
    else:
        _heading(console, "What to type next, beside a broker (--stay keeps this one)")
    rows += [
        (f"{me} topics describe -b {address}", "partitions, offsets, sizes"),
        (f"{me} consume -b {address} metrics -n 3 --format json", "metrics, as JSON lines"),
        (f"{me} consume -b {address} {topic} -n 3 -f '%p/%o %k: %v\\n'", "three records"),
        (f"echo hello | {me} produce -b {address} greetings", "a topic of your own"),
    ]
    if shutil.which("kcat"):
        rows.append((f"kcat -b {address} -C -e -t {topic} | tail -3", "any Kafka client will do"))
    for command, comment in rows:
        fits = len(command) + len(comment) + 6 <= console.width
        if not fits:
            console.print(Text(f"  # {comment}", style="dim"))
        line = Text(f"  {command}", style="bold")
        line.append(f"  # {comment}" if fits else "", "not bold dim")
        console.print(line, soft_wrap=True)
    if not shutil.which("kcat"):
        console.print(Text("  # any Kafka client will do: apt or brew install kcat", style="dim"))
    console.print()
    for each in _python(address):
        console.print(Text(f"  {each}"), soft_wrap=True)


def _own_command() -> str:
    """How to call this program from a shell: by its name where that finds the same one."""
    beside = Path(sys.executable).with_name("odradek")
    found = shutil.which("odradek")
    if found is not None and (not beside.exists() or Path(found).samefile(beside)):
        return "odradek"
    if not beside.exists():
        return f"{sys.executable} -m odradek.cli"
    near = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    return str(near)


def _python(address: str) -> list[str]:
    """A few lines for the client that is installed."""
    if find_spec("confluent_kafka") is not None:
        return [
            "from confluent_kafka import Producer",
            f'p = Producer({{"bootstrap.servers": "{address}"}})',
            'p.produce("greetings", b"hello"); p.flush()',
        ]
    if find_spec("kafka") is not None:
        return [
            "from kafka import KafkaProducer",
            f'p = KafkaProducer(bootstrap_servers="{address}")',
            'p.send("greetings", b"hello").get()',
        ]
    return [
        f"# {Path(sys.executable).name} has no other Kafka client; this one is Odradek's own:",
        "import trio",
        "from odradek.client import open_cluster, open_producer",
        "async def main():",
        f'    async with open_cluster("{address}") as c, open_producer(c) as producer:',
        '        print(await (await producer.send("greetings", b"hello")).wait())',
        "trio.run(main)",
    ]
