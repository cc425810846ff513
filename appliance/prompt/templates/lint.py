"""What is wrong or costly in a template that compiles. Pure: a finding is data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from appliance.errors import TemplateError
from appliance.prompt.messages import Zone
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.inputs import Scope
from appliance.prompt.templates.parts import Rendered
from appliance.prompt.templates.template import PartCode, Template

SAMPLE = Beginning(seed=b"sample", started=datetime(2026, 1, 31, 12, tzinfo=UTC))
"""What lint and the command line freeze macros with."""

WINDOW_TOKENS = 8_000
"""The window that costs are stated for."""


class Level(Enum):
    """How bad a finding is: an error keeps a template from being used."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding; `sentence` names file, line, part and variable."""

    level: Level
    sentence: str


def findings(template: Template) -> list[Finding]:
    """Everything lint has to say of a template."""
    found = [*_volatile(template), *_private(template), *_unused(template)]
    return [*found, *_samples(template)]


def refuse_errors(template: Template) -> None:
    """Raise TemplateError with the first finding that is an error, if there is one."""
    for finding in findings(template):
        if finding.level is Level.ERROR:
            raise TemplateError(finding.sentence)


def _volatile(template: Template) -> Iterator[Finding]:
    """Text that changes each turn and stands before the history."""
    for index, part in enumerate(template.before):
        if part.scope is not Scope.TURN:
            continue
        turns = [n for n in sorted(part.names) if template.front.inputs[n].scope is Scope.TURN]
        named = ", ".join(f"`{name}`" for name in turns)
        after = len(template.before) - index - 1
        parts = "" if not after else f", the {after} part{'s' if after > 1 else ''} after it"
        yield _said(
            part,
            Level.ERROR,
            f"{named} may change with every turn and is written before the history: each change "
            f"makes the model compute this part{parts} and the whole history again instead of the new "
            f"message alone, up to {WINDOW_TOKENS:,} tokens a turn in a window of that size. Move it to "
            "a part of zone volatile, after the history",
        )


def _private(template: Template) -> Iterator[Finding]:
    for part in template.before:
        if part.zone in (Zone.STATIC, Zone.CHARACTER) and part.scope is Scope.CONVERSATION:
            private = sorted(
                name
                for name in part.names
                if template.front.inputs[name].scope is Scope.CONVERSATION
            )
            named = ", ".join(f"`{name}`" for name in private) or "a macro"
            yield _said(
                part,
                Level.WARNING,
                f"{named} belongs to one conversation, so zone {part.zone.value} is not shared between "
                "conversations from here on. Write the character's own text first, this in zone persona",
            )


def _unused(template: Template) -> Iterator[Finding]:
    for name in sorted(template.front.inputs.keys() - template.names):
        place = template.front.inputs[name].place
        yield Finding(level=Level.WARNING, sentence=place.said(f"input `{name}` is not used"))


def _samples(template: Template) -> Iterator[Finding]:
    """The parts rendered with the sample data, so that what fails only then is found before any chat."""
    samples = template.front.samples()
    missing = sorted(template.names - samples.keys())
    if missing:
        place = template.front.inputs[missing[0]].place
        named = ", ".join(f"`{name}`" for name in missing)
        sentence = f"no default and no sample for {named}: the parts cannot be tried out"
        yield Finding(level=Level.WARNING, sentence=place.said(sentence))
        return
    try:
        rendered = template.render(samples, SAMPLE)
    except TemplateError as error:
        yield Finding(level=Level.ERROR, sentence=error.message)
        return
    yield from _empty(template, rendered)


def _empty(template: Template, rendered: Rendered) -> Iterator[Finding]:
    empty = [item.name for item in rendered.parts if not item.content]
    for part in template.parts:
        if any(map(part.writes, empty)):
            yield _said(part, Level.WARNING, "with the sample data it is empty; give it an `if`")


def _said(part: PartCode, level: Level, sentence: str) -> Finding:
    return Finding(level=level, sentence=part.place.said(sentence))
