"""Index coverage by role, as the chat layer sees it; the story's bug shows as users' messages missing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from appliance.chat.coverage import Coverage
from appliance.prompt.fit import Fitted, LeftOut
from appliance.prompt.messages import Prompt, PromptMessage, Role, Zone

KEY = ("anna", UUID(int=1))
EXAMPLE = LeftOut(name="example", truncation_priority=1, block=None)


def fitted(*parts: tuple[Role, int], header: int = 3, known: int = 0, dropped: int = 0) -> Fitted:
    """A prompt of parts with these sizes, and a reply's header."""
    sizes = (*(size for _, size in parts), header)
    messages = tuple(
        PromptMessage(name="m", role=role, zone=Zone.HISTORY, content="x", namespace=b"n")
        for role, _ in parts
    )
    return Fitted(
        prompt=Prompt(
            token_ids=bytes(4 * sum(sizes)),
            stretches=((b"n", known + sum(sizes)),),
            messages=messages,
            part_tokens=sizes,
            closing=b"",
            known_tokens=known,
        ),
        messages_dropped=dropped,
        window_tokens=0,
        is_plain=True,
    )


def test_each_role_counts_the_tokens_before_the_first_that_misses() -> None:
    coverage = Coverage()
    reply = uuid4()
    coverage.put(
        KEY, fitted(("system", 20), ("user", 10)), parent_id=None, reply_id=reply, reply_tokens=7
    )
    assert coverage.shares == {}
    # System is 0 to 20, the user's message 20 to 30, header and reply 30 to 40.
    for hit, shares in ((40, (1, 1, 1)), (20, (1, 0, 0)), (25, (1, 0.5, 0)), (10, (0.5, 0, 0))):
        one = Coverage()
        one._layouts = coverage._layouts
        one.observe(KEY, fitted(), parent_id=reply, hit_tokens=hit)
        assert tuple(one.shares.values()) == pytest.approx(shares)


def test_a_turn_that_goes_on_keeps_the_operators_text_of_the_turn_before() -> None:
    coverage = Coverage()
    first, second = uuid4(), uuid4()
    coverage.put(
        KEY, fitted(("system", 20), ("user", 10)), parent_id=None, reply_id=first, reply_tokens=7
    )
    coverage.put(
        KEY, fitted(("user", 5), known=42), parent_id=first, reply_id=second, reply_tokens=2
    )
    coverage.observe(KEY, fitted(), parent_id=second, hit_tokens=47)
    assert coverage.shares == pytest.approx({"system": 1, "user": 1, "assistant": 0})


def test_branches_and_cuts_and_other_conversations_are_not_counted() -> None:
    coverage = Coverage()
    reply = uuid4()
    coverage.put(KEY, fitted(("user", 10)), parent_id=None, reply_id=reply, reply_tokens=7)
    coverage.observe(KEY, fitted(), parent_id=uuid4(), hit_tokens=0)
    coverage.observe(KEY, fitted(dropped=2), parent_id=reply, hit_tokens=0)
    left_out = replace(fitted(), left_out=(EXAMPLE,))
    coverage.observe(KEY, left_out, parent_id=reply, hit_tokens=0)
    coverage.observe(("ben", UUID(int=1)), fitted(), parent_id=reply, hit_tokens=0)
    assert coverage.shares == {}
    coverage.put(KEY, fitted(("assistant", 5)), parent_id=None, reply_id=reply, reply_tokens=7)
    coverage.observe(KEY, fitted(), parent_id=reply, hit_tokens=0)
    assert coverage.shares == {}


def test_a_fault_shows_within_a_thousand_turns_and_memory_is_bounded() -> None:
    coverage = Coverage(layouts_max=10)
    reply = uuid4()
    for number in range(3000):
        key = ("anna", UUID(int=number))
        prompt = fitted(("user", 10), header=0)
        coverage.put(key, prompt, parent_id=None, reply_id=reply, reply_tokens=0)
        coverage.observe(key, fitted(), parent_id=reply, hit_tokens=10 if number < 2000 else 0)
    assert len(coverage._layouts) == 10
    assert coverage.shares["user"] < 0.4


def test_a_part_after_the_history_hides_neither_the_operators_text_nor_the_users() -> None:
    def asked() -> Fitted:
        bare = fitted(("system", 20), ("user", 10), ("system", 8))
        *front, note = bare.prompt.messages
        noted = (*front, replace(note, zone=Zone.VOLATILE))
        return replace(bare, prompt=replace(bare.prompt, messages=noted), is_plain=False)

    coverage = Coverage()
    reply = uuid4()
    coverage.put(KEY, asked(), parent_id=None, reply_id=reply, reply_tokens=7)
    # The note and the reply behind it stand elsewhere in the next prompt: nothing is expected of them.
    coverage.observe(KEY, asked(), parent_id=reply, hit_tokens=25)
    assert coverage.shares == pytest.approx({"system": 1, "user": 0.5})
