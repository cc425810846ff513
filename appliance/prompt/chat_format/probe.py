"""Finds out what a chat template puts around contents, by rendering sentinels in their place.

Owns the sentinels and the comparison of what comes back. A template passes when every content, plain,
padded with white space, awkward, framed by the template's own texts or as long as its numbers, comes
back verbatim (or trimmed) between the same texts. Never: tokens, or which layout follows (`layout`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.prompt.chat_format.template_runner import Case, Rendered
from appliance.prompt.messages import Role

# Two padded variants with different outer characters, so that a template which strips only newlines
# or only spaces shows itself. Left and right pads differ in length, so that what was kept is told
# apart by length alone.
_PADS = (("\n \t", " \t  \n"), (" \n\t", "\t\n   "))
_CONSTANT_CHARS_MAX = 4000
_FILLERS = ("x", " x", "\nx")  # makes a content of so many characters, words or lines
_FEW = 256
_SIZE_MAX = 32 * 1024  # a template that measures more than that is not found out
_SIZES = (79, 80, 255, 4096)
"""Probed for every template: what filters measure that are given no number, and a long content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All of a request that a template may look at: roles, which contents are empty, and whether
    the header of a reply is asked for."""

    roles: tuple[Role, ...]
    header: bool
    empty: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The text in front of a content, and whether the template trims the content."""

    before: str
    trim_left: bool
    trim_right: bool

    def trimmed(self, content: str) -> str:
        """The content as the template places it."""
        if self.trim_left:
            content = content.lstrip()
        return content.rstrip() if self.trim_right else content


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the contents of one shape go: a slot each, and the text after the last."""

    slots: tuple[Slot, ...]
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The template does not take this shape; `sentence` says why."""

    sentence: str
    broken_line: int | None = None
    looks_inside: bool = False


Reading = Placement | Refused

MISPLACED = "the chat template does not place the content of every message once and in order"
LOOKS_INSIDE = "the chat template looks inside the contents of messages"


def _core(index: int) -> str:
    # Private-use characters hold the place; the letters show a change of case.
    return f"\ue000aZ{index}\ue001"


def _awkward(index: int, constants: str) -> str:
    return f"\ue000aZ{index}'\"\\ <b>&amp;\n{{{{ 7*7 }}}} %}} {constants} \ue001"


def _case(shape: Shape, content: Callable[[int], str]) -> Case:
    messages = tuple(
        (role, "" if index in shape.empty else content(index))
        for index, role in enumerate(shape.roles)
    )
    return Case(messages=messages, add_generation_prompt=shape.header)


def cases(shape: Shape, constants: Sequence[str]) -> list[Case]:
    """What to render to read a shape: plain, two padded, awkward."""
    flat = " ".join(constants)[:_CONSTANT_CHARS_MAX]
    return [
        _case(shape, _core),
        *(_case(shape, lambda i, p=pad: p[0] + _core(i) + p[1]) for pad in _PADS),  # type: ignore[misc]
        _case(shape, lambda i: _awkward(i, flat)),
    ]


def framed(shape: Shape, constants: Sequence[str]) -> list[Case]:
    """One case for each constant of the template, around every content."""
    words = [word for word in {constant.strip() for constant in constants} if word]
    return [_case(shape, lambda i, w=word: w + _core(i) + w) for word in sorted(words)]  # type: ignore[misc]


def sized(shape: Shape, numbers: Sequence[int]) -> list[Case]:
    """Cases with contents of as many characters, words and lines as each number, and of more."""
    near = {size for n in (*numbers, *_SIZES) for size in (n - 1, n, n + 1)}
    near |= {
        2 * n + 1 for n in numbers if n <= _FEW
    }  # a filter may leave some room above its number
    return [
        _case(shape, lambda i, s=size, f=filler: chr(0xE100 + i) + f * (s - 1))  # type: ignore[misc]
        for size in sorted(near)
        if 0 < size <= _SIZE_MAX
        for filler in (_FILLERS if size <= _FEW else _FILLERS[:1])
    ]


def read(shape: Shape, case_list: Sequence[Case], results: Sequence[Rendered]) -> Reading:
    """The placement that the renderings of `cases(shape)` agree on."""
    texts: list[str] = []
    for result in results:
        if result.text is None:
            sentence = result.refusal or f"template error: {result.error}"
            return Refused(sentence=sentence, broken_line=result.line)
        texts.append(result.text)
    plain = gaps(case_list[0], texts[0])
    if plain is None:
        return Refused(sentence=MISPLACED)
    pads = [_pads_kept(shape, plain, case_list[i], texts[i], _PADS[i - 1]) for i in (1, 2)]
    if pads[0] is None or pads[0] != pads[1] or gaps(case_list[3], texts[3]) != plain:
        return Refused(sentence=LOOKS_INSIDE, looks_inside=True)
    slots = tuple(
        Slot(before=before, trim_left=not left, trim_right=not right)
        for before, (left, right) in zip(plain, pads[0], strict=False)
    )
    return Placement(slots=slots, after=plain[-1])


def gaps(case: Case, text: str) -> tuple[str, ...] | None:
    """The texts before, between and after the contents; None unless each is there once, in order.

    An empty content takes no place: the gap in front of it is empty and the next one holds all.
    """
    found: list[str] = []
    start = 0
    for _, content in case.messages:
        if not content:
            found.append("")
            continue
        if text.count(content) != 1:
            return None
        at = text.find(content, start)
        if at < 0:
            return None
        found.append(text[start:at])
        start = at + len(content)
    return (*found, text[start:])


def _pads_kept(
    shape: Shape, plain: Sequence[str], case: Case, text: str, pad: tuple[str, str]
) -> tuple[tuple[bool, bool], ...] | None:
    """For each content, whether its (left, right) pad came back; None when only partly or changed."""
    cores = Case(
        messages=tuple((role, content.strip()) for role, content in case.messages),
        add_generation_prompt=case.add_generation_prompt,
    )
    padded = gaps(cores, text)
    if padded is None:
        return None
    left_pad, right_pad = pad
    kept: list[list[bool]] = [[False, False] for _ in shape.roles]
    last: int | None = None  # the content in front of this gap
    for index, (bare, seen) in enumerate(zip(plain, padded, strict=True)):
        if index in shape.empty:
            continue
        extra = len(seen) - len(bare)
        right = last is not None and extra in (len(right_pad), len(right_pad) + len(left_pad))
        left = index < len(shape.roles) and extra in (
            len(left_pad),
            len(right_pad) + len(left_pad),
        )
        if seen != (right_pad if right else "") + bare + (left_pad if left else ""):
            return None
        if last is not None:
            kept[last][1] = right
        if index < len(shape.roles):
            kept[index][0] = left
            last = index
    return tuple((left, right) for left, right in kept)
