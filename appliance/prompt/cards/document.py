"""From a card's JSON document to the value: which version it is, which fields count, what is tolerated.

Fields that reach a prompt or the reader as text must be text; a flaw in any other field is a warning,
for the document is kept as it is. Never: bytes of files, or what a prompt makes of the fields.

Formats: character-card-spec-v2 (spec_v1.md, spec_v2.md) and character-card-spec-v3 (SPEC_V3.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from appliance.errors import InvalidCard, InvalidRequest
from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.json_document import parse_document
from appliance.prompt.lore.lorebook import Lorebook, read_lorebook
from appliance.prompt.lore.placement import DEFAULT_PLACEMENT, Placement
from appliance.unstorable import UNSTORABLE

NAME_CHARS_MAX = 128
TEXT_CHARS_MAX = 256 * 1024
GREETINGS_MAX = 64
TAGS_MAX = 256
SHOWN_NUMBER_MAX = 10**15
UNNAMED = "Unnamed"
"""`prompt.lore.books.Placement`; the first without a wish."""

V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
_V1_MARKS = V1_FIELDS[1:]
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def read_document(
    data: bytes,
    *,
    where: str,
    files: Mapping[str, bytes] | None = None,
) -> Card:
    """The card of a JSON document; raises InvalidCard naming the field. `where` names the document."""
    text, document = parse_document(data, where)
    version, root, said = _version_of(document, where)
    fields = _Fields(root, "" if version is Version.V1 else "data.")
    books = () if version is Version.V1 else _lorebooks(document, root, said)
    if root is not document:
        outer = document.get("name")
        if isinstance(outer, str) and isinstance(root.get("name"), str) and outer != root["name"]:
            said.append("name: it differs from data.name, which is used")
    name = fields.text("name", NAME_CHARS_MAX).strip()
    nickname = fields.text("nickname", NAME_CHARS_MAX).strip() if version is Version.V3 else ""
    if not name:
        said.append(f"{fields.at('name')}: it is empty; the card is called {nickname or UNNAMED}")
    return Card(
        version=version,
        text=text,
        name=name or nickname or UNNAMED,
        nickname=nickname,
        description=fields.text("description"),
        personality=fields.text("personality"),
        scenario=fields.text("scenario"),
        greeting=fields.text("first_mes"),
        alternate_greetings=fields.texts("alternate_greetings"),
        group_only_greetings=fields.texts("group_only_greetings"),
        examples=fields.text("mes_example"),
        system_prompt=fields.text("system_prompt"),
        post_history_instructions=fields.text("post_history_instructions"),
        lorebooks=books,
        creator=fields.shown("creator"),
        creator_notes=fields.shown("creator_notes"),
        character_version=fields.shown("character_version"),
        tags=fields.shown_list("tags"),
        lore_placement=DEFAULT_PLACEMENT if version is Version.V1 else fields.lore_placement(),
        files=files or {},
        warnings=(*said, *fields.warnings),
    )


def _version_of(document: dict[str, Any], where: str) -> tuple[Version, dict[str, Any], list[str]]:
    """(version, the object with the fields, warnings)."""
    spec = document.get("spec")
    data = document.get("data")
    if spec is None and isinstance(data, dict) and any(name in data for name in V1_FIELDS):
        return Version.V2, data, ["spec: it is missing; the card is read as V2"]
    if spec is None:
        if "name" not in document or not any(name in document for name in _V1_MARKS):
            raise InvalidCard(
                f"{where}: no character card: neither `spec` nor the fields `name` and `description`",
                param="spec",
            )
        return Version.V1, document, []
    found = next((version for version in Version if version.spec and version.spec == spec), None)
    if found is None:
        known = ", ".join(version.spec for version in Version if version.spec)
        raise InvalidCard(f"spec: {str(spec)[:80]!r} is none of {known}", param="spec")
    if not isinstance(data, dict):
        raise InvalidCard("data: expected an object", param="data")
    return found, data, _newer(document.get("spec_version"), found)


def _newer(given: Any, version: Version) -> list[str]:
    """V3: a version is compared as a number, and a newer one is read with a warning."""
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return [f"spec_version: it is no number; the card is read as {version.value}.0"]
    if number > float(version.value):
        return [
            f"spec_version: the card is of a newer version ({str(given)[:20]}) than is known here "
            f"({version.value}.0); what is new in it is kept, and not used"
        ]
    return []


def _lorebooks(
    document: dict[str, Any], root: dict[str, Any], said: list[str]
) -> tuple[Lorebook, ...]:
    """The card's lorebook; null is none, and one beside `data` in place of in it is found."""
    path = "data.character_book"
    value = root.get("character_book")
    if value is None and root is not document and document.get("character_book") is not None:
        path, value = "character_book", document["character_book"]
        said.append(f"{path}: it stands beside `data` and not in it; it is used all the same")
    try:
        book = read_lorebook(value, path=path)
    except InvalidRequest as error:
        raise InvalidCard(error.message, param=error.param) from error
    return () if book is None else (book,)


