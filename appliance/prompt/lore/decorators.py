"""Decorators of the card format V3: lines `@@name value` at the start of an entry's content.

The rules are those of the public specification "Character Card V3": of a name only the first line counts
(`additional_keys` apart), and a line `@@@name` stands in for the one before it when that is not known or
its value is wrong, in chains of any length. Never: the entry's own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from appliance.prompt.lore.fields import as_number

Role: TypeAlias = Literal["system", "user", "assistant"]
LINES_MAX = 200
COUNT_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decorators:
    """What an entry's decorators say; None where there is none of that name.

    `depth` is how many messages from the newest the text stands (0: after it), `reverse_depth` from the
    oldest. `additional_keys`: of each group one must be there as well. `is_greeting`: index of the
    greeting that the conversation must have begun with. `ignored` are the lines that say nothing here.
    """

    depth: int | None = None
    reverse_depth: int | None = None
    role: Role | None = None
    position: str | None = None
    scan_depth: int | None = None
    activate_only_after: int | None = None
    activate_only_every: int | None = None
    keep_activate_after_match: bool = False
    dont_activate_after_match: bool = False
    additional_keys: tuple[tuple[str, ...], ...] = ()
    exclude_keys: tuple[str, ...] = ()
    is_greeting: int | None = None
    ignore_on_max_context: bool = False
    activate: bool = False
    dont_activate: bool = False
    ignored: tuple[str, ...] = field(default=())


def split(content: str) -> tuple[Decorators, str]:
    """The decorators at the start of a content, and the content without them."""
    found: dict[str, Any] = {}
    ignored: list[str] = []
    lines = content.lstrip("\r\n").split("\n")
    taken = 0
    served = False
    while taken < len(lines) and taken < LINES_MAX and lines[taken].startswith("@@"):
        line = lines[taken].rstrip()
        taken += 1
        is_fallback = line.startswith("@@@")
        if is_fallback and served:
            continue
        served = _take(line.lstrip("@"), found)
        if not served:
            ignored.append(line)
    if not taken:
        return Decorators(), content
    groups = found.pop("additional_keys", ())
    decorators = Decorators(**found, additional_keys=tuple(groups), ignored=tuple(ignored))
    return decorators, "\n".join(lines[taken:]).strip("\r\n")


def _take(line: str, found: dict[str, Any]) -> bool:
    """Whether a line is known and its value right; the first of its name is kept."""
    name, _, rest = line.partition(" ")
    read = _KINDS.get(name)
    value = None if read is None else read(rest.strip())
    if value is None:
        return False
    if name == "additional_keys":
        found.setdefault(name, []).append(value)
    else:
        found.setdefault(name, value)
    return True


def _count(text: str) -> int | None:
    number = as_number(text) if text else None
    if number is None or not 0 <= number <= COUNT_MAX:
        return None
    return int(number)


def _step(text: str) -> int | None:
    """A number to divide by."""
    return _count(text) or None


def _role(text: str) -> Role | None:
    for role in _ROLES:
        if role == text:
            return role
    return None


def _position(text: str) -> str | None:
    return text if text in ("before_desc", "after_desc", "personality", "scenario") else None


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) or None


def _stands(text: str) -> bool | None:
    """A line without a value; what follows the name is ignored, but for `false`."""
    return None if text == "false" else True


_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_KINDS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "depth": _count,
        "reverse_depth": _count,
        "role": _role,
        "position": _position,
        "scan_depth": _count,
        "activate_only_after": _count,
        "activate_only_every": _step,
        "keep_activate_after_match": _stands,
        "dont_activate_after_match": _stands,
        "additional_keys": _names,
        "exclude_keys": _names,
        "is_greeting": _count,
        "ignore_on_max_context": _stands,
        "activate": _stands,
        "dont_activate": _stands,
    }
)
