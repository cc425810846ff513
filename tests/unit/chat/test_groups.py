"""Several characters in one conversation, over a real engine: who speaks, and that it costs no prefix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.prompt_view import PromptView
from appliance.chat.running import RunningTurns
from appliance.chat.speakers import speaker_for
from appliance.chat.turn import Turns
from appliance.errors import InvalidRequest, NotFound
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.bundle import card_bundle
from appliance.prompt.cards.reading import read_card
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.groups import Group
from appliance.prompt.templates.lint import SAMPLE
from appliance.store.ledger import Ledger
from appliance.store.records import Persona, Scene
from appliance.tokens import count, unpack
from appliance.wire.client import EngineClient
from appliance.wire.frames import Generate, Sampling
from tests.card_fixtures import encoded, v2, v3
from tests.characters import bundle_of, characters_of
from tests.unit.chat.driver import TENANT, read
from tests.unit.chat.test_over_a_real_engine import (
    NOW,
    SHORT,
    client,
    directory,
    engine_socket,
    sent,
)
from tests.unit.prompt.formats import written

__all__ = ["client", "directory", "engine_socket", "sent"]


def card(name: str, character_id: str, **fields: Any) -> Bundle:
    return card_bundle(read_card(encoded(v3(name=name, **fields))), character_id)


BOOK = {"entries": [{"keys": ["rain"], "content": "{{char}} likes rain.", "extensions": {}}]}
MIRA = card("Mira Vale", "mira", system_prompt="Mira keeps a lamp.", first_mes="Who is there?")
BEN = card(
    "Ben",
    "ben",
    system_prompt="Ben rows a boat.",
    group_only_greetings=["Ben waves to {{user}}.", " "],
    character_book=BOOK,
)
CAT = card("Cat", "cat", system_prompt="Cat sleeps.", post_history_instructions="Purr.")


@pytest.fixture
def characters() -> Characters:
    return characters_of(bundle_of("assistant", system="Be brief."), MIRA, BEN, CAT)


@pytest.fixture
def turns(ledger: Ledger, client: EngineClient, directory: Path, catalog: Catalog) -> Turns:
    return turns_of(ledger, client, directory, catalog)


def turns_of(ledger: Ledger, client: EngineClient, directory: Path, catalog: Catalog) -> Turns:
    """A chat layer as after a restart of the server."""
    return Turns(
        ledger=ledger,
        running=RunningTurns(),
        engine=client,
        model=ModelText.load(directory, now=NOW),
        catalog=catalog,
        limits=ChatLimits(),
    )


class Chat:
    """A group, and what its turns were asked."""

    def __init__(self, turns: Turns, opened: UUID, directory: Path) -> None:
        self.turns, self.opened = turns, opened
        self.chat_format = ModelText.load(directory, now=NOW).chat_format

    async def say(self, text: str, speaker: str | None = None) -> tuple[int, int, str | None]:
        """(prompt, hit, speaker) of a turn."""
        events = self.turns.send(
            tenant=TENANT,
            conversation_id=self.opened,
            text=text,
            parent=await self.head(),
            turn_key=None,
            params=SHORT,
            speaker=speaker,
        )
        started, _, done = await read(events)
        assert done.message is not None
        assert done.message.speaker == started.speaker
        return started.prompt_tokens, started.prefix_hit_tokens, started.speaker

    async def head(self) -> UUID | None:
        held = await self.turns.planner.paths.ledger.get(TENANT, self.opened)
        return held.head_id

    async def prompt(self) -> str:
        head = await self.head()
        assert head is not None
        prompt = await PromptView(self.turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=self.opened, message_id=head
        )
        return written(self.chat_format, unpack(prompt.token_ids))


async def opened_with(
    turns: Turns,
    conversations: Conversations,
    directory: Path,
    members: Sequence[str],
    scene: Scene | None = None,
) -> Chat:
    opened = await conversations.open(tenant=TENANT, members=members, scene=scene)
    return Chat(turns, opened.conversation_id, directory)


async def test_the_prefix_is_found_whoever_speaks_and_only_what_is_new_is_sent(
    turns: Turns, conversations: Conversations, directory: Path, sent: list[Generate]
) -> None:
    chat = await opened_with(turns, conversations, directory, ["mira", "ben"])
    covered, spoke = 0, []
    for text in ("Hello all", "And you, Ben?", "Mira!", "What now", "and then", "Ben, ben, mira"):
        tokens, hit, speaker = await chat.say(text)
        spoke.append(speaker)
        # All of the turn before: prompt and reply.
        assert hit >= covered
        covered = tokens + 8
    assert spoke == ["mira", "ben", "mira", "ben", "mira", "ben"]
    assert [frame.after is None for frame in sent] == [True] + [False] * 5
    text = await chat.prompt()
    assert text.index("About Mira Vale:\nMira keeps a lamp.") < text.index("About Ben:\nBen rows")
    assert text.count("Mira keeps a lamp.") == text.count("Ben rows a boat.") == 1
    assert "User speaks. Mira Vale answers.<|im_end|>\n<|im_start|>user\nHello all" in text
    assert "User speaks. Ben answers.<|im_end|>\n<|im_start|>user\nAnd you, Ben?" in text


async def test_a_restarted_server_and_another_speaker_of_a_reply_find_the_same_prefix(
    turns: Turns,
    conversations: Conversations,
    ledger: Ledger,
    client: EngineClient,
    directory: Path,
    catalog: Catalog,
    sent: list[Generate],
) -> None:
    chat = await opened_with(turns, conversations, directory, ["mira", "ben"])
    await chat.say("Hello all", speaker="ben")
    tokens, _, _ = await chat.say("Tell me more", speaker="mira")
    head, before = await chat.head(), await chat.prompt()
    swipe = turns.regenerate(
        tenant=TENANT, conversation_id=chat.opened, message_id=head, params=SHORT, speaker="ben"
    )
    started, _, _ = await read(swipe)
    assert started.speaker == "ben"
    after = await chat.prompt()
    shared = before[: before.index("User speaks. Mira Vale answers.")]
    assert after == shared + before[len(shared) :].replace("Mira Vale answers", "Ben answers")
    # Nothing but the line, the message behind it and the reply's header is computed.
    line = count(turns.planner.builder.model.tokenizer.encode(before[len(shared) :]))
    assert started.prefix_hit_tokens >= tokens - line
    again = turns.regenerate(
        tenant=TENANT, conversation_id=chat.opened, message_id=None, params=SHORT
    )
    same, _, _ = await read(again)
    assert same.speaker == "ben"
    assert same.prefix_hit_tokens == same.prompt_tokens - 1
    # What the head's branch said is what goes on, also where nothing is known of it.
    chat.turns = turns_of(ledger, client, directory, catalog)
    tokens, hit, speaker = await chat.say("Go on")
    assert (speaker, sent[-1].after) == ("mira", None)
    assert hit >= same.prompt_tokens + 8
    assert (await chat.prompt()).startswith(after)


async def test_what_a_member_says_last_stands_behind_its_own_turns_alone(
    turns: Turns, conversations: Conversations, directory: Path
) -> None:
    chat = await opened_with(turns, conversations, directory, ["mira", "cat"])
    tokens = {}
    for speaker in ("mira", "cat", "mira", "mira"):
        found = await chat.say("Hello", speaker=speaker)
        tokens[speaker] = found
        text = await chat.prompt()
        assert text.endswith("<|im_start|>assistant\n")
        assert ("Purr." in text) == (speaker == "cat")
    prompt, hit, _ = tokens["mira"]
    assert hit > prompt // 2


async def test_a_group_opens_with_what_cards_have_for_groups_and_lore_is_its_owners(
    turns: Turns, conversations: Conversations, directory: Path, ledger: Ledger
) -> None:
    scene = Scene(persona=Persona(name="Tom"))
    chat = await opened_with(turns, conversations, directory, ["mira", "ben"], scene)
    (greeting,) = await ledger.messages(TENANT, chat.opened)
    assert (greeting.text, greeting.speaker) == ("Ben waves to Tom.", "ben")
    _, _, speaker = await chat.say("It will rain")
    assert speaker == "mira", "the one after whom spoke last"
    text = await chat.prompt()
    assert "Ben speaks.<|im_end|>\n<|im_start|>assistant\nBen waves to Tom." in text
    assert "Ben likes rain.\n\nTom speaks. Mira Vale answers.<|im_end|>" in text
    alone = await opened_with(turns, conversations, directory, ["mira", "cat"])
    (greeting,) = await ledger.messages(TENANT, alone.opened)
    assert (greeting.text, greeting.speaker) == ("Who is there?", "mira")


async def test_a_member_joins_or_leaves_and_keeps_its_version(
    turns: Turns, conversations: Conversations, directory: Path, catalog: Catalog
) -> None:
    chat = await opened_with(turns, conversations, directory, ["mira", "ben"])
    await chat.say("Hello", speaker="ben")
    held = await conversations.get(tenant=TENANT, conversation_id=chat.opened)
    new = CharacterVersion.of(card("Ben", "ben", system_prompt="Ben flies."))
    others = [one for name, one in catalog.current.by_id.items() if name != "ben"]
    ben = catalog.current.by_id["ben"]
    catalog._keep(ben)
    catalog._current = Characters.of([*others, new])
    scene = conversations.with_members(held, held.scene, ["mira", "ben", "cat"])
    changed = await conversations.change(held, scene=scene)
    assert changed.recompute_tokens > 0
    held = changed.conversation
    await chat.say("And now?", speaker="cat")
    text = await chat.prompt()
    assert "About Cat:" in text
    assert "Ben rows a boat." in text
    alone = conversations.with_members(held, held.scene, [])
    await conversations.change(held, scene=alone)
    _, _, speaker = await chat.say("You alone")
    assert speaker is None
    assert "About" not in await chat.prompt()
    with pytest.raises(InvalidRequest, match="one character"):
        await chat.say("Ben?", speaker="ben")


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (["mira"], "2 to 8"),
        (["mira", "mira"], "different"),
        (["mira", "ben", "cat"] * 3, "2 to 8"),
    ],
)
async def test_what_is_no_group_is_refused_and_opens_nothing(
    conversations: Conversations, members: list[str], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        await conversations.open(tenant=TENANT, members=members)
    assert await conversations.list(tenant=TENANT, limit=9) == ()
    with pytest.raises(NotFound, match="nobody"):
        await conversations.open(tenant=TENANT, members=["mira", "nobody"])
    with pytest.raises(InvalidRequest, match="not among them"):
        await conversations.open(tenant=TENANT, character="cat", members=["mira", "ben"])


GROUP = Group.of([CharacterVersion.of(bundle) for bundle in (MIRA, BEN, CAT)])


@pytest.mark.parametrize(
    ("text", "before", "speaker"),
    [
        ("hello", None, "mira"),
        ("hello", "mira", "ben"),
        ("hello", "cat", "mira"),
        ("hello", "gone", "mira"),
        ("ben, what does Mira say?", "ben", "ben"),
        ("what does MIRA VALE say to Ben?", "mira", "mira"),
        ("Vale? Ben?", "ben", "mira"),
        ("a bent category", "cat", "mira"),
    ],
)
def test_who_is_named_answers_else_the_next_in_the_order(
    text: str, before: str | None, speaker: str
) -> None:
    assert speaker_for(GROUP, text, asked=None, before=before) == speaker
    assert speaker_for(GROUP, text, asked="cat", before=before) == "cat"
    assert speaker_for(GROUP, text, asked=None, before=before, own="ben") == "ben"
    with pytest.raises(InvalidRequest, match="mira, ben, cat"):
        speaker_for(GROUP, text, asked="dog", before=before)


def test_names_are_text_however_they_are_spelled() -> None:
    odd = CharacterVersion.of(card_bundle(read_card(encoded(v2(name="A.* (B"))), "odd"))
    group = Group.of([GROUP.members[0], odd])
    assert speaker_for(group, "a.* (b!", asked=None, before=None) == "odd"
    assert speaker_for(group, "axx (b", asked=None, before="odd") == "mira"


@pytest.mark.parametrize(
    ("names", "text", "speaker"),
    [
        (["Ann", "The Dragon"], "Is the door open, Ann?", 0),
        (["Ann", "Dr. Who"], "I wonder who did it, Ann?", 0),
        (["Ann", "Dr. Who"], "And you, dr. who?", 1),
        (["Ann", "The Dragon"], "Dragon, fly!", 1),
        (["Ann Lee", "Ann Ray"], "Hi Ann Ray", 1),
        (["Ann", "\u5c0f\u660e"], "\u5c0f\u660e\u4f60\u597d", 1),
        (["Ann", "\u3086\u304d"], "\u306d\u3048\u3086\u304d\u3055\u3093", 1),
        (["Ann", "Mira"], "Mira\u3055\u3093\u306f\u3069\u3053", 1),
        (["Ann", "Mira"], "\u306d\u3048Mira", 1),
        (["Ann", "\u5948\u3005"], "\u5948\u3005\u306f\u3069\u3053", 1),
        (["Ann", "\uff90\uff97"], "\uff90\uff97\uff7b\uff9d", 1),
        (["Ann", "\ufa11\ufa0f"], "\u306d\u3048\ufa11\ufa0f\u306f", 1),
        (
            ["Ann", "\u0e21\u0e25\u0e34"],
            "\u0e09\u0e31\u0e19\u0e23\u0e31\u0e01\u0e21\u0e25\u0e34\u0e21\u0e32\u0e01",
            1,
        ),
        (
            ["Ann", "\u179f\u17bb\u1781"],
            "\u1781\u17d2\u1789\u17bb\u17c6\u179f\u17bb\u1781\u1791\u17c5",
            1,
        ),
        (
            ["Ann", "\u0e94\u0eb2\u0ea7"],
            "\u0e82\u0ead\u0e87\u0e94\u0eb2\u0ea7\u0e99\u0eb5\u0ec9",
            1,
        ),
        (["Ann", "\u1019\u102d\u102f\u1038"], "\u1000\u1019\u102d\u102f\u1038\u1000", 1),
        (["Ann", "\uaa61\uaa62"], "\uaa60\uaa61\uaa62\uaa63", 1),
        (["Ann", "Zoe\u0301"], "Hello Zo\u00e9", 1),
        (["Ann", "Li"], "Lithium", 0),
    ],
)
def test_the_member_who_is_meant_answers(names: list[str], text: str, speaker: int) -> None:
    members = [
        CharacterVersion.of(card_bundle(read_card(encoded(v2(name=name))), f"member-{place}"))
        for place, name in enumerate(names)
    ]
    assert speaker_for(Group.of(members), text, asked=None, before=None) == f"member-{speaker}"


def test_who_has_something_to_say_last_is_known() -> None:
    """A prompt that only goes on would leave it out."""
    known = [GROUP.says_last(one) for one in ("mira", "ben", "cat", "gone", None)]
    assert known == [False, False, True, False, False]


def test_members_draw_apart_though_their_cards_say_the_same() -> None:
    said = {
        "system_prompt": "Strength {{roll:1000}}.",
        "group_only_greetings": ["{{roll:1000}}"],
    }
    members = [CharacterVersion.of(card(name, name.lower(), **said)) for name in ("Ann", "Bob")]
    group = Group.of(members)
    texts = "".join(part.content for part in group.render(SAMPLE).parts)
    drawn = re.findall(r"Strength (\d+)", texts)
    assert len(drawn) == 2
    assert drawn[0] != drawn[1]
    first, second = (opening.text for _, opening in group.openings(SAMPLE))
    assert first != second


async def test_a_reply_that_said_nothing_leaves_no_line_behind(
    turns: Turns, conversations: Conversations, directory: Path
) -> None:
    """Stopped before its first word, it is in no later prompt: nobody answered its message."""
    chat = await opened_with(turns, conversations, directory, ["mira", "ben"])
    await chat.say("Hello", speaker="ben")
    nothing = GenerationParams(
        sampling=Sampling(temperature=1, seed=3, logit_bias={1: 100, 2: -100}), new_tokens_max=4
    )
    events = turns.send(
        tenant=TENANT,
        conversation_id=chat.opened,
        text="Say nothing",
        parent=await chat.head(),
        turn_key=None,
        params=nothing,
        speaker="mira",
    )
    _, _, done = await read(events)
    assert done.text == ""
    tokens, _, _ = await chat.say("And now?", speaker="ben")
    text = await chat.prompt()
    assert "answers.<|im_end|>\n<|im_start|>user\nSay nothing" not in text
    assert text.count("Mira Vale answers") == 0
    _, hit, _ = await chat.say("Go on", speaker="mira")
    assert hit >= tokens
    assert (await chat.prompt()).startswith(text)
