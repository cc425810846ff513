"""A chat whose prompts are built as the product builds them, and a cache that forgets what it is told.

No database and no engine: turns are values, so that hundreds of situations take no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from appliance.chat.catalog import Catalog
from appliance.chat.left_behind import left_behind
from appliance.chat.params import ChatLimits
from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.prompt_explanation import PromptExplanation, explained
from appliance.chat.reply_prompts import ReplyPrompt
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import Characters, CharacterVersion
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.pool import Pool
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.records import Conversation, FrozenText, Message, Scene
from appliance.tokens import common
from appliance.wire.access import EngineAccess
from tests.unit.prompt.formats import format_of
from tests.unit.prompt.templates import CHATML

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTEXT_TOKENS = 16_384


def model_of(template: str) -> ModelText:
    """A model that is a chat format over the small tokenizer."""
    chat_format = format_of(template)
    return ModelText(tokenizer=chat_format.tokenizer, chat_format=chat_format, stop_token_ids=())


@dataclass(slots=True)
class ExplainedChat:
    """A conversation, all of its turns in the order in which they ran, and all that they left."""

    bundle: Bundle
    template: str = CHATML
    context_tokens: int = CONTEXT_TOKENS
    scene: Scene = field(default_factory=Scene)
    turns: list[ReplyPrompt] = field(default_factory=list)
    cached: list[bytes] = field(default_factory=list)
    made: int = 0

    @property
    def model(self) -> ModelText:
        return model_of(self.template)

    @property
    def conversation(self) -> Conversation:
        return Conversation(
            tenant="anna",
            conversation_id=UUID(int=1),
            title="",
            character=self.bundle.name,
            head_id=None,
            anchor_id=None,
            prompt_version=self.bundle.version,
            created_at=NOON,
            updated_at=NOON,
            scene=self.scene,
        )

    @property
    def builder(self) -> PromptBuilder:
        hello = SimpleNamespace(context_tokens_max=self.context_tokens)
        version = CharacterVersion.of(self.bundle)
        registry = PromptRegistry(cast(Pool, None))  # no version is asked for but this one
        return PromptBuilder(
            engine=cast(EngineAccess, SimpleNamespace(hello=hello)),
            model=self.model,
            catalog=Catalog(registry, current=Characters.of([version])),
            limits=ChatLimits(reply_reserve_tokens=20, truncation_step_tokens=40),
        )

    def message(self, role: str, text: str, parent: Message | None, **fields: Any) -> Message:
        """A stored message; ids and times grow."""
        self.made += 1
        tokenizer = self.model.tokenizer
        given = {
            "token_ids": tokenizer.encode(text),
            "tokenizer": tokenizer.fingerprint,
            "finish_reason": None,
            "prompt_tokens": None,
            "prefix_hit_tokens": None,
            **fields,
        }
        return Message(
            message_id=UUID(int=1000 + self.made),
            parent_id=None if parent is None else parent.message_id,
            role=role,
            text=text,
            created_at=NOON + timedelta(seconds=self.made),
            **given,
        )

    async def say(
        self,
        text: str,
        *,
        after: Sequence[Message] | None = None,
        lore: Sequence[FrozenText] = (),
        reply: str = "Yes.",
        **turn: Any,
    ) -> ReplyPrompt:
        """A message and its reply; `after` is the path that it goes on from, by itself the last one."""
        path = (self.turns[-1].path if self.turns else ()) if after is None else tuple(after)
        user = self.message("user", text, path[-1] if path else None, lore=tuple(lore))
        return await self.answer((*path, user), reply, **turn)

    async def answer(
        self,
        path: Sequence[Message],
        reply: str = "Yes.",
        *,
        found_most: int = CONTEXT_TOKENS,
        is_scene_known: bool = True,
        **fields: Any,
    ) -> ReplyPrompt:
        """A reply to the last message of a path; at most `found_most` tokens are still cached."""
        built = await self.builder.build(self.conversation, path)
        asked = built.prompt.token_ids
        hit = max((common(left, asked) for left in self.cached), default=0)
        stored: Mapping[str, Any] = {
            "finish_reason": "stop",
            "prompt_tokens": built.prompt.tokens,
            "prefix_hit_tokens": min(hit, built.prompt.tokens - 1, found_most),
            "prompt_version": self.bundle.version,
            "scene_digest": self.scene.digest,
            **fields,
        }
        said = self.message("assistant", reply, path[-1], **stored)
        turn = ReplyPrompt(
            conversation=self.conversation,
            path=(*path, said),
            built=built,
            is_scene_known=is_scene_known,
            tokenizer=self.model.tokenizer.fingerprint,
        )
        self.cached.append(left_behind(built.prompt, said, self.model.tokenizer).token_ids)
        self.turns.append(turn)
        return turn

    def move_to(self, bundle: Bundle) -> None:
        """The next turns are made with another version."""
        self.bundle = bundle

    def explained(self, index: int = -1) -> PromptExplanation:
        """The explanation of a turn against the one before it."""
        at = index % len(self.turns)
        before = self.turns[at - 1] if at else None
        return explained(self.turns[at], before, self.model)
