"""A conversation that moves to another version of its character, in front of a real engine."""

from __future__ import annotations

from uuid import UUID

from appliance.chat.prompt_starts import first_private
from appliance.server.auth import LOCAL_TENANT
from tests.characters import bundle_of
from tests.engine_fixtures import decoder, model_directory
from tests.unit.server.moved_catalog import move_all
from tests.unit.server.test_admin import Operator, operator, server
from tests.unit.server.test_prompt_explain import say

_TEMPLATE = """\
name: moody
inputs:
  character: {type: map, scope: character}
---
- {name: who, zone: character, role: system, content: "You are {{ character.name }}."}
- {name: mood, zone: pinned, role: system, content: "You are MOOD."}
- {name: history, zone: history}
"""

__all__ = ["decoder", "model_directory", "operator", "server"]


async def with_template(
    operator: Operator, opened: UUID | None = None, *, mood: str = "calm"
) -> None:
    """The character of new chats from now on, and of `opened`, which moves to it."""
    template = _TEMPLATE.replace("MOOD", mood)
    bundle = bundle_of("assistant", name="Mo", template="moody", templates={"moody": template})
    await move_all(operator.services, bundle, *([] if opened is None else [opened]))


async def text_of(operator: Operator, opened: UUID, reply: UUID) -> str:
    prompt = await operator.services.prompt_view.prompt_of(
        tenant=LOCAL_TENANT, conversation_id=opened, message_id=reply
    )
    return operator.services.tokenizer.decode(prompt.token_ids)


async def test_the_next_turn_is_made_with_the_new_version_and_the_one_after_goes_on_from_it(
    operator: Operator,
) -> None:
    await with_template(operator)
    opened = await operator.open()
    await say(operator, opened, "One?")
    before = await say(operator, opened, "Two?")
    shares = dict(operator.services.turns.coverage.shares)
    await with_template(operator, opened, mood="very cross")
    first = await say(operator, opened, "Now?")
    text = await text_of(operator, opened, first.message_id)
    assert "You are very cross." in text
    assert "One?" in text
    prompt = await operator.services.prompt_view.prompt_of(
        tenant=LOCAL_TENANT, conversation_id=opened, message_id=first.message_id
    )
    assert first.prompt_tokens == prompt.tokens, "it is what was sent"
    assert (first.prefix_hit_tokens or 0) < (before.prefix_hit_tokens or 0)
    assert operator.services.turns.coverage.shares == shares, "no fault of the index"
    second = await say(operator, opened, "Then?")
    assert (second.prefix_hit_tokens or 0) >= prompt.tokens


async def test_a_purge_finds_what_is_cached_of_the_versions_that_a_conversation_left(
    operator: Operator,
) -> None:
    await with_template(operator)
    opened = await operator.open()
    await say(operator, opened, "A secret of mine?")
    await with_template(operator, opened, mood="very cross")
    await say(operator, opened, "Another?")
    view = operator.services.cache_view
    assert await view.purge(tenant=LOCAL_TENANT, conversation_id=opened) > 0
    # Moved back to the version that it left, not a token of what was said is found.
    await with_template(operator, opened)
    stored = await operator.services.conversations.messages(
        tenant=LOCAL_TENANT, conversation_id=opened
    )
    prompt = await operator.services.prompt_view.prompt_of(
        tenant=LOCAL_TENANT, conversation_id=opened, message_id=stored[1].message_id
    )
    explained = await view.explain(tenant=LOCAL_TENANT, conversation_id=opened)
    assert explained.cached_tokens <= first_private(prompt)
