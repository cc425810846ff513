"""A span of time in words. Pure."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
TENTHS_BELOW_S = 10


def duration(seconds: float) -> str:
    """In its two largest units: `3 d 4 h`, `5 min`, `12 s`, `0.8 s`."""
    if seconds < TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    left = round(seconds)
    counts: list[tuple[int, str]] = []
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:2] if count)
