"""One turn of a conversation, front to back: the only file that knows the order.

Plan, generate, append to the ledger, then done. A turn is stored once, with exactly the text that was
delivered, also when the client leaves or the engine fails. Never: HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID, uuid4

from appliance.chat.catalog import Catalog
from appliance.chat.coverage import Coverage
from appliance.chat.events import Delta, Event, TurnDone, TurnStarted, Usage
from appliance.chat.failures import Failures, KeepFailure
from appliance.chat.generation import Generation
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.plan import Place, Planner
from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.prompting import context_tokens, room_for_reply
from appliance.chat.reply import Reply, remember
from appliance.chat.reply_prompts import ReplyPrompts
from appliance.chat.running import Key, RunningTurns
from appliance.chat.stored_paths import StoredPaths
from appliance.chat.tips import KnownTurn, Tips
from appliance.chat.trials import Trials
from appliance.chat.turn_plan import Plan, RepeatedTurn
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.continuation import tip_after
from appliance.prompt.namespace import tenant_namespace
from appliance.store.ledger import Ledger
from appliance.store.records import FinishedTurn, NewMessage, StoredTurn
from appliance.tokens import count
from appliance.wire.access import EngineAccess
from appliance.wire.frames import Admitted, FinishReason

log = logging.getLogger("appliance.chat")

CLOSE_WAIT_S = 5.0
"""How long stopped turns may take to be stored; one that nobody reads any more is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Storing:
    """A reply, and the task that stores it."""

    reply: Reply
    task: asyncio.Task[StoredTurn]


