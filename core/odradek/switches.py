"""What the environment decides before anything is configured; read once, at import."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["PURE_PYTHON"]

PURE_PYTHON: Final = os.environ.get("ODRADEK_PURE_PYTHON", "0") not in {"", "0"}
"""Whether compiled modules are left aside even where they are installed."""
