"""kcat: librdkafka on the command line."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from confluent_kafka import KafkaError
from tests.interop.drivers.base import Driver, OnProgress, Record, Refused

__all__ = ["Kcat"]

TIMEOUT = 30
UNIT, RECORD = "\x1f", "\x1e"
FORMAT = r"%p %o %T %K %S %h\n%k%s\n"
_CODES = {KafkaError(code).str(): code for code in range(1, 120)}
"""kcat prints librdkafka's texts; the binding knows the same ones by code."""


class Kcat(Driver):
    """A process for each call; records that are produced have one set of headers for all."""

    name = "kcat"
    headers = False
    timestamps = False
    max_timestamp = False
    reports_offsets = False

    def version(self) -> str:
        """See `Driver`."""
        text = subprocess.run(
            ["kcat", "-V"], check=True, capture_output=True, text=True, timeout=TIMEOUT
        )
        return " ".join(re.findall(r"(?:Version|librdkafka) ([0-9.]+)", text.stdout + text.stderr))

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        try:
            done = subprocess.run(
                ["kcat", "-b", self.address, *arguments],
                input=stdin,
                capture_output=True,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"kcat: {error.stderr!r}") from None
        errors = done.stderr.decode()
        refused = re.search(r"Broker: [^\n(]*[^\n( .]", errors)
        if refused is not None and refused[0] in _CODES:
            raise Refused(_CODES[refused[0]], errors)
        if done.returncode:
            raise RuntimeError(f"kcat {arguments}: {errors}")
        return done.stdout

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        on_progress: OnProgress | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See `Driver`."""
        headers = {record.headers for record in records}
        assert len(headers) <= 1, "kcat gives all records the same headers"
        options = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "message.max.bytes": 4_000_000,
            **(settings or {}),
        }
        arguments = ["-P", "-E", "-t", topic, "-p", str(partition), "-z", compression, "-Z"]
        arguments += ["-K", UNIT, "-D", RECORD]
        for key, value in options.items():
            arguments += ["-X", f"{key}={value}"]
        for name, header in next(iter(headers), ()):
            arguments += ["-H", name if header is None else f"{name}={header.decode()}"]
        stdin = RECORD.encode().join(
            (record.key or b"") + UNIT.encode() + (record.value or b"") for record in records
        )
        self._run(*arguments, stdin=stdin)
        return []

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partitions: Sequence[int] = (0,),
        start: int = 0,
        on_progress: OnProgress | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Record]:
        """See `Driver`."""
        arguments = ["-C", "-E", "-u", "-t", topic, "-o", str(start)]
        if len(partitions) == 1:
            arguments += ["-p", str(partitions[0])]
        arguments += ["-c", str(count), "-f", FORMAT]
        for key, value in (settings or {}).items():
            arguments += ["-X", f"{key}={value}"]
        process = subprocess.Popen(
            ["timeout", str(TIMEOUT), "kcat", "-q", "-b", self.address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        records: list[Record] = []
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            while len(records) < count and (line := process.stdout.readline()):
                number, offset, timestamp, *sizes, headers = line.rstrip(b"\n").split(b" ", 5)
                record_key, record_value = (_sized(process.stdout, int(size)) for size in sizes)
                assert process.stdout.read(1) == b"\n"
                records.append(
                    Record(
                        record_value,
                        record_key,
                        _headers(headers.decode()),
                        int(timestamp),
                        int(offset),
                        int(number),
                    )
                )
                if on_progress is not None:
                    on_progress(len(records))
            errors = process.stderr.read().decode()
        if len(records) < count:
            refused = re.search(r"Broker: [^\n(]*[^\n( .]", errors)
            if refused is not None and refused[0] in _CODES:
                raise Refused(_CODES[refused[0]], errors)
            raise TimeoutError(f"kcat got {len(records)} of {count} records: {errors}")
        return records

    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """See `Driver`."""
        number = {"earliest": -2, "latest": -1}.get(str(when), when)
        out = self._run("-Q", "-t", f"{topic}:{partition}:{number}").decode()
        return int(out.rpartition(" offset ")[2])


def _sized(stream: IO[bytes], size: int) -> bytes | None:
    return None if size < 0 else stream.read(size)


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    if not text:
        return ()
    pairs = (item.partition("=") for item in text.split(","))
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in pairs)
