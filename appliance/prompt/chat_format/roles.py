"""Makes an order of roles acceptable to a strict chat format. Pure.

Never changes messages that the format takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.sources import STAND_IN

JOINER = "\n\n"
OPENING = "Hello."
"""The user's message that is put in front of a reply when the format wants a user first."""


def adapted(
    messages: Sequence[PromptMessage], accepts: Callable[[Sequence[Role]], bool]
) -> list[PromptMessage]:
    """The messages, changed only while `accepts` refuses them.

    First messages of one role are joined, and OPENING is put in front of a reply that comes first;
    then a system text is put in front of the next user's message, and what that brought together is
    joined.
    """
    result = list(messages)
    for change in (_merged, _folded, _merged):
        if not result or accepts([message.role for message in result]):
            break
        result = change(result)
    return result


def _join(first: PromptMessage, second: PromptMessage) -> PromptMessage:
    """One message of both texts, in the place and role of the second; private if one of them is."""
    return replace(
        second,
        namespace=first.namespace if second.namespace == PUBLIC else second.namespace,
        name=f"{first.name} + {second.name}",
        content=first.content + JOINER + second.content,
        token_ids=None,
        sources=first.sources + second.sources,
    )


def _merged(messages: list[PromptMessage]) -> list[PromptMessage]:
    result: list[PromptMessage] = []
    for message in messages:
        if result and result[-1].role == message.role:
            result[-1] = _join(result[-1], message)
            continue
        first_turn = not result or (len(result) == 1 and result[0].role == "system")
        if message.role == "assistant" and first_turn:
            result.append(
                PromptMessage(
                    name=STAND_IN.id,
                    role="user",
                    zone=Zone.HISTORY,
                    content=OPENING,
                    namespace=message.namespace,
                    sources=(STAND_IN,),
                )
            )
        result.append(message)
    return result


def _folded(messages: list[PromptMessage]) -> list[PromptMessage]:
    result: list[PromptMessage] = []
    held: PromptMessage | None = None
    for message in messages:
        if message.role == "system":
            held = message if held is None else _join(held, message)
        elif message.role == "user" and held is not None:
            result.append(_join(held, message))
            held = None
        elif held is not None:
            # A reply comes next: the system text becomes a user's message of its own.
            result += [replace(held, role="user"), message]
            held = None
        else:
            result.append(message)
    if held is not None:
        result.append(replace(held, role="user"))
    return result
