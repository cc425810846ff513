"""A character as its file `character.yaml` says it: the fields, their limits, and what is wrong with one.

Read as templates are: every plain scalar is text, no key stands twice, nothing is shared. Never: the
template, the lorebook or other files of its bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from appliance.errors import InvalidBundle, TemplateError
from appliance.prompt.bundle import NAME, NAME_WORDS
from appliance.prompt.field_faults import field_fault
from appliance.prompt.lore.placement import DEFAULT_PLACEMENT, Placement
from appliance.prompt.settings import (
    NO_SAMPLING,
    NO_TRUNCATION,
    SamplingSettings,
    TruncationSettings,
)
from appliance.prompt.templates.built_in import DEFAULT_TEMPLATE
from appliance.prompt.templates.faults import Place
from appliance.prompt.templates.yaml_text import Field, documents
from appliance.unstorable import UNSTORABLE

FILE_BYTES_MAX = 256 * 1024


class Character(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One character. An empty `system` leaves the model's own default; `greeting` opens a chat.

    `suggestions` are messages that a reader may begin with. `template` is the name of the one that
    the prompts of its conversations are made with. `post_history` stands after the newest message of
    every prompt; `lore_placement`: where the texts of its lorebook go. `sampling` and `truncation` are
    what its replies are chosen and its prompts cut with, where a request says nothing else.
    """

    id: str
    name: str
    description: str = ""
    system: str = ""
    greeting: str = ""
    suggestions: tuple[str, ...] = ()
    template: str = DEFAULT_TEMPLATE
    post_history: str = ""
    lore_placement: Placement = DEFAULT_PLACEMENT
    sampling: SamplingSettings = NO_SAMPLING
    truncation: TruncationSettings = NO_TRUNCATION

    def values(self) -> Mapping[str, Any]:
        """What templates know of it, as `character`."""
        shown = ("id", "name", "description", "system", "post_history")
        return {"character": {name: getattr(self, name) for name in shown}}


def read_character(source: bytes, here: str) -> Character:
    """The character in a YAML file that errors call `here`; raises InvalidBundle with line and field."""
    if len(source) > FILE_BYTES_MAX:
        raise InvalidBundle(f"{here}: larger than {FILE_BYTES_MAX} bytes")
    place = Place(file=here, line=1, of="character")
    try:
        fields = _fields(source, place)
        document = {name: field.texts() for name, field in fields.items()}
    except TemplateError as error:
        raise InvalidBundle(error.message) from error
    try:
        # All scalars are text, numbers too: those of settings are read as such.
        character = msgspec.convert(document, Character, strict=False)
    except msgspec.ValidationError as error:
        said = field_fault(error, Character)
        if said.startswith("model: there is no such field"):
            said = "model: an appliance serves one model, the same in all versions of a character"
        at = fields.get(re.split(r"[.:\[]", said)[0])
        where = here if at is None else f"{here}, line {at.place.line}"
        raise InvalidBundle(f"{where}: {said}") from error
    if NAME.match(character.id) is None:
        raise InvalidBundle(f"{here}: id: {character.id!r} is not {NAME_WORDS}")
    if not character.name.strip():
        raise InvalidBundle(f"{here}: name: is empty")
    for name, value in msgspec.structs.asdict(character).items():
        texts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(text, str) and UNSTORABLE.search(text) for text in texts):
            raise InvalidBundle(f"{here}: {name}: holds U+0000 or half of a character")
    return character


def _fields(source: bytes, place: Place) -> dict[str, Field]:
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise place.fault(f"not UTF-8: {error.reason}") from error
    found = documents(text, place)
    if len(found) != 1:
        raise place.fault(f"expected one YAML document, here are {len(found)}")
    return found[0].fields()
