"""Intervals of relative changes as SVG, on one axis for all of a report. Never: a script, or a colour."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from appliance.experiment.findings import Effect
from appliance.experiment.report.markup import Markup, tag
from appliance.experiment.report.numbers import change, span

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Where an axis may end; what reaches further is cut there, and shown with a tip."""

WHOLE = 0.75
"""The share of intervals shown whole: one that is far out would make points of all others."""

MARGIN = 4.0
"""Per cent of the width to each side, for tips."""


def axis_end(effects: Iterable[Effect]) -> float:
    """The end of an axis that shows most intervals whole."""
    ends = sorted(max(abs(effect.low), abs(effect.high)) for effect in effects)
    wanted = ends[ceil(len(ends) * WHOLE) - 1] if ends else STEPS[0]
    return next((step for step in STEPS if step >= wanted), STEPS[-1])


def interval_plot(effect: Effect, end: float, kind: str, margin: float | None = None) -> Markup:
    """One interval: a bar with a point, a line at zero, and one at the harm that is put up with.

    `kind` is the class that gives the colour; `margin` is signed, its harm's way.
    """
    low, high = _place(effect.low, end), _place(effect.high, end)
    tips = [
        _tip(side, kind)
        for side, is_cut in ((-1, effect.low < -end), (1, effect.high > end))
        if is_cut
    ]
    limit = None
    if margin is not None and abs(margin) <= end:
        limit = _upright(_place(margin, end), "limit")
    middle = None
    if abs(effect.change) <= end:
        middle = tag(
            "circle", cx=f"{_place(effect.change, end):.2f}%", cy="50%", r=4.5, class_=kind
        )
    return tag(
        "svg",
        tag("title", f"{change(effect.change)} ({span(effect.low, effect.high)})"),
        _upright(_place(0.0, end), "zero"),
        limit,
        tag(
            "line",
            x1=f"{low:.2f}%",
            x2=f"{high:.2f}%",
            y1="50%",
            y2="50%",
            class_=f"bar {kind}",
        ),
        *tips,
        middle,
        class_="plot",
        role="img",
        width="100%",
        height="26",
    )


def axis(end: float) -> Markup:
    """The numbers over a column of plots."""
    marks = [
        tag("text", change(place), x=f"{_place(place, end):.2f}%", y="70%", text_anchor=anchor)
        for place, anchor in ((-end, "start"), (0.0, "middle"), (end, "end"))
    ]
    return tag("svg", *marks, class_="axis", aria_hidden="true", width="100%", height="18")


def _place(value: float, end: float) -> float:
    """Per cent from the left; what is beyond the axis is put at its end."""
    inside = min(max(value, -end), end)
    return 50 + inside / end * (50 - MARGIN)


def _upright(place: float, kind: str) -> Markup:
    return tag("line", x1=f"{place:.2f}%", x2=f"{place:.2f}%", y1="0", y2="100%", class_=kind)


def _tip(side: int, kind: str) -> Markup:
    """A small arrow head past the end of the axis."""
    place = _place(float(side), 1.0)
    path = tag("path", d=f"M0 -5 L{8 * side} 0 L0 5 Z", class_=kind)
    return tag("svg", path, x=f"{place:.2f}%", y="50%", overflow="visible")
