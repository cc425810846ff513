"""Characters: who answers, as their bundles say, each with the template of its prompts.

A character's text is public: shared by all tenants in the cache. It is data that a template writes, never
a template itself. Never: a user's text, or where bundles are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from appliance.errors import InvalidBundle, InvalidRequest, NotFound, TemplateError
from appliance.prompt.bundle import BYTES_MAX, CHARACTER_FILE, TEMPLATES_FOLDER, Bundle
from appliance.prompt.cards.bundle import card_in
from appliance.prompt.cards.card import Card
from appliance.prompt.cards.charx import CARD_FILE
from appliance.prompt.cards.json_document import parse_document
from appliance.prompt.cards.macros import DEFAULT_USER, Expanded, Macros
from appliance.prompt.cards.texts import card_texts, macros_of, summary
from appliance.prompt.character_file import Character, read_character
from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.lorebook import Lorebook, read_lorebook
from appliance.prompt.settings import SamplingSettings, TruncationSettings
from appliance.prompt.templates.built_in import DEFAULT_TEMPLATE, built_in, of_cards
from appliance.prompt.templates.compiling import compile_template
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.lint import SAMPLE, refuse_errors
from appliance.prompt.templates.parts import Rendered
from appliance.prompt.templates.poet import POET_SUFFIXES
from appliance.prompt.templates.source import decoded, read_source
from appliance.prompt.templates.template import Template

NO_INPUTS: Mapping[str, Any] = MappingProxyType(
    {"user": "", "persona": "", "note": "", "pinned": ()}
)
"""What a conversation gives a template where its user has set nothing."""
SOME_INPUTS: Mapping[str, Any] = MappingProxyType(
    {"user": "Tom", "persona": "A sailor.", "note": "It rains.", "pinned": ("It is late.",)}
)
"""The same where everything is set: a template is tried with both."""
DEFAULT_CHARACTER = "assistant"
LOREBOOK_FILE = "lorebook.json"
"""A character's lorebook: V2's `character_book`, or V3's `lorebook_v3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterVersion:
    """A character with its compiled template, as one version of its bundle has them.

    `card` is the one it is made of, None when it has a file `character.yaml`. Its image and files stay in
    the bundle: they may be megabytes, and no prompt needs them. `text_bytes` are those of the files that
    are kept in it.
    """

    character: Character
    template: Template
    version: str
    lore: Lore = field(default_factory=Lore)
    card: Card | None = None
    has_portrait: bool = False
    text_bytes: int = 0

    @classmethod
    def of(cls, bundle: Bundle, *, origin: str | None = None) -> CharacterVersion:
        """Made from the files of a bundle alone, and tried out.

        `origin` is what errors call its character file. Raises InvalidBundle or TemplateError: a prompt
        that cannot be made is refused here, not in a chat.
        """
        if CHARACTER_FILE not in bundle.files and CARD_FILE in bundle.files:
            return cls._of_card(bundle, card_in(bundle))
        here = origin or f"{bundle.name}/{CHARACTER_FILE}"
        if CHARACTER_FILE not in bundle.files:
            raise InvalidBundle(f"{here}: there is no such file")
        character = read_character(bundle.files[CHARACTER_FILE], here)
        if character.id != bundle.name:
            raise InvalidBundle(f"{here}: id: {character.id!r} is not {bundle.name!r}")
        template = template_in(bundle, character, here)
        refuse_errors(template)
        try:
            for inputs in (NO_INPUTS, SOME_INPUTS):
                template.render({**inputs, **character.values()}, SAMPLE)
        except TemplateError as error:
            raise InvalidBundle(f"{here}: template: {error.message}") from error
        lore = Lore.of(_lorebooks(bundle), character.lore_placement)
        return cls(
            character=character,
            template=template,
            version=bundle.version,
            lore=lore,
            text_bytes=sum(map(len, bundle.files.values())),
        )

    @classmethod
    def _of_card(cls, bundle: Bundle, card: Card) -> CharacterVersion:
        """What lists show of a card is what it says in a sample conversation."""
        texts = card_texts(card, macros_of(card, SAMPLE))
        character = Character(
            id=bundle.name,
            name=card.name,
            description=summary(card, SAMPLE),
            system=texts.system,
            greeting=texts.greetings[0].text if texts.greetings else "",
        )
        made = cls(
            character=character,
            template=of_cards(),
            version=bundle.version,
            lore=Lore.of(card.lorebooks, card.lore_placement),
            card=replace(card, image=None, from_png=False, files={}),
            has_portrait=card.image is not None,
            text_bytes=len(bundle.files[CARD_FILE]),
        )
        made.render(SAMPLE)
        return made

    @property
    def members(self) -> tuple[CharacterVersion, ...]:
        """None: it is no group."""
        return ()

    @property
    def owners(self) -> Mapping[str, CharacterVersion]:
        """None: its lore is its own."""
        return {}

    @property
    def sampling(self) -> SamplingSettings:
        """What it settles of its replies."""
        return self.character.sampling

    @property
    def truncation(self) -> TruncationSettings:
        """What it settles of its cuts."""
        return self.character.truncation

    @property
    def called(self) -> str:
        """What {{char}} stands for."""
        return self.character.name if self.card is None else self.card.called

    @property
    def text_chars(self) -> int:
        """Characters of the card that a rendering reads."""
        return 0 if self.card is None else len(self.card.text)

    def says_last(self, speaker: str | None) -> bool:
        """What it says last is the same whoever replies: its own template has it."""
        return False

    def makes_the_same_as(self, other: CharacterVersion) -> bool:
        """Whether every prompt is the same with both: they differ in what readers alone are shown, or in
        nothing."""
        return self._makes() == other._makes()

    def _makes(self) -> tuple[object, ...]:
        own = self.character
        said = own.values() if self.card is None else self.card.said
        books = [book.book for book in self.lore.books]
        return (
            said,
            own.greeting,
            self.truncation,
            self.template.version,
            books,
            self.lore.placement,
        )

    def render(
        self,
        beginning: Beginning,
        *,
        user: str = DEFAULT_USER,
        inputs: Mapping[str, Any] = NO_INPUTS,
        speaker: str | None = None,
    ) -> Rendered:
        """The parts of the prompts of one conversation, whose user is called `user`; `inputs` are what
        the template may know besides the character.

        Public but for a card that says something of its own in each conversation. Raises TemplateError.
        """
        if self.card is None:
            return self.template.render({**inputs, **self.character.values()}, beginning)
        texts = card_texts(self.card, macros_of(self.card, beginning, user=user))
        shown = {
            **self.character.values()["character"],
            "system": texts.system,
            "post_history": texts.post_history_instructions.text,
            "examples": list(texts.examples),
        }
        rendered = self.template.render({**inputs, "character": shown}, beginning)
        if not texts.is_same_for_all:
            return rendered.private()
        if not texts.post_history_instructions.is_same_for_all:
            return replace(rendered, after=rendered.private().after)
        return rendered

    def macros(self, beginning: Beginning, *, user: str = DEFAULT_USER) -> Macros:
        """What macros in its lore stand for in one conversation."""
        if self.card is not None:
            return macros_of(self.card, beginning, user=user)
        return Macros(char=self.character.name, user=user, frozen=beginning)

    @property
    def greeting_sources(self) -> tuple[str, ...]:
        """What its greetings are made of: where it is the same in two versions, so are they."""
        if self.card is not None:
            return (*self.card.greetings, self.called) if self.card.greetings else ()
        return (self.character.greeting,) if self.character.greeting else ()

    def openings(
        self, beginning: Beginning, *, user: str = DEFAULT_USER
    ) -> tuple[tuple[str | None, Expanded], ...]:
        """Its greetings, spoken by nobody but itself."""
        return tuple((None, text) for text in self.greetings(beginning, user=user))

    def greetings(self, beginning: Beginning, *, user: str = DEFAULT_USER) -> tuple[Expanded, ...]:
        """The messages that a conversation may open with, the first of which is shown."""
        if self.card is not None:
            return card_texts(self.card, macros_of(self.card, beginning, user=user)).greetings
        if not self.character.greeting:
            return ()
        return (Expanded(text=self.character.greeting, is_same_for_all=True),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Characters:
    """One version of each character by its id, taken at one moment."""

    by_id: Mapping[str, CharacterVersion]

    @classmethod
    def of(cls, versions: Iterable[CharacterVersion]) -> Characters:
        """These versions; each has another character."""
        return cls(by_id={version.character.id: version for version in versions})

    def get(self, character_id: str | None) -> CharacterVersion:
        """One character, the default one for None; raises NotFound."""
        found = self.by_id.get(character_id or DEFAULT_CHARACTER)
        if found is None:
            raise NotFound(f"no character {character_id or DEFAULT_CHARACTER!r}", param="character")
        return found


def lorebook_document(bundle: Bundle) -> dict[str, Any] | None:
    """What stands in LOREBOOK_FILE, read as strictly as a card; None without one. Raises InvalidCard."""
    if LOREBOOK_FILE not in bundle.files:
        return None
    here = f"{bundle.name}/{LOREBOOK_FILE}"
    return parse_document(bundle.files[LOREBOOK_FILE], here, bytes_max=BYTES_MAX)[1]


def _lorebooks(bundle: Bundle) -> list[Lorebook]:
    try:
        document = lorebook_document(bundle)
        book = read_lorebook(document, path=f"{bundle.name}/{LOREBOOK_FILE}")
    except InvalidRequest as error:
        raise InvalidBundle(error.message, param=error.param) from error
    return [] if book is None else [book]


def template_in(bundle: Bundle, character: Character, here: str) -> Template:
    """The template that a character names, whatever lint says of it; `here` is its own file.

    Raises InvalidBundle for one that is not there, TemplateError for one that does not compile.
    """
    path = f"{TEMPLATES_FOLDER}{character.template}.yaml"
    source = bundle.files.get(path)
    if source is None:
        if character.template == DEFAULT_TEMPLATE:
            return built_in()
        raise no_template(here, character.template, bundle.files)

    def included(name: str) -> str | None:
        file = TEMPLATES_FOLDER + name
        content = bundle.files.get(file)
        return None if content is None else decoded(content, f"{bundle.name}/{file}")

    file = f"{bundle.name}/{path}"
    return compile_template(read_source(decoded(source, file), file, included))


def no_template(here: str, name: str, paths: Iterable[str]) -> InvalidBundle:
    """A character's template is not among the files at `paths`, or none that a character can have."""
    if name.endswith(POET_SUFFIXES):
        return InvalidBundle(
            f"{here}: template: {name!r} is a whole-file template; a character's has a front section "
            "and parts (docs/prompts.md)"
        )
    found = {path.removeprefix(TEMPLATES_FOLDER) for path in paths if path.startswith("templates/")}
    known = {DEFAULT_TEMPLATE, *(path.removesuffix(".yaml") for path in found if "/" not in path)}
    return InvalidBundle(
        f"{here}: template: there is no {name!r} (there are: {', '.join(sorted(known))})"
    )
