"""How explanations look on the terminal, where a prompt's and the cache's say the same. Asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from appliance.counted import counted

MESSAGES_SHOWN = 3
"""Messages of the history shown at each end; those between are summed up."""


def part_rows(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A head line, and one line for each part: tokens, how many are cached, and what it is."""
    spoken = [at for at, part in enumerate(parts) if part["zone"] == "history"]
    hidden = spoken[MESSAGES_SHOWN : len(spoken) - MESSAGES_SHOWN]
    rows = [f"{'tokens':>8} {'cached':>8}  part"]
    for at, part in enumerate(parts):
        if at not in hidden:
            about = f"{part['name']} ({part['source']}, {part['role']}, {part['zone']})"
            rows.append(row(part["tokens"], part["cached"], about))
        elif at == hidden[0]:
            between = [parts[index] for index in hidden]
            cached = [part["cached"] for part in between]
            total = None if None in cached else sum(cached)
            rows.append(
                row(
                    sum(p["tokens"] for p in between),
                    total,
                    f"{counted(len(between), 'part')} between",
                )
            )
    return rows


def row(tokens: int, cached: int | None, about: str) -> str:
    """One line of the table; `?` where it is not known how many are cached."""
    return f"{tokens:>8} {'?' if cached is None else cached:>8}  {about}"


def cause_lines(answer: Mapping[str, Any]) -> list[str]:
    """The cause in words, and the place where the prefix ends with the text around it."""
    detail = f" ({answer['detail']})" if answer["detail"] else ""
    lines = [f"cause    {answer['cause']}{detail}: {answer['why']}"]
    place = answer["first_difference"]
    if place is not None:
        lines.append(
            f"place    token {place['position']}, in {place['part']} "
            f"({place['source']}, {place['role']})"
        )
        lines += [
            f"  {name:<8} {place[name]!r}"
            for name in ("before", "asked", "found")
            if place[name] is not None
        ]
    return lines
