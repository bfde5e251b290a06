"""Record batches v2 (magic 2), without IO: bytes, values and `now_ms` in, bytes and values out.

The broker's path, per partition of a produce request:

    validated = validate(view, rules, now_ms)          # one batch; checked, CRC and all
    assign(validated.buffer, 0, base_offset, leader_epoch)
    meta = validated.meta.assigned(base_offset, leader_epoch)
    write(validated.buffer)

A follower, and recovery:

    found = scan(memoryview(data))                     # CRC of every batch
    for meta, position in zip(found.metas, found.positions): ...
    if found.problem is not None:                      # found.end bytes are good
        torn = find_next_valid(view, found.problem.position, min_offset=next_offset) is None

Clients and tools:

    builder = BatchBuilder(max_bytes=16_384, compression=CompressionType.LZ4)
    builder.append(timestamp_ms, key, value, [("trace", b"1")])    # False when it is full
    builder.extend(timestamp_ms, values)                           # how many fitted
    data = builder.build()
    for record in iter_records(data): ...              # many batches, control batches left out
    columns = decode_columns(data)           # as above, in Arrow's memory layout

Compaction (`odradek.record.compacting`):

    noted = note_window(view, offsets, end_offset)            # keys into an OffsetMap
    cleaned = clean_window(view, offsets, end_offset=end_offset, ...)

Records are read and written by a compiled module where there is one (`implementation()`), else by
pure Python: the same results, the same errors (docs/reference/accelerator.md).

Positions and sizes are in bytes, timestamps in milliseconds since 1970 or -1, offsets inclusive
except where they are called `next` or `end`.
"""

from odradek.record.batch import (
    HEADER_SIZE,
    BatchMeta,
    assemble,
    assign,
    check_crc,
    parse_header,
    set_log_append_time,
)
from odradek.record.builder import batch_size_bound
from odradek.record.columns import BinaryColumn, Columns, HeaderColumn, decode_columns
from odradek.record.compacting import (
    Cleaned,
    CorruptWindow,
    Noted,
    OffsetMap,
    clean_window,
    note_window,
)
from odradek.record.compression import CompressionType, compress, decompress
from odradek.record.control import ControlType, TransactionMarker, decode_marker, encode_marker
from odradek.record.crc import crc32c
from odradek.record.kernel import accelerated, active, implementation, murmur2
from odradek.record.layout import Header, Record
from odradek.record.records import decode_records, filter_batch, iter_records, widen_records
from odradek.record.scan import Problem, Scan, find_next_valid, scan
from odradek.record.validate import Rules, Validated, validate

BatchBuilder = active.BatchBuilder

__all__ = [
    "HEADER_SIZE",
    "BatchBuilder",
    "BatchMeta",
    "BinaryColumn",
    "Cleaned",
    "Columns",
    "CompressionType",
    "ControlType",
    "CorruptWindow",
    "Header",
    "HeaderColumn",
    "Noted",
    "OffsetMap",
    "Problem",
    "Record",
    "Rules",
    "Scan",
    "TransactionMarker",
    "Validated",
    "accelerated",
    "assemble",
    "assign",
    "batch_size_bound",
    "check_crc",
    "clean_window",
    "compress",
    "crc32c",
    "decode_columns",
    "decode_marker",
    "decode_records",
    "decompress",
    "encode_marker",
    "filter_batch",
    "find_next_valid",
    "implementation",
    "iter_records",
    "murmur2",
    "note_window",
    "parse_header",
    "scan",
    "set_log_append_time",
    "validate",
    "widen_records",
]
