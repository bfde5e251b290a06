"""What a fault test needs of the machine."""

from __future__ import annotations

import os

import pytest

__all__ = ["missing"]


def missing(what: str) -> None:
    """Skip for want of something, or fail where everything has to be there, as in CI."""
    if os.environ.get("ODRADEK_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)
