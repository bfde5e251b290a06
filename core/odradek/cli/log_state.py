"""What a log keeps beside its batches, as a document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from odradek.contracts.storage_gaps import GAPS_BLOB
from odradek.log.compaction import CLEANER_BLOB
from odradek.log.producers import DamagedSnapshot, Producers
from odradek.log.scrub import SCRUB_BLOB
from odradek.log.verify import PRODUCERS_BLOB

if TYPE_CHECKING:
    from odradek.contracts.storage import LogSnapshot

__all__ = ["state_document"]


def state_document(snapshot: LogSnapshot) -> dict[str, Any]:
    """Return the state of a log; what cannot be read is a text that says so."""
    blobs = snapshot.blobs
    return {
        "kind": "state",
        "log_start": snapshot.log_start,
        "end_offset": snapshot.segments[-1].end_offset,
        "segments": [
            {
                "segment": segment.base_offset,
                "end_offset": segment.end_offset,
                "size": segment.size,
                "max_timestamp": segment.max_timestamp,
                "created": segment.created_ms,
                "sealed": segment.sealed,
            }
            for segment in snapshot.segments
        ],
        "epochs": [
            {"epoch": entry.epoch, "start_offset": entry.start_offset} for entry in snapshot.epochs
        ],
        "producers": _producers(blobs.get(PRODUCERS_BLOB)),
        "cleaner": _json(blobs.get(CLEANER_BLOB)),
        "scrub": _json(blobs.get(SCRUB_BLOB)),
        "repaired": _json(blobs.get(GAPS_BLOB)),
        "blobs": {name: len(blob) for name, blob in sorted(blobs.items())},
    }


def _json(blob: bytes | None) -> Any:
    if blob is None:
        return None
    try:
        return json.loads(blob)
    except ValueError as error:
        return f"cannot be read: {error}"


def _producers(blob: bytes | None) -> Any:
    if blob is None:
        return None
    producers = Producers()
    try:
        offset = producers.restore(blob)
    except DamagedSnapshot as error:
        return f"cannot be read: {error}"
    return {
        "as_of_offset": offset,
        "producers": [
            {
                "producer_id": producer_id,
                "epoch": state.epoch,
                "last_timestamp": state.last_timestamp,
                "batches": [batch._asdict() for batch in state.batches],
            }
            for producer_id, state in sorted(producers.active())
        ],
    }
