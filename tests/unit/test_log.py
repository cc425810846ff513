"""Log lines: one event is one line, with its fields."""

from __future__ import annotations

import logging

from appliance.log import EventFormatter


def format_event(message: str, **fields: object) -> str:
    record = logging.LogRecord("appliance.x", logging.INFO, "f.py", 1, message, (), None)
    record.__dict__.update(fields)
    return EventFormatter().format(record)


def test_fields_follow_the_event() -> None:
    line = format_event("turn_done", request_id="r-1", ttft_ms=12.5)
    assert line.endswith("info appliance.x turn_done request_id=r-1 ttft_ms=12.5")


def test_control_characters_cannot_forge_a_line_or_colour_the_terminal() -> None:
    line = format_event("x", name_given="a\r\nERROR fake \x1b[31m\x85\u2028")
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert 'name_given="a\\r\\nERROR fake \\u001b[31m\\u0085\\u2028"' in line


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f.py", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    line = EventFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert "ValueError: bad" in line
