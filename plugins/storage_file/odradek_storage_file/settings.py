"""Settings of `file:` storage: one definition each."""

from __future__ import annotations

import attrs

from odradek.config import setting

__all__ = ["FileStorageSettings"]

MIB = 1024 * 1024


@attrs.frozen(kw_only=True)
class FileStorageSettings:
    """Settings of `file:` storage."""

    durability: str = setting(
        "ack",
        choices=("ack", "interval", "none"),
        doc="When a record batch counts as stored. `ack`: after fdatasync, shared by all that wait "
        "for one. `interval`: when the kernel has it; a loss of power may take the last "
        "`interval_ms` or `interval_bytes`. `none`: the same, and nothing is synced before a "
        "clean close.",
    )
    interval_bytes: int = setting(
        256 * 1024,
        minimum=1,
        doc="With `durability = interval`: how many bytes may wait for a sync.",
    )
    interval_ms: int = setting(
        100,
        minimum=1,
        doc="With `durability = interval`: how long bytes may wait for a sync.",
        kafka="log.flush.interval.ms",
    )
    min_free_bytes: int = setting(
        64 * MIB,
        minimum=0,
        doc="Free space of the file system below which producers are told to try again later.",
    )
    ballast_bytes: int = setting(
        4 * MIB,
        minimum=0,
        doc="Size of a file that only takes up room, given back when the disk is full so that "
        "segments can still be removed and the directory can be closed in order.",
    )
    recovery_bytes: int = setting(
        64 * MIB,
        minimum=4096,
        doc="How many bytes of one partition may be checked again after an unclean shutdown: the "
        "recovery point follows at this distance. All partitions together: eight times as many.",
    )
    max_open_files: int = setting(
        0,
        minimum=0,
        doc="How many segment files to keep open. 0: half of what the process may open.",
    )
    read_only: bool = setting(
        False,
        doc="Open the directory for reading alone, beside a process that writes it. No lock is "
        "taken and nothing is repaired; what was appended later is not seen.",
    )
