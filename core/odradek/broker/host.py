"""What the broker takes from the machine besides its plugins: clock, randomness, limits.

Handed in, so that a simulation can run the same broker on a clock and a seed of its own. Timeouts
are not here: they use trio's clock, which a simulation replaces as well.
"""

from __future__ import annotations

import resource
import time
import uuid

__all__ = ["Host"]


class Host:
    """The real machine."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970: for timestamps of records, never for timeouts."""
        return time.time_ns() // 1_000_000

    def new_id(self) -> uuid.UUID:
        """Return a random id: of a topic, of a cluster."""
        return uuid.uuid4()

    def files_max(self) -> int | None:
        """How many files and sockets this process may have open, None without a limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if soft == resource.RLIM_INFINITY else soft
