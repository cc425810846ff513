"""Where contents go in a chat format: one table for formats whose text depends on neighbours only.

Two layouts with one method `place`. `PairLayout` looks each message up by (role before, role): a new
turn costs a new turn. It is taken only when it predicts every probed shape. `WholeLayout` renders the
whole shape with sentinels and remembers it, for templates that look further. Never: contents.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Protocol

from appliance.prompt.chat_format import probe
from appliance.prompt.chat_format.probe import Placement, Reading, Refused, Shape, Slot
from appliance.prompt.chat_format.template_runner import Case, TemplateRunner
from appliance.prompt.messages import ROLES, Role

_SHAPES_MAX = 1024
_LENGTH_MAX = 3  # every sequence of roles up to this length is probed

_WITNESSES: tuple[tuple[Role, ...], ...] = (
    ("user", "assistant") * 4,
    ("user", "assistant", "user", "assistant", "user"),
    ("system", *(("user", "assistant") * 3), "user"),
    ("system", "user", "assistant", "user", "assistant"),
    ("assistant", "user", "assistant", "user"),
    ("user", "user", "assistant", "assistant", "user"),
    ("user", "assistant", "system", "user", "assistant", "user"),
    ("system", "assistant", "user", "user", "assistant"),
)
"""Longer sequences, so that a rule which looks further than one message shows itself."""

_COUNT_MAX = 100
"""A larger number in a template may count messages further than is probed."""
_NUMBERS_MAX = 32
_FAR = 2 * _COUNT_MAX + 3
"""Messages of a conversation that is probed for every template, whatever its numbers."""


class Layout(Protocol):
    """Places contents."""

    @property
    def may_run_process(self) -> bool:
        """Whether `place` runs the template for a shape that it has not seen."""
        ...

    def place(self, shape: Shape) -> Reading:
        """The slots of a shape, or the template's reason to refuse it.

        Where it runs the template: seconds of waiting, and ModelError past the template's limits.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLayout:
    """Slots by (role before, role), ends by (last role, header)."""

    slots: Mapping[tuple[Role | None, Role], Slot]
    ends: Mapping[tuple[Role, bool], str]
    refusals: Mapping[tuple[Role | None, Role | None], str]
    holes: WholeLayout | None = None
    """Set when an empty content changes more than its own place: lays out shapes that hold one."""

    @property
    def may_run_process(self) -> bool:
        """Where an empty content changes more than its own place."""
        return self.holes is not None

    def place(self, shape: Shape) -> Reading:
        """The slots of a shape: one look-up a message."""
        if shape.empty and self.holes is not None:
            return self.holes.place(shape)
        found: list[Slot] = []
        before: Role | None = None
        for role in shape.roles:
            slot = self.slots.get((before, role))
            if slot is None:
                return self._refused(before, role)
            found.append(slot)
            before = role
        assert before is not None
        after = self.ends.get((before, shape.header))
        if after is None:
            return self._refused(before, None)
        return Placement(slots=tuple(found), after=after)

    def _refused(self, before: Role | None, role: Role | None) -> Refused:
        return Refused(sentence=self.refusals.get((before, role), probe.MISPLACED))


@dataclass(slots=True, kw_only=True)
class WholeLayout:
    """Renders each new shape once with sentinels; remembers the last _SHAPES_MAX shapes."""

    runner: TemplateRunner
    texts: Sequence[str]
    """The template's constants, which the probed contents hold."""
    _known: OrderedDict[Shape, Reading] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def may_run_process(self) -> bool:
        """Always."""
        return True

    def place(self, shape: Shape) -> Reading:
        """The slots of a shape: one render of the shape the first time; raises ModelError."""
        with self._lock:
            known = self._known.get(shape)
            if known is not None:
                self._known.move_to_end(shape)
                return known
        case_list = probe.cases(shape, self.texts)
        reading = probe.read(shape, case_list, self.runner.render(case_list))
        with self._lock:
            self._known[shape] = reading
            if len(self._known) > _SHAPES_MAX:
                self._known.popitem(last=False)
        return reading


def derive_layout(runner: TemplateRunner) -> Layout | Refused:
    """Probe a template. Refused: it looks inside contents, measures them, or cannot hold a plain
    conversation.

    Raises ModelError when the template does not compile or goes past its limits.
    """
    texts, numbers = runner.constants()
    if len(numbers) > _NUMBERS_MAX:
        return Refused(sentence=f"the chat template has more than {_NUMBERS_MAX} different numbers")
    shapes = _probed_shapes()
    readings = _read_all(runner, shapes, texts)
    # Only what ends in a user's message is asked for a reply: a template may well stumble on others.
    for roles in (("user",), ("user", "assistant", "user")):
        reading = readings[Shape(roles=roles, header=True)]
        if isinstance(reading, Refused):
            return reading
    if any(isinstance(r, Refused) and r.looks_inside for r in readings.values()):
        return Refused(sentence=probe.LOOKS_INSIDE, looks_inside=True)
    pairs = None if any(n > _COUNT_MAX for n in numbers) else _pair_layout(readings)
    whole = WholeLayout(runner=runner, texts=texts)
    filled = _filled(readings, texts, numbers)
    counted = [] if pairs is None else _counted(pairs, numbers)
    holes = [] if pairs is None else _holes(readings)
    results = iter(runner.render([case for case, _ in (*filled, *counted, *holes)]))
    for (case, expected), result in zip(filled, results, strict=False):
        if result.text is None or probe.gaps(case, result.text) != expected:
            return Refused(sentence=probe.LOOKS_INSIDE, looks_inside=True)
    if pairs is None:
        return whole
    if any(next(results).text != text for _, text in counted):
        return whole
    return (
        pairs
        if all(next(results).text == text for _, text in holes)
        else replace(pairs, holes=whole)
    )


