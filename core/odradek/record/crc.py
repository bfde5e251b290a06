"""CRC-32C (Castagnoli), the checksum of record batches.

By the `crc32c` wheel, which takes any contiguous buffer without a copy and uses the processor's
instruction where there is one: docs/decisions/0002-crc32c.md says why this one.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
