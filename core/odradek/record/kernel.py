"""Which implementation of the codec is in force: the compiled module where it can be loaded.

`active` is chosen once, at import. The compiled module is not asked for when the environment says
`ODRADEK_PURE_PYTHON=1`, and not taken when it was built from other sources than these.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from odradek.record import pure
from odradek.switches import PURE_PYTHON

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["INTERFACE", "accelerated", "active", "implementation", "murmur2"]

INTERFACE: Final = 6
"""Raised with every change of what the compiled module takes or gives: an old build in an editable
installation is then left aside instead of failing somewhere."""


def _choose() -> tuple[ModuleType, str]:
    if PURE_PYTHON:
        return pure, "pure Python (ODRADEK_PURE_PYTHON is set)"
    try:
        compiled = import_module("odradek.record._accelerated")
    except ModuleNotFoundError:
        return pure, "pure Python (the compiled module is not installed)"
    except ImportError as error:
        return pure, f"pure Python (the compiled module cannot be loaded: {error})"
    if compiled.INTERFACE != INTERFACE:
        return pure, "pure Python (the compiled module is of another version: install again)"
    return compiled, f"compiled ({compiled.COMPILER})"


_chosen, _text = _choose()

if TYPE_CHECKING:
    active = pure
else:
    active = _chosen

accelerated: Final = _chosen is not pure
"""Whether the compiled module is in force."""

murmur2 = active.murmur2


def implementation() -> str:
    """Return what is in force, and where that is pure Python the reason, for people to read."""
    return _text
