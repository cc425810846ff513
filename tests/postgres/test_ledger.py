"""Every operation of the ledger against a real PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from appliance.errors import Conflict, InvalidRequest, NotFound
from appliance.store.ledger import QUERIES, Ledger
from appliance.store.pool import Pool
from appliance.store.records import (
    TITLE_CHARACTERS_MAX,
    Conversation,
    ConversationChange,
    Cursor,
    Message,
    NewGreeting,
    Note,
    Persona,
    Scene,
)
from appliance.store.rows import append_arguments, opened_conversation, opened_messages
from tests.postgres.turns import TENANT, new_conversation, opening, reply, swipe, talk, turn

VERSION = "c" * 64
SCENE = Scene(persona=Persona(name="Mara"), note=Note(text="Be kind."))


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


async def shown(ledger: Ledger, conversation: Conversation) -> list[str]:
    """The texts from the root to the head."""
    now = await ledger.get(conversation.tenant, conversation.conversation_id)
    if now.head_id is None:
        return []
    return texts(await ledger.path(now.tenant, now.conversation_id, now.head_id))


async def test_a_new_conversation_is_empty_and_opening_it_again_changes_nothing(
    ledger: Ledger,
) -> None:
    made = await new_conversation(ledger, title="Tea", character="sage")
    assert (made.title, made.character, made.head_id, made.anchor_id) == ("Tea", "sage", None, None)
    again = await ledger.open(opening(conversation_id=made.conversation_id, title="Other"))
    assert again == made
    assert await ledger.get(TENANT, made.conversation_id) == made
    assert await ledger.messages(TENANT, made.conversation_id) == ()


async def test_greetings_are_siblings_in_their_order_and_the_first_is_shown(ledger: Ledger) -> None:
    openings = tuple(
        NewGreeting(message_id=uuid4(), turn_key=uuid4(), text=f"Hello {number}\0")
        for number in range(40)
    )
    offered = opening(greetings=openings, prompt_version=VERSION, scene=SCENE, title="Tea\0")
    opened = await ledger.open(offered)
    assert (opened.head_id, opened.prompt_version) == (openings[0].message_id, VERSION)
    key = (TENANT, opened.conversation_id)
    assert await ledger.get(*key) == opened
    assert opened == opened_conversation(offered)
    assert await ledger.open(offered) == opened
    tree = await ledger.messages(*key)
    assert tree == opened_messages(offered)
    assert [message.message_id for message in tree] == [one.message_id for one in openings]
    assert {(m.parent_id, m.role, m.finish_reason) for m in tree} == {(None, "assistant", "stop")}
    stored = await ledger.append_turn(turn(opened, openings[3].message_id, "q", "a"))
    assert await shown(ledger, opened) == [tree[3].text, "q", "a"]
    assert (await ledger.messages(*key))[-1].message_id == stored.assistant.message_id


async def test_an_appended_turn_is_read_back_whole_and_is_the_head(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    offered = turn(conversation, None, "Salut ça va? 🫖", "Oui.\n\ttab", title="Greeting")
    stored = await ledger.append_turn(offered)
    assert not stored.replayed
    assert stored.user is not None
    assert stored.user.parent_id is None
    assert stored.assistant.parent_id == stored.user.message_id
    assert offered.user is not None
    assert stored.user.message_id == offered.user.message_id
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert tree == (stored.user, stored.assistant)
    assert tree[1].token_ids == offered.assistant.token_ids
    assert (tree[1].finish_reason, tree[1].prompt_tokens, tree[1].prefix_hit_tokens) == (
        "stop",
        20,
        12,
    )
    after = await ledger.get(TENANT, conversation.conversation_id)
    assert after.head_id == stored.assistant.message_id
    assert after.title == "Greeting"
    assert after.updated_at >= conversation.updated_at
    found = await ledger.message(TENANT, conversation.conversation_id, stored.user.message_id)
    assert found == stored.user


async def test_a_reply_keeps_what_its_prompt_was_made_with_whatever_the_conversation_moves_to(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    digest = Scene(persona=Persona(name="Tom")).digest
    offered = turn(conversation, None, "q", "a", prompt_version=VERSION, scene_digest=digest)
    stored = await ledger.append_turn(offered)
    await ledger.change(*key, ConversationChange(prompt_version="d" * 64))
    later = await ledger.append_turn(turn(conversation, stored.assistant.message_id, "q", "a"))
    user, answer, _, unmarked = await ledger.path(*key, later.assistant.message_id)
    assert (answer.prompt_version, answer.scene_digest) == (VERSION, digest)
    assert answer == stored.assistant == await ledger.message(*key, answer.message_id)
    assert {(m.prompt_version, m.scene_digest) for m in (user, unmarked)} == {(None, None)}
    again = await ledger.append_turn(offered)
    assert (again.replayed, again.assistant) == (True, answer)


async def test_a_turns_title_is_used_once_and_cut(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    first = await ledger.append_turn(turn(conversation, None, "q", "a", title="é" * 500))
    parent_id = first.assistant.message_id
    await ledger.append_turn(turn(conversation, parent_id, "q", "a", title="second"))
    after = await ledger.get(TENANT, conversation.conversation_id)
    assert after.title == "é" * TITLE_CHARACTERS_MAX


async def test_an_anchor_stays_until_a_turn_moves_it(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    first = await ledger.append_turn(turn(conversation, None, "q0", "a0"))
    assert first.user is not None
    anchor_id = first.user.message_id
    parent_id = first.assistant.message_id
    second = await ledger.append_turn(
        turn(conversation, parent_id, "q1", "a1", anchor_id=anchor_id)
    )
    await ledger.append_turn(turn(conversation, second.assistant.message_id, "q2", "a2"))
    assert (await ledger.get(TENANT, conversation.conversation_id)).anchor_id == anchor_id


async def test_a_turn_appended_twice_is_stored_once_and_moves_no_head(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    offered = turn(conversation, None, "q0", "a0")
    first = await ledger.append_turn(offered)
    later = await ledger.append_turn(turn(conversation, first.assistant.message_id, "q1", "a1"))
    same = await ledger.append_turn(offered)
    # A client that lost the answer sends again: same key, but the server chose new ids and words.
    other = turn(conversation, None, "q0", "another answer", turn_key=offered.turn_key)
    resent = await ledger.append_turn(other)
    for again in (same, resent):
        assert again.replayed
        assert (again.user, again.assistant) == (first.user, first.assistant)
    assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 4
    after = await ledger.get(TENANT, conversation.conversation_id)
    assert after.head_id == later.assistant.message_id
    assert await ledger.turn(TENANT, conversation.conversation_id, None, offered.turn_key) == same
    assert await ledger.turn(TENANT, conversation.conversation_id, None, uuid4()) is None


async def test_the_same_key_under_another_parent_is_another_turn(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    key = uuid4()
    first = await ledger.append_turn(turn(conversation, None, "q0", "a0", turn_key=key))
    below = turn(conversation, first.assistant.message_id, "q1", "a1", turn_key=key)
    second = await ledger.append_turn(below)
    assert not second.replayed
    again = await ledger.append_turn(below)
    assert again == replace(second, replayed=True)


async def test_many_appends_of_one_turn_at_once_store_it_once(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    key = uuid4()
    offers = [turn(conversation, None, "q", f"a{n}", turn_key=key) for n in range(16)]
    stored = await asyncio.gather(*map(ledger.append_turn, offers))
    assert [s.replayed for s in stored].count(False) == 1
    assert len({s.assistant.message_id for s in stored}) == 1
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert [m.role for m in tree] == ["user", "assistant"]
    after = await ledger.get(TENANT, conversation.conversation_id)
    assert after.head_id == tree[1].message_id


async def test_turns_under_one_parent_at_once_are_siblings_and_the_last_is_shown(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger)
    root = await ledger.append_turn(turn(conversation, None, "q", "a"))
    offers = [turn(conversation, root.assistant.message_id, f"q{n}", f"a{n}") for n in range(12)]
    stored = await asyncio.gather(*map(ledger.append_turn, offers))
    assert not any(s.replayed for s in stored)
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert len(tree) == 2 + 24
    siblings = [m for m in tree if m.parent_id == root.assistant.message_id]
    assert {m.text for m in siblings} == {f"q{n}" for n in range(12)}
    after = await ledger.get(TENANT, conversation.conversation_id)
    assert after.head_id in {s.assistant.message_id for s in stored}


async def test_a_swipe_is_a_sibling_and_the_head_goes_back_and_forth(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    first = await ledger.append_turn(turn(conversation, None, "q", "a1"))
    assert first.user is not None
    second = await ledger.append_turn(swipe(conversation, first.user.message_id, "a2"))
    assert second.user is None
    assert await shown(ledger, conversation) == ["q", "a2"]
    head = await ledger.change(
        TENANT, conversation.conversation_id, ConversationChange(head_id=first.assistant.message_id)
    )
    assert head.head_id == first.assistant.message_id
    assert await shown(ledger, conversation) == ["q", "a1"]


async def test_a_greeting_is_a_root_reply_and_an_edit_is_a_second_root(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    hello = await ledger.append_turn(swipe(conversation, None, "Hello."))
    assert hello.assistant.parent_id is None
    await ledger.append_turn(turn(conversation, hello.assistant.message_id, "Hi", "So?"))
    assert await shown(ledger, conversation) == ["Hello.", "Hi", "So?"]
    await ledger.append_turn(turn(conversation, None, "No greeting", "Fine."))
    assert await shown(ledger, conversation) == ["No greeting", "Fine."]


async def test_a_path_is_ordered_and_can_begin_below_an_ancestor(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    replies = await talk(ledger, conversation, 40)
    key = (TENANT, conversation.conversation_id)
    whole = await ledger.path(*key, replies[-1])
    assert texts(whole) == [text for n in range(40) for text in (f"q{n}", f"a{n}")]
    assert texts(await ledger.path(*key, replies[-1], after=replies[-2])) == ["q39", "a39"]
    assert await ledger.path(*key, replies[-1], after=replies[-1]) == ()
    assert await ledger.path(*key, uuid4()) == ()


async def test_another_tenants_conversation_is_not_found(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    stored = await ledger.append_turn(turn(conversation, None, "q", "a"))
    conversation_id, reply_id = conversation.conversation_id, stored.assistant.message_id
    stranger = replace(conversation, tenant="mallory")
    for attempt in (
        ledger.get("mallory", conversation_id),
        ledger.change("mallory", conversation_id, ConversationChange(title="mine")),
        ledger.change("mallory", conversation_id, ConversationChange(head_id=reply_id)),
        ledger.delete("mallory", conversation_id),
        ledger.delete_branch("mallory", conversation_id, reply_id),
        ledger.message("mallory", conversation_id, reply_id),
        ledger.append_turn(turn(stranger, reply_id, "q", "a")),
        ledger.append_turn(turn(stranger, None, "q", "a")),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await ledger.path("mallory", conversation_id, reply_id) == ()
    assert await ledger.messages("mallory", conversation_id) == ()
    assert await ledger.list("mallory", limit=10) == ()
    # The same id under another tenant is another conversation.
    await ledger.open(opening("mallory", conversation_id=conversation_id))
    assert await ledger.messages("mallory", conversation_id) == ()
    with pytest.raises(NotFound):
        await ledger.append_turn(turn(stranger, reply_id, "q", "a"))
    assert len(await ledger.messages(TENANT, conversation_id)) == 2


async def test_a_turn_needs_its_conversation_its_parent_and_fresh_message_ids(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger)
    first = turn(conversation, None, "q", "a")
    with pytest.raises(NotFound):
        await ledger.append_turn(replace(first, conversation_id=uuid4()))
    with pytest.raises(NotFound):
        await ledger.append_turn(replace(first, parent_id=uuid4()))
    await ledger.append_turn(first)
    with pytest.raises(Conflict):
        await ledger.append_turn(replace(first, turn_key=uuid4()))
    missing = uuid4()
    with pytest.raises(NotFound, match=f"with a message {missing}"):
        await ledger.change(
            TENANT, conversation.conversation_id, ConversationChange(head_id=missing)
        )
    assert len(await ledger.messages(TENANT, conversation.conversation_id)) == 2


async def test_a_change_of_several_things_is_stored_whole_or_not_at_all(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    stored = await ledger.append_turn(turn(conversation, None, "q", "a"))
    before = await ledger.get(*key)
    scene = Scene(pinned=("It rains.",))
    head_id = stored.assistant.message_id
    change = ConversationChange(head_id=head_id, title="T", scene=scene, prompt_version="d" * 64)
    with pytest.raises(NotFound):
        await ledger.change(*key, replace(change, head_id=uuid4()))
    too_long = "x" * (TITLE_CHARACTERS_MAX + 1)
    with pytest.raises(InvalidRequest):
        await ledger.change(*key, ConversationChange(scene=scene, title=too_long))
    assert await ledger.get(*key) == before
    changed = await ledger.change(*key, change)
    assert (changed.head_id, changed.title) == (head_id, "T")
    assert (changed.scene, changed.prompt_version) == (scene, "d" * 64)


async def test_the_list_is_newest_first_and_paged_without_gaps(ledger: Ledger) -> None:
    made = [await new_conversation(ledger) for _ in range(7)]
    await new_conversation(ledger, tenant="other")
    await ledger.append_turn(turn(made[2], None, "q", "a"))
    expected = [made[2], *(made[n] for n in (6, 5, 4, 3, 1, 0))]
    found: list[Conversation] = []
    before: Cursor | None = None
    while page := await ledger.list(TENANT, limit=3, before=before):
        found += page
        before = Cursor.parse(str(page[-1].cursor))
    assert [c.conversation_id for c in found] == [c.conversation_id for c in expected]


async def test_a_title_is_bounded_and_renaming_keeps_the_order(ledger: Ledger) -> None:
    old, new = await new_conversation(ledger), await new_conversation(ledger)
    renamed = await ledger.change(
        TENANT, old.conversation_id, ConversationChange(title="x" * TITLE_CHARACTERS_MAX)
    )
    assert len(renamed.title) == TITLE_CHARACTERS_MAX
    with pytest.raises(InvalidRequest, match="201") as refused:
        await ledger.change(
            TENANT, old.conversation_id, ConversationChange(title="x" * (TITLE_CHARACTERS_MAX + 1))
        )
    assert refused.value.param == "title"
    page = await ledger.list(TENANT, limit=10)
    assert [c.conversation_id for c in page] == [new.conversation_id, old.conversation_id]


async def test_deleting_a_conversation_leaves_nothing_of_it(ledger: Ledger) -> None:
    gone, kept = await new_conversation(ledger), await new_conversation(ledger)
    replies = await talk(ledger, gone, 3)
    await talk(ledger, kept, 2)
    await ledger.delete(TENANT, gone.conversation_id)
    assert await ledger.messages(TENANT, gone.conversation_id) == ()
    assert len(await ledger.messages(TENANT, kept.conversation_id)) == 4
    for attempt in (
        ledger.get(TENANT, gone.conversation_id),
        ledger.delete(TENANT, gone.conversation_id),
        ledger.append_turn(turn(gone, replies[-1], "q", "a")),
    ):
        with pytest.raises(NotFound):
            await attempt


async def test_deleting_a_branch_moves_the_head_to_what_is_left(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    root = await ledger.append_turn(turn(conversation, None, "q0", "a0"))
    left = await ledger.append_turn(turn(conversation, root.assistant.message_id, "q1", "left"))
    assert left.user is not None
    right = await ledger.append_turn(swipe(conversation, left.user.message_id, "right"))
    below = turn(
        conversation, right.assistant.message_id, "q2", "a2", anchor_id=right.assistant.message_id
    )
    await ledger.append_turn(below)
    # A branch that is not shown goes without a trace, one that is shown takes the head along.
    other = await ledger.append_turn(turn(conversation, root.assistant.message_id, "q9", "a9"))
    assert other.user is not None
    await ledger.change(*key, ConversationChange(head_id=below.assistant.message_id))
    after = await ledger.delete_branch(*key, other.user.message_id)
    assert after.head_id == below.assistant.message_id
    after = await ledger.delete_branch(*key, right.assistant.message_id)
    assert after.head_id == left.assistant.message_id
    assert after.anchor_id is None
    assert await shown(ledger, conversation) == ["q0", "a0", "q1", "left"]
    after = await ledger.delete_branch(*key, left.assistant.message_id)
    assert after.head_id == left.user.message_id
    with pytest.raises(NotFound):
        await ledger.delete_branch(*key, left.assistant.message_id)
    assert root.user is not None
    after = await ledger.delete_branch(*key, root.user.message_id)
    assert after.head_id is None
    assert await ledger.messages(*key) == ()
    await ledger.append_turn(turn(conversation, None, "again", "yes"))
    assert await shown(ledger, conversation) == ["again", "yes"]


async def test_deleting_a_root_shows_the_newest_other_root(ledger: Ledger) -> None:
    conversation = await new_conversation(ledger)
    await talk(ledger, conversation, 2)
    second = await ledger.append_turn(turn(conversation, None, "edited", "b"))
    assert second.user is not None
    await ledger.delete_branch(TENANT, conversation.conversation_id, second.user.message_id)
    assert await shown(ledger, conversation) == ["q0", "a0", "q1", "a1"]


async def test_appends_during_a_deletion_leave_no_orphan(ledger: Ledger) -> None:
    for _ in range(10):
        conversation = await new_conversation(ledger)
        key = (TENANT, conversation.conversation_id)
        root = await ledger.append_turn(turn(conversation, None, "q", "a"))
        assert root.user is not None
        branch = await ledger.append_turn(turn(conversation, root.assistant.message_id, "q1", "a1"))
        assert branch.user is not None
        offers = [turn(conversation, branch.assistant.message_id, "q", "a") for _ in range(6)]
        await asyncio.gather(
            *map(ledger.append_turn, offers[:3]),
            ledger.delete_branch(*key, branch.user.message_id),
            *map(ledger.append_turn, offers[3:]),
            return_exceptions=True,
        )
        tree = await ledger.messages(*key)
        assert [m.text for m in tree] == ["q", "a"]
        assert (await ledger.get(*key)).head_id == root.assistant.message_id
        await asyncio.gather(
            *(
                ledger.append_turn(turn(conversation, root.assistant.message_id, "q", "a"))
                for _ in range(3)
            ),
            ledger.delete(*key),
            *(ledger.append_turn(turn(conversation, None, "q", "a")) for _ in range(3)),
            return_exceptions=True,
        )
        assert await ledger.messages(*key) == ()


async def test_a_deletion_that_waits_for_an_append_takes_its_messages_too(
    pool: Pool, ledger: Ledger
) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    root, branch = await talk(ledger, conversation, 2)
    for deletion, left in (
        (lambda: ledger.delete_branch(*key, branch), ["q0", "a0", "q1"]),
        (lambda: ledger.delete(*key), []),
    ):
        parent_id = branch if left else root
        async with pool.acquire() as connection:
            async with connection.transaction():
                offered = append_arguments(turn(conversation, parent_id, "late", "late"))
                await connection.execute(QUERIES["append_turn"], *offered)
                deleting = asyncio.create_task(deletion())
                await asyncio.sleep(0.3)
                assert not deleting.done()
            await deleting
        assert texts(await ledger.messages(*key)) == left


async def test_an_append_that_waits_for_a_deletion_finds_nothing_to_append_to(
    pool: Pool, ledger: Ledger
) -> None:
    conversation = await new_conversation(ledger)
    key = (TENANT, conversation.conversation_id)
    root, branch = await talk(ledger, conversation, 2)
    deletion = (("delete_conversation", ()), ("delete_messages", ()))
    for statements, parent_id in (
        ((("lock_conversation", ()), ("delete_branch", (branch,))), branch),
        (deletion, root),
        (deletion, None),
    ):
        await ledger.open(opening(conversation_id=conversation.conversation_id))
        async with pool.acquire() as connection:
            async with connection.transaction():
                for name, more in statements:
                    await connection.execute(QUERIES[name], *key, *more)
                appending = asyncio.create_task(
                    ledger.append_turn(turn(conversation, parent_id, "late", "late"))
                )
                await asyncio.sleep(0.3)
                assert not appending.done()
            with pytest.raises(NotFound):
                await appending
        assert "late" not in texts(await ledger.messages(*key))


async def test_text_no_database_can_hold_is_stored_with_a_visible_substitute(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger, title="t\0")
    assert conversation.title == "t␀"
    offered = turn(conversation, None, "before\0after", "x\0y\ud800z", title="\0")
    stored = await ledger.append_turn(offered)
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert texts(tree) == ["before␀after", "x␀y\ufffdz"]
    assert tree == (stored.user, stored.assistant)
    assert (
        await ledger.change(TENANT, conversation.conversation_id, ConversationChange(title="\0"))
    ).title == "␀"
    assert len(await ledger.list(TENANT, limit=10)) == 1


async def test_a_message_of_many_megabytes_and_one_without_compression_are_stored(
    ledger: Ledger,
) -> None:
    conversation = await new_conversation(ledger)
    long = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(1_000_000))
    offered = replace(
        turn(conversation, None, "q", "a"),
        assistant=reply(long, token_ids=bytes(range(256)) * 4096),
    )
    await ledger.append_turn(offered)
    tree = await ledger.messages(TENANT, conversation.conversation_id)
    assert tree[1].text == long
    assert tree[1].token_ids == offered.assistant.token_ids