class _Fields:
    """The fields of one object, read with the tolerance that cards in the wild need."""

    def __init__(self, root: dict[str, Any], prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self.warnings: list[str] = []

    def at(self, name: str) -> str:
        """The field's path in the document."""
        return self._prefix + name

    def text(self, name: str, chars_max: int = TEXT_CHARS_MAX) -> str:
        """A text that a prompt may hold; absent and null are empty."""
        return _checked(self._root.get(name), self.at(name), chars_max)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of such texts; absent, null and '' are an empty list."""
        value = self._root.get(name)
        if value is None or value == "":
            return ()
        path = self.at(name)
        if not isinstance(value, list):
            raise InvalidCard(f"{path}: expected a list of texts", param=path)
        if len(value) > GREETINGS_MAX:
            raise InvalidCard(
                f"{path}: {len(value)} texts, the limit is {GREETINGS_MAX}", param=path
            )
        return tuple(
            _checked(item, f"{path}[{index}]", TEXT_CHARS_MAX) for index, item in enumerate(value)
        )

    def shown(self, name: str) -> str:
        """A text for the reader alone; a number is taken as its text, all else is a warning."""
        value = self._root.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value) if abs(value) < SHOWN_NUMBER_MAX else value
        if value is None:
            return ""
        try:
            return _checked(value, self.at(name), TEXT_CHARS_MAX)
        except InvalidCard as error:
            self.warnings.append(f"{error.message}; it is kept, and not shown")
            return ""

    def shown_list(self, name: str) -> tuple[str, ...]:
        """Texts for the reader alone; what is no text is left out with a warning."""
        value = self._root.get(name)
        if value is None or value == "":
            return ()
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(texts) < len(value) or len(texts) > TAGS_MAX:
            self.warnings.append(
                f"{self.at(name)}: expected at most {TAGS_MAX} texts; all are kept, not all shown"
            )
        return tuple(text for text in texts[:TAGS_MAX] if UNSTORABLE.search(text) is None)

    def lore_placement(self) -> Placement:
        """What the card asks of this program: `extensions.appliance.lore_placement`."""
        more = self._root.get("extensions")
        own = more.get("appliance") if isinstance(more, dict) else None
        asked = own.get("lore_placement") if isinstance(own, dict) else None
        if asked is None:
            return DEFAULT_PLACEMENT
        if asked in [choice.value for choice in Placement]:
            return Placement(asked)
        self.warnings.append(
            f"{self.at('extensions.appliance.lore_placement')}: expected one of "
            f"{', '.join(Placement)}; the lore is {DEFAULT_PLACEMENT}"
        )
        return DEFAULT_PLACEMENT


def _checked(value: Any, path: str, chars_max: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidCard(f"{path}: expected text", param=path)
    if len(value) > chars_max:
        raise InvalidCard(f"{path}: {len(value)} characters, the limit is {chars_max}", param=path)
    if "\x00" in value:
        raise InvalidCard(f"{path}: text must not contain U+0000", param=path)
    if _HALF_PAIR.search(value) is not None:
        raise InvalidCard(f"{path}: text holds half of a surrogate pair", param=path)
    return value
