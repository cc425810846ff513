"""The plan of a turn as a value: what an engine is asked, and what is to be stored. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from appliance.chat.generation import Onward
from appliance.chat.lore import Recall
from appliance.prompt.fit import Fitted
from appliance.prompt.lore.books import Lore
from appliance.prompt.messages import Prompt
from appliance.prompt.settings import NO_SAMPLING, SamplingSettings
from appliance.store.records import NewMessage, Scene, StoredTurn, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A turn before its reply.

    `onward` says where the engine is to go on, if the prompt holds only what follows. `user` is None
    when a reply is regenerated; `place_id` is what the user's message answers. `title` is set for the
    first message of a conversation without one, `anchor_id` when the front of the path is not in the
    prompt. `recall` is what the `lore` of the path has come to before the reply.
    `prompt_version` is the version of the character that the prompt was made with, `scene` what the
    user has set, `speaker` the member of a group who answers; `trial` is the conversation's,
    `sampling` what the version settles of its replies.
    """

    tenant: str
    conversation_id: UUID
    turn_key: UUID
    parent_id: UUID | None
    place_id: UUID | None
    user: NewMessage | None
    assistant_id: UUID
    fitted: Fitted
    onward: Onward
    anchor_id: UUID | None
    title: str | None
    lore: Lore
    recall: Recall
    prompt_version: str
    scene: Scene
    speaker: str | None = None
    trial: Trial | None = None
    sampling: SamplingSettings = NO_SAMPLING

    @property
    def prompt(self) -> Prompt:
        """What the engine is to answer."""
        return self.fitted.prompt

    @property
    def messages_dropped(self) -> int:
        """How many of the oldest messages of the path are not in the prompt."""
        return self.fitted.messages_dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTurn:
    """A turn that is stored already, to be told again; `messages_dropped` as in its plan."""

    stored: StoredTurn
    messages_dropped: int
