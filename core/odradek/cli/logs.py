"""The broker's log on standard error: lines for people, or JSON."""

from __future__ import annotations

import logging
import sys
import time

from odradek.cli.text import shown

__all__ = ["set_up"]

_LIMIT = 4000


class HumanFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 warning  odradek.broker  text`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; whatever came from the network has no control characters left."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = (
            f"{at}.{int(record.msecs):03d} {record.levelname.lower():<8} {record.name}  "
            f"{shown(record.getMessage(), _LIMIT)}"
        )
        if record.exc_info:
            line += "\n" + shown(self.formatException(record.exc_info), 4 * _LIMIT)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the time in seconds since 1970."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        import json

        document = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shown(record.getMessage(), _LIMIT),
        }
        if record.exc_info:
            document["exception"] = shown(self.formatException(record.exc_info), 4 * _LIMIT)
        return json.dumps(document, ensure_ascii=False)


def set_up(form: str, level: str) -> None:
    """Send the log of this process to standard error, in `form` human or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
