"""Orders of roles that strict formats refuse, and what the caller may allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from appliance.prompt.chat_format.roles import OPENING, adapted
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC


def message(role: Role, content: str) -> PromptMessage:
    return PromptMessage(
        name=content, role=role, zone=Zone.HISTORY, content=content, namespace=b"t"
    )


def alternating(roles: Sequence[Role]) -> bool:
    """No system, user first, then taking turns."""
    return all(role == ("user", "assistant")[i % 2] for i, role in enumerate(roles))


def contents(messages: Sequence[PromptMessage]) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in messages]


LISTS: dict[str, tuple[list[PromptMessage], list[tuple[str, str]]]] = {
    "two users": (
        [message("user", "a"), message("user", "b")],
        [("user", "a\n\nb")],
    ),
    "a greeting first": (
        [message("assistant", "Greetings!"), message("user", "hi")],
        [("user", OPENING), ("assistant", "Greetings!"), ("user", "hi")],
    ),
    "two replies": (
        [message("user", "a"), message("assistant", "b"), message("assistant", "c")],
        [("user", "a"), ("assistant", "b\n\nc")],
    ),
    "a system text": (
        [message("system", "s"), message("user", "a")],
        [("user", "s\n\na")],
    ),
    "a system text and a greeting": (
        [message("system", "s"), message("assistant", "g"), message("user", "a")],
        [("user", f"s\n\n{OPENING}"), ("assistant", "g"), ("user", "a")],
    ),
    "a system text in the middle": (
        [message("user", "a"), message("system", "s"), message("user", "b")],
        [("user", "a\n\ns\n\nb")],
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_strict_format_gets_an_order_it_takes(name: str) -> None:
    given, expected = LISTS[name]
    result = adapted(given, alternating)
    assert contents(result) == expected
    assert alternating([m.role for m in result])


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_changed_for_a_format_that_takes_it_as_it_is(name: str) -> None:
    given, _ = LISTS[name]
    assert adapted(given, lambda _: True) == given


def test_what_is_joined_with_a_private_text_is_private() -> None:
    private, public = message("system", "p"), message("system", "o")
    public = replace(public, namespace=PUBLIC)
    given = ([public, private], [private, public], [public, public])
    owners = []
    for front in given:
        (joined, _) = adapted([*front, message("user", "a")], lambda roles: len(roles) == 2)
        owners.append(joined.namespace)
    assert owners == [b"t", b"t", PUBLIC]
