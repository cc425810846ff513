"""What an operator asks about the cached tokens of a conversation, and does with them.

From a conversation to the tokens that its turns left behind, and from the engine's answer back to
messages and text. Never: decides what stays cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from appliance.chat.cache_explanation import CacheExplanation, ShownPath, explanation
from appliance.chat.plan import conversation_key
from appliance.chat.prompt_starts import prompt_starts
from appliance.chat.reply_prompts import ReplyPrompts
from appliance.chat.tips import Tips
from appliance.errors import ApplianceError, Conflict
from appliance.prompt.namespace import tenant_namespace
from appliance.tokens import count, tail
from appliance.wire.engines import Engines
from appliance.wire.frames import (
    AdminAnswer,
    AdminQuestion,
    Audited,
    AuditPath,
    AuditSample,
    Done,
    Explain,
    Explained,
    PathAudit,
    PathFrom,
    Pin,
    PurgeAll,
    PurgeNamespace,
    PurgePaths,
    Refused,
    Unpin,
)

QUESTION_TIMEOUT_S = 30.0
PATHS_BYTES_MAX = 16 * 1024 * 1024
"""Token ids in one question."""


class CacheView:
    """The operator's side of conversations. Every method raises EngineUnavailable, and what the engine
    refuses; those of a conversation raise NotFound, StorageUnavailable and InvalidRequest too."""

    def __init__(self, *, engine: Engines, prompts: ReplyPrompts, tips: Tips) -> None:
        self._engine = engine
        self._prompts = prompts
        self._tips = tips

    async def explain(self, *, tenant: str, conversation_id: UUID) -> CacheExplanation:
        """How much of the conversation is cached where, and why not more."""
        conversation, path, left = await self._prompts.shown(
            tenant=tenant, conversation_id=conversation_id
        )
        # One token more, so that the last one can be found.
        token_ids = left.token_ids
        *before, (namespace, known) = left.stretches
        answer = await self._ask(
            conversation_key(tenant, conversation_id),
            Explain(
                token_ids=token_ids + tail(token_ids, count(token_ids) - 1),
                stretches=[*before, (namespace, known + 1)],
            ),
        )
        assert isinstance(answer, Explained)
        hello, tokenizer = self._engine.hello, self._prompts.builder.model.tokenizer
        shown = ShownPath(
            conversation=conversation, path=path, left=left, tokenizer=tokenizer.fingerprint
        )
        return explanation(
            shown,
            answer,
            page_size=1 if hello is None else hello.page_size,
            decode=tokenizer.decode,
        )

    async def pin(self, *, tenant: str, conversation_id: UUID) -> int:
        """Keep what is cached of the conversation now; gives the pages of its path.

        Raises Conflict when the pins' budget has no room, or no turn ran since the server started.
        """
        conversation = await self._prompts.paths.ledger.get(tenant, conversation_id)
        known = self._tips.get((tenant, conversation_id), conversation.head_id)
        if known is None:
            raise Conflict(
                "no turn of this conversation ended where it stands since the server started: "
                "send a message first"
            )
        key = conversation_key(tenant, conversation_id)
        return await self._pages(key, Pin(conversation=key, node=known.node))

    async def unpin(self, *, tenant: str, conversation_id: UUID) -> int:
        """Let it be evicted again; 0 pages when it was not pinned."""
        key = conversation_key(tenant, conversation_id)
        return await self._pages(key, Unpin(conversation=key))

    async def purge(self, *, tenant: str, conversation_id: UUID) -> int:
        """Drop every private page of the conversation, of all its branches and cuts, in all tiers.

        What another conversation of the tenant begins with in the same way goes along. Where it cannot be
        said how all of its prompts began, every private page of the tenant is dropped.
        """
        paths, builder = self._prompts.paths, self._prompts.builder
        conversation = await paths.conversation(tenant, conversation_id)
        starts = await prompt_starts(paths.ledger, builder.catalog, builder.model, conversation)
        if starts is None:
            return await self.purge_tenant(tenant)
        return sum([await self._dropped(PurgePaths(paths=some)) for some in _in_frames(starts)])

    async def purge_tenant(self, tenant: str) -> int:
        """Drop every private page of a tenant, in all tiers."""
        return await self._dropped(PurgeNamespace(namespace=tenant_namespace(tenant)))

    async def purge_all(self) -> int:
        """Drop all that no request and no pin holds; gives the pages of the device."""
        return await self._dropped(PurgeAll())

    async def audit(
        self, *, tenant: str, conversation_id: UUID, timeout_s: float
    ) -> list[PathAudit]:
        """Compare what is cached of the conversation with a recomputation; empty when nothing is."""
        _, _, left = await self._prompts.shown(tenant=tenant, conversation_id=conversation_id)
        question = AuditPath(
            token_ids=left.token_ids, stretches=left.stretches, wait_ms=round(timeout_s * 1000)
        )
        answer = await self._ask(conversation_key(tenant, conversation_id), question, timeout_s)
        assert isinstance(answer, Audited)
        return answer.paths

    async def audit_sample(self, tokens: int, *, timeout_s: float) -> list[PathAudit]:
        """The same with turns that ended lately, until so many tokens are compared in each engine."""
        question = AuditSample(tokens=tokens, wait_ms=round(timeout_s * 1000))
        paths: list[PathAudit] = []
        for answer in await self._engine.question_each(question, timeout_s=timeout_s):
            answer = _accepted(answer)
            assert isinstance(answer, Audited)
            paths += answer.paths
        return paths

    async def _pages(self, conversation: bytes, question: Pin | Unpin) -> int:
        answer = await self._ask(conversation, question)
        assert isinstance(answer, Done)
        return answer.pages

    async def _dropped(self, question: PurgeAll | PurgeNamespace | PurgePaths) -> int:
        """Where its pages are, and where they were while an engine was away: every engine is asked."""
        pages = 0
        for answer in await self._engine.question_each(question, timeout_s=QUESTION_TIMEOUT_S):
            answer = _accepted(answer)
            assert isinstance(answer, Done)
            pages += answer.pages
        return pages

    async def _ask(
        self,
        conversation: bytes,
        question: AdminQuestion,
        timeout_s: float = QUESTION_TIMEOUT_S,
    ) -> AdminAnswer:
        return _accepted(await self._engine.question(conversation, question, timeout_s=timeout_s))


class _Refusal(ApplianceError):
    """The engine's refusal, under its own code."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.error_message)
        self.code = refused.error_code


def _accepted(answer: AdminAnswer) -> AdminAnswer:
    if isinstance(answer, Refused):
        raise _Refusal(answer)
    return answer


def _in_frames(paths: Sequence[PathFrom]) -> Iterator[list[PathFrom]]:
    """The paths in the order given, as many together as go into one frame."""
    some: list[PathFrom] = []
    size = 0
    for path in paths:
        size += len(path.token_ids)
        if some and size > PATHS_BYTES_MAX:
            yield some
            some, size = [], len(path.token_ids)
        some.append(path)
    if some:
        yield some
