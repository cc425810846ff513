"""How much of a turn the next one found in the cache, by role (promise P3). Never: decides or stores.

Only turns that go on where the one before ended are looked at: what a swipe, an edit, a cut or another
version of the character changes is no fault of the index. What was evicted meanwhile counts as not
found, of every role alike.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from appliance.chat.running import Key
from appliance.prompt.fit import Fitted, LeftOut
from appliance.prompt.messages import ROLES, Role, Zone

Cut: TypeAlias = tuple[int, tuple[LeftOut, ...]]
"""How many messages were cut, and which parts."""

LAYOUTS_MAX = 65_536
"""Conversations remembered, some 300 bytes each."""

KEPT = 1 - 1 / 1000
"""What a turn leaves of the weight of those before it: about the last thousand count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLayout:
    """Where the parts of a turn lie, as positions in its prompt and reply.

    `system` is the operator's text at the front, `user` the message that is answered, `assistant` the
    reply's header and the reply; that is empty where parts of the template stand before the reply, as
    the next prompt has them elsewhere. `reply_id` ends the turn; `cut` is what was cut,
    `prompt_version` the version of the character that the prompt was made with.
    """

    reply_id: UUID
    cut: Cut
    prompt_version: str | None
    system: range
    user: range
    assistant: range


class Coverage:
    """The latest layout of each conversation, and the shares found by role."""

    def __init__(self, *, layouts_max: int = LAYOUTS_MAX) -> None:
        self._layouts: OrderedDict[Key, TurnLayout] = OrderedDict()
        self._layouts_max = layouts_max
        self._tokens: dict[Role, float] = dict.fromkeys(ROLES, 0.0)
        self._found: dict[Role, float] = dict.fromkeys(ROLES, 0.0)

    @property
    def shares(self) -> dict[Role, float]:
        """Of the tokens of each role, the share that was found; roles without any are left out."""
        return {
            role: self._found[role] / tokens for role, tokens in self._tokens.items() if tokens > 0
        }

    def observe(
        self,
        key: Key,
        fitted: Fitted,
        *,
        parent_id: UUID | None,
        hit_tokens: int,
        prompt_version: str | None = None,
    ) -> None:
        """A turn was admitted; the first `hit_tokens` of its prompt were in the cache."""
        layout = self._layouts.get(key)
        if layout is None or layout.reply_id != parent_id or layout.cut != _cut_of(fitted):
            return
        if layout.prompt_version != prompt_version:
            return
        parts: dict[Role, range] = {
            "system": layout.system,
            "user": layout.user,
            "assistant": layout.assistant,
        }
        for role, part in parts.items():
            found = min(max(hit_tokens, part.start), part.stop) - part.start
            self._tokens[role] = self._tokens[role] * KEPT + len(part)
            self._found[role] = self._found[role] * KEPT + found

    def put(
        self,
        key: Key,
        fitted: Fitted,
        *,
        parent_id: UUID | None,
        reply_id: UUID,
        reply_tokens: int,
        prompt_version: str | None = None,
    ) -> None:
        """A turn is stored: what the next one should find."""
        layout = self._layout(key, fitted, parent_id, reply_id, reply_tokens, prompt_version)
        self._layouts.pop(key, None)
        if layout is not None:
            self._layouts[key] = layout
            if len(self._layouts) > self._layouts_max:
                self._layouts.popitem(last=False)

    def _layout(
        self,
        key: Key,
        fitted: Fitted,
        parent_id: UUID | None,
        reply_id: UUID,
        reply_tokens: int,
        prompt_version: str | None,
    ) -> TurnLayout | None:
        """None without a user's message, as formats that fold roles may have it."""
        prompt = fitted.prompt
        last = len(prompt.messages) - 1
        while last >= 0 and prompt.messages[last].zone is Zone.VOLATILE:
            if prompt.messages[last].role == "user":
                return None
            last -= 1
        if last < 0 or prompt.messages[last].role != "user":
            return None
        behind = sum(prompt.part_tokens[last + 1 :])
        asked = range(prompt.tokens - behind - prompt.part_tokens[last], prompt.tokens - behind)
        is_next = last == len(prompt.messages) - 1
        system = range(0)
        if prompt.known_tokens == 0 and prompt.messages[0].role == "system":
            system = range(prompt.part_tokens[0])
        elif prompt.known_tokens > 0:
            # The prompt holds what is new alone: the front is that of the turn before.
            before = self._layouts.get(key)
            if before is not None and before.reply_id == parent_id:
                system = before.system
        return TurnLayout(
            reply_id=reply_id,
            cut=_cut_of(fitted),
            prompt_version=prompt_version,
            system=system,
            user=asked,
            assistant=range(asked.stop, prompt.tokens + reply_tokens if is_next else asked.stop),
        )


def _cut_of(fitted: Fitted) -> Cut:
    return fitted.messages_dropped, fitted.left_out
