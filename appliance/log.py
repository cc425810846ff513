"""Logs are events with fields, one line each. Never: message text, prompts or keys.

A line is `time level event field=value ...`; values that are not plain words are JSON strings, so
control characters cannot forge a line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """Formats a record as one line, whatever its fields hold."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback's text folded into the field `traceback`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}"
        fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        parts = [head, _value(record.getMessage())]
        parts += [f"{name}={_value(value)}" for name, value in fields.items()]
        return " ".join(parts)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def configure_logging(level: int = logging.INFO) -> None:
    """Send every event to standard error. Called once, by a process's entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These two speak once a request or connection; our own line at a request's end says it all.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
