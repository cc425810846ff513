"""Numbers as a reader wants them: few digits, a true minus, a unit. Never: rounds what is kept."""

from __future__ import annotations

from math import floor, log10

_MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"
_PER_CENT = f"{_SPACE}%"
_SECONDS = {"ms": 0.001, "s": 1.0}
_SHARE = "share"
"""How the unit of metrics between 0 and 1 begins; they are told in per cent."""
_DECIMALS_MAX = 2


def change(value: float) -> str:
    """A relative change: +4.2 %."""
    return f"{_signed(value * 100, 2)}{_PER_CENT}"


def span(low: float, high: float, between: str = " to ") -> str:
    """An interval of relative changes: +1.2 to +7.0 %. Ends that differ are told with a digit more where
    they would read alike: -20.3 to -19.7 %."""
    for digits in (2, 3):
        first, last = (_signed(end * 100, digits) for end in (low, high))
        if first != last:
            break
    return f"{first}{between}{last}{_PER_CENT}"


def per_cent(value: float) -> str:
    """A share without a sign, as short as it is: 95 %, 97.5 %."""
    return f"{value * 100:.3g}{_PER_CENT}"


def amount(value: float, unit: str) -> str:
    """A value, with its unit where that is one of time or a share: 1.24 s, 92.1 %, 1,830."""
    sign = _MINUS if value < 0 else ""
    if unit.startswith(_SHARE):
        return f"{sign}{_digits(abs(value) * 100, 3)}{_PER_CENT}"
    if unit in _SECONDS:
        seconds = abs(value) * _SECONDS[unit]
        small = seconds < 1
        return (
            f"{sign}{_digits(seconds * (1000 if small else 1), 3)}{_SPACE}{'ms' if small else 's'}"
        )
    return f"{sign}{_digits(abs(value), 3)}"


def difference(value: float, unit: str) -> str:
    """A difference between two values: +120 ms, +0.4; of shares in points of per cent."""
    told = ("+" if value > 0 else "") + amount(value, unit)
    return f"{told}-points" if unit.startswith(_SHARE) else told


def difference_span(low: float, high: float, unit: str, between: str = " to ") -> str:
    """An interval of differences."""
    first, last = difference(low, unit), difference(high, unit)
    if unit.startswith(_SHARE):
        # The unit is of both.
        first = first.partition(_SPACE)[0]
    return f"{first}{between}{last}"


def unit_beside(unit: str) -> str:
    """What `amount` leaves out of a unit: shares of users are told as "of users"."""
    return "" if unit in _SECONDS else unit.removeprefix(_SHARE).strip()


def hours(value: float) -> str:
    """A stretch of time, in the unit it is spoken of."""
    if value < 1:
        return _many(f"{value * 60:.0f}", "minute")
    if value < 48:
        return _many(f"{value:.0f}", "hour")
    return _many(f"{value / 24:.1f}".removesuffix(".0"), "day")


def _many(count: str, noun: str) -> str:
    return f"{count} {noun}{'' if count == '1' else 's'}"


def _signed(value: float, digits: int) -> str:
    told = _digits(abs(value), digits)
    if not told.strip("0."):
        return "0"
    return f"{'+' if value > 0 else _MINUS}{told}"


def _digits(value: float, digits: int) -> str:
    """Without a sign, to so many significant digits, never in powers of ten."""
    if value == 0:
        return "0"
    after = max(0, digits - 1 - floor(log10(value)))
    return f"{value:,.{min(after, _DECIMALS_MAX)}f}"