def _probed_shapes() -> list[Shape]:
    sequences = [
        roles for length in range(1, _LENGTH_MAX + 1) for roles in product(ROLES, repeat=length)
    ]
    sequences += _WITNESSES
    # Shortest first: the table then keeps the sentence of the simplest refusal.
    return [Shape(roles=roles, header=header) for roles in sequences for header in (False, True)]


def _read_all(
    runner: TemplateRunner, shapes: Sequence[Shape], texts: Sequence[str]
) -> dict[Shape, Reading]:
    case_lists = [probe.cases(shape, texts) for shape in shapes]
    results = iter(runner.render([case for cases in case_lists for case in cases]))
    return {
        shape: probe.read(shape, cases, [next(results) for _ in cases])
        for shape, cases in zip(shapes, case_lists, strict=True)
    }


def _filled(
    readings: Mapping[Shape, Reading], texts: Sequence[str], numbers: Sequence[int]
) -> list[tuple[Case, tuple[str, ...]]]:
    """Contents framed by each text of the template and as long as each number, and the gaps that must
    come back."""
    filled = []
    for shape in (
        Shape(roles=("user", "assistant", "user"), header=True),
        Shape(roles=("system", "user", "assistant"), header=False),
    ):
        reading = readings[shape]
        if isinstance(reading, Placement):
            gaps = (*(slot.before for slot in reading.slots), reading.after)
            cases = (*probe.framed(shape, texts), *probe.sized(shape, numbers))
            filled += [(case, gaps) for case in cases]
    return filled


def _counted(table: PairLayout, numbers: Sequence[int]) -> list[tuple[Case, str | None]]:
    """Conversations of as many messages as each number, and what the table makes of them.

    A number may count messages (n) or those of one role (2 n), and be met or passed.
    """
    counts = {_FAR} | {count for n in numbers for m in (n, 2 * n) for count in range(m - 1, m + 3)}
    counted: list[tuple[Case, str | None]] = []
    for count in sorted(counts):
        if count < 1:
            continue
        turns: list[Role] = [("user", "assistant")[index % 2] for index in range(count)]
        users: list[Role] = ["user"] * count
        for roles in (turns, ["system", *turns], users):
            shape = Shape(roles=tuple(roles), header=roles[-1] == "user")
            case = probe.cases(shape, ())[0]
            counted.append((case, _written(table.place(shape), case)))
    return counted


def _written(reading: Reading, case: Case) -> str | None:
    """The text of a case whose contents are not trimmed; None when it is refused."""
    if isinstance(reading, Refused):
        return None
    slots = zip(reading.slots, case.messages, strict=True)
    return "".join(slot.before + content for slot, (_, content) in slots) + reading.after


def _pair_layout(readings: Mapping[Shape, Reading]) -> PairLayout | None:
    """The table, when neighbours alone explain every reading; else None."""
    slots: dict[tuple[Role | None, Role], Slot] = {}
    ends: dict[tuple[Role, bool], str] = {}
    for shape, reading in readings.items():
        if isinstance(reading, Refused):
            continue
        for pair, slot in zip(_pairs(shape.roles), reading.slots, strict=True):
            if slots.setdefault(pair, slot) != slot:
                return None
        end = (shape.roles[-1], shape.header)
        if ends.setdefault(end, reading.after) != reading.after:
            return None
    refusals: dict[tuple[Role | None, Role | None], str] = {}
    table = PairLayout(slots=slots, ends=ends, refusals=refusals)
    for shape, reading in readings.items():
        predicted = table.place(shape)
        if isinstance(reading, Placement):
            assert predicted == reading
            continue
        if isinstance(predicted, Placement):
            return None
        missing = next((pair for pair in _pairs(shape.roles) if pair not in slots), None)
        refusals.setdefault(missing or (shape.roles[-1], None), reading.sentence)
    return table


def _pairs(roles: Sequence[Role]) -> list[tuple[Role | None, Role]]:
    return list(zip((None, *roles), roles, strict=False))


def _holes(readings: Mapping[Shape, Reading]) -> list[tuple[Case, str | None]]:
    """Shapes with one empty content each, and their text if nothing else changes by it."""
    holes: list[tuple[Case, str | None]] = []
    for shape, reading in readings.items():
        if isinstance(reading, Refused) or len(shape.roles) > _LENGTH_MAX:
            continue
        for index in range(len(shape.roles)):
            hole = replace(shape, empty=frozenset({index}))
            case = probe.cases(hole, ())[0]
            holes.append((case, _written(reading, case)))
    return holes
