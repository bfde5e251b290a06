"""Numbers as options."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["NumberRange"]


class NumberRange(click.FloatRange):
    """A number within bounds; NaN, which no bound keeps out, is refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; fail for what is none."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number
