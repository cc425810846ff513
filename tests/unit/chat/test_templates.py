"""Turns of characters with templates of their own: what the model reads, turn after turn."""

from __future__ import annotations

from hashlib import sha256

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.prompt_view import PromptView
from appliance.chat.turn import Turns
from appliance.errors import TemplateError
from appliance.prompt.character_file import Character
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.messages import Zone
from appliance.prompt.templates.compiling import template_of
from appliance.tokens import unpack
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.formats import written

_INPUTS = "inputs:\n  character: {type: map, scope: character}\n---\n"
_SYSTEM = "- {name: who, zone: character, role: system, content: '{{ character.system }}'}\n"
_LUCK = "- {name: luck, zone: persona, role: system, content: 'Luck {{ roll(1000000) }}.'}\n"
_BROKEN = "- {name: b, zone: persona, role: system, content: '{{ [1][roll(9)] }}'}\n"
_HISTORY = "- {name: history, zone: history}\n"
_NOTE = "- {name: note, zone: volatile, role: system, content: 'Stay {{ character.name }}.'}\n"


def _version(name: str, shown: str, parts: str) -> CharacterVersion:
    return CharacterVersion(
        character=Character(id=name, name=shown, system=f"You are {shown}."),
        template=template_of(f"name: {name}\n" + _INPUTS + parts, name),
        version=sha256(name.encode()).hexdigest(),
    )


CHARACTERS = Characters.of(
    (
        _version("lucky", "Lu", _SYSTEM + _LUCK + _HISTORY),
        _version(
            "broken", "Br", _BROKEN + _HISTORY
        ),  # never tried out, as `CharacterVersion.of` does
        _version("noted", "No", _SYSTEM + _HISTORY + _NOTE),
    )
)


@pytest.fixture
def characters() -> Characters:
    return CHARACTERS


def read_by(model: ModelText, engine: ScriptedEngine) -> list[str]:
    """Every prompt that the engine was given, control tokens written out."""
    return [written(model.chat_format, unpack(asked.token_ids)) for asked in engine.generated]


async def test_a_characters_template_makes_the_front_the_same_in_every_turn(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    fronts = set()
    for _ in range(2):
        opened = await conversations.open(tenant=TENANT, character="lucky")
        engine.script = vocabulary.script("one")
        for text in ("first", "second"):
            await read(send(turns, opened.conversation_id, text))
        first, second = read_by(model, engine)[-2:]
        assert "You are Lu." in first
        front = first[: first.index("first")]
        assert "Luck " in front
        assert second.startswith(front)
        fronts.add(front)
        # The operator's text is public; the draw belongs to the conversation.
        (namespace, tokens), *private = engine.generated[-1].stretches
        public = written(model.chat_format, unpack(engine.generated[-1].token_ids)[:tokens])
        assert namespace == b"public"
        assert "You are Lu." in public
        assert "Luck" not in public
        assert {owner for owner, _ in private} == {b"tenant:anna"}
    assert len(fronts) == 2


async def test_a_volatile_part_follows_the_newest_message_and_no_other(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    opened = await conversations.open(tenant=TENANT, character="noted")
    engine.script = vocabulary.script("one")
    for text in ("first", "second", "third"):
        _, _, done = await read(send(turns, opened.conversation_id, text))
    for text, prompt in zip(("first", "second", "third"), read_by(model, engine), strict=True):
        assert prompt.count("Stay No.") == 1
        assert prompt.index(text) < prompt.index("Stay No.")
        assert prompt.index("You are No.") < prompt.index("first")
    assert done.message is not None
    again = await PromptView(turns.prompts).prompt_of(
        tenant=TENANT,
        conversation_id=opened.conversation_id,
        message_id=done.message.message_id,
    )
    assert again.token_ids == engine.generated[-1].token_ids
    assert [(part.name, part.zone) for part in again.parts if part.zone is Zone.VOLATILE] == [
        ("note", Zone.VOLATILE),
        ("reply header", Zone.VOLATILE),
    ]


async def test_a_template_that_fails_is_told_to_the_operator_and_stores_nothing(
    turns: Turns,
    conversations: Conversations,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = await conversations.open(tenant=TENANT, character="broken")
    with pytest.raises(TemplateError) as caught:
        await read(send(turns, opened.conversation_id, "first"))
    assert caught.value.message == "the character's template cannot be rendered"
    (record,) = [record for record in caplog.records if record.message == "template_failed"]
    assert "broken, line 5, part `b`" in record.reason  # type: ignore[attr-defined]
    kept = await conversations.messages(tenant=TENANT, conversation_id=opened.conversation_id)
    assert kept == ()
