"""What the two compilers share: collecting the lines of a function and the names it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

__all__ = ["Source"]


class Source:
    """A function under construction."""

    def __init__(self, **names: object) -> None:
        self.names: dict[str, Any] = names
        self.lines: list[str] = []
        self._margin = ""

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self.lines.append(self._margin + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head` and indent what is added inside."""
        self.line(head)
        margin, self._margin = self._margin, self._margin + " "
        yield
        self._margin = margin

    def packer(self, codes: str) -> str:
        """Return the name of the pack function of the `struct` format `codes`, big-endian."""
        return self._named(f"pack_{codes.replace('?', 'o')}", lambda: Struct("!" + codes).pack)

    def unpacker(self, codes: str) -> str:
        """Return the name of the unpack_from function of the `struct` format `codes`."""
        name = f"unpack_{codes.replace('?', 'o')}"
        return self._named(name, lambda: Struct("!" + codes).unpack_from)

    def _named(self, name: str, make: Callable[[], object]) -> str:
        if name not in self.names:
            self.names[name] = make()
        return name

    def name(self, prefix: str, value: object) -> str:
        """Return a name under which the function finds `value`; the same for the same value."""
        for name, known in self.names.items():
            if known is value and name.startswith(prefix):
                return name
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, name: str, origin: str) -> Callable[..., Any]:
        """Compile the lines and return the function called `name`."""
        code = compile("\n".join(self.lines), origin, "exec", dont_inherit=True)
        exec(code, self.names)
        function: Callable[..., Any] = self.names[name]
        return function
