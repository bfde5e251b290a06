"""The command line: `odradek`. Every command is a module, imported when it is called.

Starting quickly is part of what `odradek serve` promises (its first acknowledged record half a
second after the start of Python), so nothing here imports what the command at hand does not need:
rich, the client and the broker least of all.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        from odradek.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while importing, most likely: nothing has begun yet
        code = 130
    except OSError as error:
        from odradek.cli.exits import output_failed

        code = output_failed(error)
    sys.exit(code)