class Turns:
    """Turns of stored conversations; one at a time in each. Safe to share between all requests."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        running: RunningTurns,
        engine: EngineAccess,
        model: ModelText,
        catalog: Catalog,
        limits: ChatLimits,
        trials: Trials | None = None,
        keep_failure: KeepFailure | None = None,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._ledger = ledger
        self._trials = trials or Trials()
        self._failures = Failures(self._trials, keep_failure)
        self._engine = engine
        self._model = model
        self._limits = limits
        tips = Tips()
        self.coverage = Coverage()
        builder = PromptBuilder(engine=engine, model=model, catalog=catalog, limits=limits)
        paths = StoredPaths(ledger=ledger, catalog=catalog)
        self.prompts = ReplyPrompts(paths=paths, builder=builder)
        self.planner = Planner(
            paths=paths,
            builder=builder,
            limits=limits,
            tips=tips,
            new_id=new_id,
        )
        self.tips = tips
        self._running = running
        self._tasks: set[asyncio.Task[StoredTurn]] = set()

    def send(
        self,
        *,
        tenant: str,
        conversation_id: UUID,
        text: str,
        parent: UUID | Place | None,
        turn_key: UUID | None,
        params: GenerationParams,
        speaker: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """A user's message and its reply.

        `parent` is the message it answers: Place.HEAD goes on where the conversation stands, another
        message branches (an edit is a new child of the edited message's parent), None is a new root.
        A `turn_key` that was stored before gives the stored turn again. `speaker` is the member of a
        group who answers, None leaves it to the text. Raises InvalidRequest, NotFound, Conflict,
        EngineUnavailable, ContextLengthExceeded before TurnStarted, when nothing is stored; a failure
        after it is raised when what was delivered is stored.
        """
        plan = partial(
            self.planner.send,
            tenant=tenant,
            conversation_id=conversation_id,
            text=text,
            parent=parent,
            turn_key=turn_key,
            speaker=speaker,
        )
        return self._stream((tenant, conversation_id), plan, params)

    def regenerate(
        self,
        *,
        tenant: str,
        conversation_id: UUID,
        message_id: UUID | None,
        params: GenerationParams,
        speaker: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Another reply beside an assistant's message (the head when None); the old one stays.

        Raises as `send`, and InvalidRequest for a message that is no reply.
        """
        plan = partial(
            self.planner.regenerate,
            tenant=tenant,
            conversation_id=conversation_id,
            message_id=message_id,
            speaker=speaker,
        )
        return self._stream((tenant, conversation_id), plan, params)

    def cancel(self, *, tenant: str, conversation_id: UUID) -> bool:
        """Stop the running turn where it was delivered; False when none runs."""
        return self._running.stop((tenant, conversation_id))

    @property
    def running(self) -> int:
        """How many turns run or are being stored."""
        return len(self._running)

    async def close(self) -> None:
        """Stop every running turn and wait until all that was delivered is stored."""
        await self._running.stop_all(CLOSE_WAIT_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._failures.close()

    async def _stream(
        self,
        key: Key,
        decide: Callable[[], Awaitable[Plan | RepeatedTurn]],
        params: GenerationParams,
    ) -> AsyncGenerator[Event, None]:
        """The events of one turn, under a claim on its conversation.

        The claim goes with the task that stores the turn, which gives it back when that is done,
        whether this generator still waits for it or its client left. Without such a task (refused,
        replayed, failed before the engine took it) it is given back here.
        """
        begun_at = time.perf_counter()
        running = await self._running.claim(key)
        plan: Plan | RepeatedTurn | None = None
        storing: _Storing | None = None
        try:
            plan = await decide()
            if isinstance(plan, RepeatedTurn):
                for old in _replayed(plan):
                    yield old
                return
            self._ledger.require_room(len(self._running))
            generation = self._generation(plan, params, begun_at)
            running.attach(generation)
            started = False
            try:
                async with aclosing(generation.run()) as events:
                    async for event in events:
                        if isinstance(event, Admitted):
                            started = True
                            self._observe(key, plan, event)
                            yield _started(plan, event)
                        else:
                            yield event
            finally:
                # Also when the client left: what it was given is stored, whoever still waits for it.
                if started or generation.failure is None:
                    running.is_ending = True
                    storing = self._store(key, plan, generation.reply())
            # The task outlives this generator when the client leaves now.
            stored = None if storing is None else await asyncio.shield(storing.task)
            if generation.failure is not None:
                raise generation.failure
            assert storing is not None
            assert stored is not None
            if not started:
                yield _started(plan, None)
            yield TurnDone(
                finish_reason=storing.reply.finish_reason,
                text=storing.reply.text,
                usage=storing.reply.usage,
                message=stored.assistant,
            )
        except Exception as error:
            if storing is None:
                self._failures.note(key, error, plan if isinstance(plan, Plan) else None)
            raise
        finally:
            if storing is None:
                self._running.release(key)

    def _generation(self, plan: Plan, params: GenerationParams, begun_at: float) -> Generation:
        context = context_tokens(self._engine)
        return Generation(
            self._engine,
            self._model,
            request_id=str(plan.assistant_id),
            tenant=plan.tenant,
            prompt=plan.prompt,
            onward=plan.onward,
            params=params.with_settings(plan.sampling),
            new_tokens_max=room_for_reply(
                context, plan.prompt.tokens, params.new_tokens_max, self._limits
            ),
            begun_at=begun_at,
        )

    def _store(self, key: Key, plan: Plan, reply: Reply) -> _Storing:
        """Append the turn in a task of its own, which no client can cancel and which owns the claim."""
        tokenizer = self._model.tokenizer
        remember(tokenizer, tenant_namespace(plan.tenant), reply.text, reply.token_ids)
        assistant = NewMessage(
            message_id=plan.assistant_id,
            role="assistant",
            text=reply.text,
            token_ids=reply.token_ids,
            tokenizer=tokenizer.fingerprint,
            finish_reason=reply.finish_reason,
            prompt_tokens=reply.usage.prompt_tokens,
            prefix_hit_tokens=reply.usage.prefix_hit_tokens,
            ttft_ms=reply.ttft_ms,
            reply_ms=reply.reply_ms,
        )
        turn = FinishedTurn(
            turn_key=plan.turn_key,
            tenant=plan.tenant,
            conversation_id=plan.conversation_id,
            parent_id=plan.parent_id,
            user=plan.user,
            assistant=assistant,
            title=plan.title,
            anchor_id=plan.anchor_id,
            prompt_version=plan.prompt_version,
            scene_digest=plan.scene.digest,
            speaker=plan.speaker,
            exposes=self._trials.exposes_of(plan),
        )
        task = asyncio.create_task(self._ledger.append_turn(turn), name="store-turn")
        self._tasks.add(task)
        known = self._known(plan, reply)
        task.add_done_callback(partial(self._stored, key, plan, reply, known))
        return _Storing(reply=reply, task=task)

    def _observe(self, key: Key, plan: Plan, admitted: Admitted) -> None:
        self.coverage.observe(
            key,
            plan.fitted,
            parent_id=plan.parent_id,
            hit_tokens=admitted.prefix_hit_tokens,
            prompt_version=plan.prompt_version,
        )

    def _known(self, plan: Plan, reply: Reply) -> KnownTurn | None:
        """What the next turn may go on from, once this one is stored."""
        if reply.node is None or reply.token_ids is None:
            return None
        tip = tip_after(
            self._model.chat_format,
            plan.fitted,
            reply.text,
            reply_tokens=count(reply.token_ids),
            end=reply.node.tokens,
        )
        if tip is None:
            return None
        return KnownTurn(
            reply_id=plan.assistant_id,
            place_id=plan.place_id,
            node=reply.node,
            tip=tip,
            recall=plan.recall.answered(plan.lore, reply.text),
            prompt_version=plan.prompt_version,
            scene_digest=plan.scene.digest,
            anchor_id=plan.anchor_id,
            speaker=plan.speaker,
        )

    def _stored(
        self,
        key: Key,
        plan: Plan,
        reply: Reply,
        known: KnownTurn | None,
        task: asyncio.Task[StoredTurn],
    ) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        self.tips.put(key, known if error is None and not task.cancelled() else None)
        if error is None and not task.cancelled():
            self.coverage.put(
                key,
                plan.fitted,
                parent_id=plan.parent_id,
                reply_id=plan.assistant_id,
                reply_tokens=count(reply.token_ids or b""),
                prompt_version=plan.prompt_version,
            )
        self._running.release(key)
        if error is not None:
            log.error(
                "turn_not_stored",
                extra={
                    "error": type(error).__name__,
                    "conversation_id": str(plan.conversation_id),
                    "turn_id": str(plan.turn_key),
                    "engine_request_id": str(plan.assistant_id),
                },
            )


def _started(plan: Plan, admitted: Admitted | None) -> TurnStarted:
    return TurnStarted(
        turn_id=plan.turn_key,
        user_message_id=None if plan.user is None else plan.user.message_id,
        assistant_message_id=plan.assistant_id,
        prompt_tokens=plan.prompt.tokens,
        prefix_hit_tokens=0 if admitted is None else admitted.prefix_hit_tokens,
        messages_dropped=plan.messages_dropped,
        prompt_version=plan.prompt_version,
        speaker=plan.speaker,
    )


def _replayed(replay: RepeatedTurn) -> list[Event]:
    """The events of a turn that was stored before, as if it ran again.

    Tokens that ended the reply are not stored: `new_tokens` counts those of the text.
    """
    stored, reply = replay.stored, replay.stored.assistant
    usage = Usage(
        prompt_tokens=reply.prompt_tokens or 0,
        prefix_hit_tokens=reply.prefix_hit_tokens or 0,
        new_tokens=count(reply.token_ids or b""),
    )
    started = TurnStarted(
        turn_id=stored.turn_key,
        user_message_id=None if stored.user is None else stored.user.message_id,
        assistant_message_id=reply.message_id,
        prompt_tokens=usage.prompt_tokens,
        prefix_hit_tokens=usage.prefix_hit_tokens,
        messages_dropped=replay.messages_dropped,
        prompt_version=reply.prompt_version,
        speaker=reply.speaker,
    )
    text = [Delta(text=reply.text, logprobs=())]
    done = TurnDone(
        finish_reason=cast(FinishReason, reply.finish_reason or "stop"),
        text=reply.text,
        usage=usage,
        message=reply,
    )
    return [started, *(text if reply.text else []), done]
