"""Which part of a conversation's prompts a purge drops."""

from __future__ import annotations

from appliance.chat.prompt_starts import first_private
from appliance.prompt.messages import Prompt, PromptMessage, Zone
from appliance.prompt.namespace import PUBLIC
from appliance.tokens import TokenIds, pack

FRONT = PromptMessage(name="m", role="system", content="s", zone=Zone.CHARACTER, namespace=PUBLIC)
LATE = PromptMessage(name="m", role="system", content="l", zone=Zone.VOLATILE, namespace=b"t")


def user(token_ids: TokenIds | None) -> PromptMessage:
    return PromptMessage(
        name="m", role="user", content="u", zone=Zone.HISTORY, namespace=b"t", token_ids=token_ids
    )


def prompt(*messages: PromptMessage, sizes: tuple[int, ...]) -> Prompt:
    tokens = sum(sizes)
    return Prompt(
        token_ids=pack(range(tokens)),
        stretches=((PUBLIC, 6), (b"t", tokens - 6)),
        messages=messages,
        part_tokens=sizes,
        closing=b"",
    )


def test_a_purge_begins_with_the_users_text_also_where_the_template_goes_on_behind_it() -> None:
    ids = pack([1, 2, 3])
    assert first_private(prompt(FRONT, user(ids), sizes=(5, 6, 2))) == 8
    assert first_private(prompt(FRONT, user(ids), LATE, sizes=(5, 6, 4, 2))) == 8


def test_a_purge_begins_with_a_persona_before_what_the_user_says() -> None:
    persona = PromptMessage(
        name="persona", role="system", content="p", zone=Zone.PERSONA, namespace=b"t"
    )
    ids = pack([1, 2, 3])
    assert first_private(prompt(FRONT, persona, user(ids), sizes=(6, 20, 6, 2))) == 6
    known = PromptMessage(
        name="lore", role="system", content="l", zone=Zone.HISTORY, namespace=b"t", token_ids=ids
    )
    assert first_private(prompt(FRONT, known, user(ids), sizes=(6, 9, 6, 2))) == 12


def test_a_purge_begins_where_the_operators_text_ends_when_the_users_own_tokens_are_not_known() -> (
    None
):
    assert first_private(prompt(FRONT, user(None), sizes=(5, 6, 2))) == 6
    assert first_private(prompt(FRONT, sizes=(5, 2))) == 6
