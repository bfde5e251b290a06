"""Figures of several rounds, as a table: the median, the spread, the ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

__all__ = ["Rounds", "table"]

Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""Figures by target, one mapping per round."""


def _spread(values: Sequence[float]) -> str:
    middle = median(values)
    if len(values) == 1:
        return f"{middle:,.4g}"
    return f"{middle:,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def table(workload: str, rounds: Rounds) -> str:
    """One workload as Markdown. Ratios are of rounds that ran one after the other."""
    names = list(rounds)
    first = rounds[names[0]]
    lines = [
        f"| {workload} | " + " | ".join(names) + (" | ratio |" if len(names) == 2 else " |"),
        "|--" * (len(names) + (2 if len(names) == 2 else 1)) + "|",
    ]
    for figure in first[0]:
        cells = []
        for name in names:
            values = [each[figure] for each in rounds[name] if figure in each]
            cells.append(_spread(values) if values else "-")
        if len(names) == 2:
            pairs = [
                a[figure] / b[figure]
                for a, b in zip(*rounds.values(), strict=True)
                if figure in a and b.get(figure)
            ]
            cells.append(_spread(pairs) if pairs else "-")
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
