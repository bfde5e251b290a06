"""The demo's second process: reads everything back, and says what it found.

`python -m odradek.cli.demo.check HOST:PORT`, with a JSON object on standard input (topics and
their numbers of partitions), and later another (records to expect of each topic). Writes JSON
lines: progress, and at the end the result. It shares nothing with the publisher but the broker.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import trio

from odradek.cli.demo.checksum import PartitionSum
from odradek.cli.demo.insights import Insights
from odradek.client import EARLIEST, Start, TopicPartition, open_cluster, open_reader

__all__ = ["main"]

_REPORT_EVERY = 0.1
_PATIENCE = 30.0


class Checker:
    """Counts and sums up what arrives, until it is what was announced."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.sums = {
            TopicPartition(topic, number): PartitionSum()
            for topic, count in topics.items()
            for number in range(count)
        }
        self.records = dict.fromkeys(topics, 0)
        self.bytes = dict.fromkeys(topics, 0)
        self.expected: dict[str, int] | None = None
        self.insights = Insights()
        self.problems: list[str] = []
        self.started = 0.0
        self.last = 0.0

    @property
    def complete(self) -> bool:
        """Whether as many records as expected are here, or more."""
        return self.expected is not None and all(
            self.records[topic] >= count for topic, count in self.expected.items()
        )

    def result(self) -> dict[str, Any]:
        """Return what the publisher compares with its own."""
        return {
            "sums": {str(partition): str(each) for partition, each in self.sums.items()},
            "records": self.records,
            "bytes": self.bytes,
            "seconds": self.last - self.started,
            "insights": self.insights.result(),
            "problems": self.problems,
        }


async def check(bootstrap: str) -> None:
    """Read, report, and end when everything announced has arrived."""
    lines = _Lines()
    topics: dict[str, int] = json.loads(await lines.next())
    checker = Checker(topics)
    start = dict.fromkeys(checker.sums, Start(timestamp=EARLIEST))
    async with open_cluster(bootstrap) as cluster, open_reader(cluster, start) as reader:
        _say({"ready": True})

        async def listen(scope: trio.CancelScope) -> None:
            checker.expected = json.loads(await lines.next())
            if checker.complete:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, nursery.cancel_scope)
            checker.started = checker.last = reported = trio.current_time()
            next_offset = dict.fromkeys(checker.sums, 0)
            async for batch in reader.batches():
                partition = batch.partition
                total = checker.sums[partition]
                for record in batch.records():
                    if record.offset != next_offset[partition]:
                        checker.problems.append(
                            f"{partition}: offset {record.offset} follows "
                            f"{next_offset[partition] - 1}"
                        )
                    next_offset[partition] = record.offset + 1
                    before = total.bytes
                    total.add(record.key, record.value)
                    checker.records[partition.topic] += 1
                    checker.bytes[partition.topic] += total.bytes - before
                    checker.insights.add(partition.topic, record.key, record.value or b"")
                checker.last = trio.current_time()
                if checker.last - reported >= _REPORT_EVERY:
                    reported = checker.last
                    _say({"records": checker.records})
                if checker.complete:
                    nursery.cancel_scope.cancel()
                    break
    _say({"result": checker.result()})


class _Lines:
    """Lines of standard input, read in a thread by file descriptor."""

    def __init__(self) -> None:
        self._held = b""

    async def next(self) -> bytes:
        while b"\n" not in self._held:
            got = await trio.to_thread.run_sync(os.read, 0, 65536, abandon_on_cancel=True)
            if not got:
                raise EOFError("the demo has gone")
            self._held += got
        line, _, self._held = self._held.partition(b"\n")
        return line


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run as a process of its own."""
    trio.run(check, sys.argv[1])


if __name__ == "__main__":
    main()
