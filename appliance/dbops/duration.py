"""A span of time in words. Pure."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """In its largest fitting unit: `3 d`, `2.5 h`, `12 s`."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
