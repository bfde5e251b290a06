"""What the demo shows while it runs: a bar for each topic on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from odradek.cli.text import count

__all__ = ["Progress"]


class Progress:
    """Published and consumed records by topic; a context manager that draws while it is open."""

    def __init__(self, console: Console) -> None:
        self.published: dict[str, int] = {}
        self.consumed: dict[str, int] = {}
        self.totals: dict[str, int | None] = {}
        self.seconds = 0.0
        self._status = ""
        self._console = console
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            get_renderable=self._draw, console=console, refresh_per_second=12, transient=True
        )

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def status(self, text: str) -> None:
        """Say what is going on."""
        self._status = text
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "left", "right", "right", "right"):
            table.add_column(justify=justify)
        for topic, total in self.totals.items():
            table.add_row(*self._row(topic, total))
        self._spinner.update(text=Text(f" {self._status}"))
        rate = Text()
        if self.seconds > 0.2:
            sent, back = sum(self.published.values()), sum(self.consumed.values())
            rate.append(f"  {count(sent / self.seconds)} published/s", style="green")
            rate.append(f"   {count(back / self.seconds)} consumed/s", style="cyan")
        return Group(self._spinner, table, rate)

    def _row(self, topic: str, total: int | None) -> list[Any]:
        sent, back = self.published.get(topic, 0), self.consumed.get(topic, 0)
        bar = ProgressBar(
            total=max(total or sent, 1), completed=back, width=28, complete_style="cyan"
        )
        return [
            Text(f"  {topic}", style="bold"),
            bar,
            Text(f"{count(sent)} published", style="green"),
            Text(f"{count(back)} consumed", style="cyan"),
            Text("✓", style="bold green") if total is not None and back >= total else Text(" "),
        ]
