"""What a compacted log must hold after the lives of `compaction_lives`, kept as dictionaries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from tests.faults.compaction_traffic import EPOCH, PRODUCER, Sent, batch_of, records_of

from odradek.log.producers import Producers
from odradek.record import Record, parse_header

__all__ = ["Found", "Model"]


class Found(NamedTuple):
    """A log as its next opening found it; `touched_to`: records before it may be missing."""

    log_start: int
    end: int
    touched_to: int
    records: list[Record]
    producers: Producers


class Model:
    """The records of one run by their offsets, from what the lives said.

    `sent`: those that were there at the last check, and what was sent since. `number` and
    `sequence` are those of the next batch; `compacted` counts compactions that changed something.
    """

    def __init__(self, run: int) -> None:
        self._run = run
        self.sent: dict[int, Sent] = {}
        self.number = 0
        self.sequence = 0
        self.log_start = 0
        self.acknowledged = 0
        self.compacted = 0
        self._end = 0
        self._pending: dict[int, int] = {}
        self._trimming: int | None = None
        self._last: tuple[int, int, int] | None = None

    def heard(self, line: str) -> None:
        """Take note of what a life said."""
        what, *words = line.split()
        if what == "send":
            number, base = int(words[0]), int(words[1])
            self._pending[number] = base
            self.number = number + 1
        elif what == "ack":
            number = int(words[0])
            end = self._pending[number] + len(records_of(self._run, number))
            self.acknowledged = max(self.acknowledged, end)
        elif what == "trim":
            self._trimming = int(words[0])
        elif what == "trimmed":
            self.log_start = int(words[0])
            self._trimming = None
        elif what == "compacted":
            self.compacted += words[0] == "True"

    def check(self, found: Found) -> None:
        """Compare a log with what must be there, and take what was not acknowledged as it is."""
        assert found.end >= self.acknowledged, "acknowledged records are gone"
        self._adopt(found.end)
        allowed = {self.log_start} | ({self._trimming} if self._trimming is not None else set())
        assert found.log_start in allowed, "the log start is not where it was put"
        self.log_start = found.log_start
        self._trimming = None
        offsets = [record.offset for record in found.records]
        assert offsets == sorted(set(offsets)), "records are doubled or out of order"
        for record in found.records:
            value = None if record.value is None else bytes(record.value)
            held = Sent(bytes(record.key or b""), value, record.timestamp)
            sent = self.sent.get(record.offset)
            assert held == sent, f"offset {record.offset} holds another record, or came back"
        self._check_newest(found)
        uncompacted = {at for at in self.sent if at >= max(found.touched_to, found.log_start)}
        assert uncompacted <= set(offsets), "records that were not compacted are missing"
        self._check_producer(found.producers)
        # What is gone stays gone: were it found again, it would be one that was never sent.
        self.sent = {offset: self.sent[offset] for offset in offsets}

    def _adopt(self, end: int) -> None:
        """Batches that were not acknowledged are there as a prefix of what was sent, or not."""
        for number, base in sorted(self._pending.items()):
            records = records_of(self._run, number)
            if base + len(records) > end:
                continue
            assert base == self._end, f"batch {number} is not where the one before it ends"
            self.sent |= {base + index: record for index, record in enumerate(records)}
            self._end = base + len(records)
            self._last = (number, self.sequence, base)
            self.sequence += len(records)
        assert self._end == end, "the log ends inside a batch, or after what was sent"
        self._pending.clear()

    def _check_newest(self, found: Found) -> None:
        def newest(records: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
            return {key: value for key, value in dict(records).items() if value is not None}

        wanted = newest(
            (sent.key, sent.value)
            for at, sent in sorted(self.sent.items())
            if at >= found.log_start
        )
        got = newest(
            (bytes(record.key or b""), None if record.value is None else bytes(record.value))
            for record in found.records
        )
        assert got == wanted, "the newest values of some keys are wrong"

    def _check_producer(self, producers: Producers) -> None:
        """The newest batch is known to be a retry when it is sent again."""
        if self._last is None:
            return
        number, sequence, base = self._last
        state = producers.get(PRODUCER)
        assert state is not None, "the producer is forgotten"
        assert state.epoch == EPOCH
        seen = producers.check(parse_header(batch_of(self._run, number, sequence)))
        assert seen is not None, "a retry would be appended once more"
        assert seen.base_offset == base

    def order(self, **more: object) -> str:
        """Return the line that begins the next life."""
        known = {"run": self._run, "number": self.number, "sequence": self.sequence}
        return json.dumps({**known, **more})
