"""Logs are events with fields, one line each. Never: message text, prompts or keys.

A line is `time level event field=value ...`; values that are not plain words are JSON strings, so
control characters cannot forge a line. Where the stream is systemd's journal, each line begins with its
priority (sd-daemon(3)), which the journal takes off again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written there goes to the journal: `JOURNAL_STREAM` of systemd.exec(5) names it.

    A child inherits the variable also where its own stream is a file.
    """
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def tell(text: str, level: int) -> None:
    """A command's answer on standard output; in the journal each of its lines has this priority."""
    _print(text, level, sys.stdout)


def complain(text: str, level: int = logging.ERROR) -> None:
    """The same on standard error: what keeps a command from its work."""
    _print(text, level, sys.stderr)


def _print(text: str, level: int, stream: TextIO) -> None:
    if is_journal(stream):
        text = "\n".join(f"{_prefix(level)}{line}" for line in text.split("\n"))
    print(text, file=stream, flush=True)


class EventFormatter(logging.Formatter):
    """Formats a record as one line, whatever its fields hold."""

    def __init__(self, *, has_priority: bool = False) -> None:
        super().__init__()
        self._has_priority = has_priority

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback's text folded into the field `traceback`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}"
        fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        parts = [head, _value(record.getMessage())]
        parts += [f"{name}={_value(value)}" for name, value in fields.items()]
        line = " ".join(parts)
        return _prefix(record.levelno) + line if self._has_priority else line


def _prefix(level: int) -> str:
    return f"<{next((number for least, number in _PRIORITIES if level >= least), _DEBUG)}>"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def configure_logging(level: int = logging.INFO) -> None:
    """Send every event to standard error. Called once, by a process's entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(has_priority=is_journal(sys.stderr)))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # These two speak once a request or connection; our own line at a request's end says it all.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def tell_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """`sys.excepthook`: as Python's own, with a priority in the journal."""
    told = "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")
    complain(told, logging.CRITICAL)
