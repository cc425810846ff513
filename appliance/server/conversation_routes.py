"""The native conversation API under /api: stored conversations, turns as events. Owns no turn."""

from __future__ import annotations

from uuid import UUID

import msgspec
from aiohttp import web

from appliance.chat.conversations import Conversations
from appliance.chat.params import CONVERSATION_SAMPLING, GenerationParams
from appliance.chat.plan import Place
from appliance.errors import InvalidRequest, NotFound
from appliance.server.body import read_json
from appliance.server.conversation_answers import (
    conversation_fields,
    explanation_fields,
    message_fields,
    prompt_fields,
    search_fields,
    tree_fields,
    turn_events,
)
from appliance.server.conversation_requests import (
    CHANGE_CONVERSATION,
    CREATE_CONVERSATION,
    REGENERATE,
    SEND_MESSAGE,
    ChangeConversation,
    note_of,
    persona_of,
)
from appliance.server.json_answer import json_answer
from appliance.server.reply import stream_reply
from appliance.server.sampling_fields import SamplingFields
from appliance.server.services import SERVICES, Services
from appliance.server.ticket import TICKET
from appliance.store.records import Conversation, Cursor, Scene

LIST_DEFAULT = 50
LIST_MAX = 200


async def create_conversation(request: web.Request) -> web.Response:
    """POST /api/conversations: 201 and the conversation."""
    services, tenant = _open(request)
    asked = await read_json(request, CREATE_CONVERSATION)
    conversation = await services.conversations.open(
        tenant=tenant,
        title=asked.title or "",
        character=asked.character,
        scene=Scene(
            persona=persona_of(asked.persona),
            note=note_of(asked.note),
            pinned=tuple(asked.pinned or ()),
        ),
        members=asked.members or (),
        user=asked.user,
    )
    return json_answer(conversation_fields(conversation), status=201)


async def list_conversations(request: web.Request) -> web.Response:
    """GET /api/conversations?limit&before: newest first; `next` is the `before` of the next page.

    With `search`, those that hold its text: each with its newest `match`, null where the title has it.
    """
    services, tenant = _open(request)
    limit = _limit(request.query.get("limit"))
    place = request.query.get("before")
    before = Cursor.parse(place) if place is not None else None
    text = request.query.get("search")
    if text is not None:
        page = await services.search.find(tenant, text, limit=limit, before=before)
        return json_answer(search_fields(page, is_full=len(page.found) == limit))
    found = await services.conversations.list(tenant=tenant, limit=limit, before=before)
    following = str(found[-1].cursor) if len(found) == limit else None
    listed = [conversation_fields(conversation) for conversation in found]
    return json_answer({"conversations": listed, "next": following})


async def get_conversation(request: web.Request) -> web.Response:
    """GET /api/conversations/{id}: the conversation and its whole tree."""
    services, tenant = _open(request)
    conversation_id = _uuid(request, "conversation_id")
    conversation = await services.conversations.get(tenant=tenant, conversation_id=conversation_id)
    messages = await services.conversations.messages(tenant=tenant, conversation_id=conversation_id)
    return json_answer(tree_fields(conversation, messages))


async def change_conversation(request: web.Request) -> web.Response:
    """PATCH /api/conversations/{id}: a new title, another head, what the user sets, another version.

    All of it, or nothing where anything is refused. With a version, the answer has
    `prompt_version_before`, null when there was none yet; with a persona, pinned texts or members
    `recompute_tokens`, what the next turn computes again at most.
    """
    services, tenant = _open(request)
    conversations = services.conversations
    conversation_id = _uuid(request, "conversation_id")
    asked = await read_json(request, CHANGE_CONVERSATION)
    conversation = await conversations.get(tenant=tenant, conversation_id=conversation_id)
    scene = _scene(asked, conversation, conversations)
    changed = await conversations.change(
        conversation,
        head_id=asked.head_id,
        title=asked.title,
        scene=scene,
        reference=asked.prompt_version,
        is_operator=request[TICKET].caller.is_operator,
    )
    moved: dict[str, str | int | None] = {}
    before_messages = (asked.persona, asked.pinned, asked.members)
    if scene != conversation.scene and any(f is not msgspec.UNSET for f in before_messages):
        moved = {"recompute_tokens": changed.recompute_tokens}
    if asked.prompt_version is not None:
        moved |= {"prompt_version_before": conversation.prompt_version}
    return json_answer({**conversation_fields(changed.conversation), **moved})


def _scene(
    asked: ChangeConversation, conversation: Conversation, conversations: Conversations
) -> Scene:
    """What the user has set, with what is asked for."""
    scene = conversation.scene
    if asked.persona is not msgspec.UNSET:
        scene = msgspec.structs.replace(scene, persona=persona_of(asked.persona))
    if asked.note is not msgspec.UNSET:
        scene = msgspec.structs.replace(scene, note=note_of(asked.note))
    if asked.pinned is not msgspec.UNSET:
        scene = msgspec.structs.replace(scene, pinned=tuple(asked.pinned or ()))
    if asked.members is not msgspec.UNSET:
        scene = conversations.with_members(conversation, scene, asked.members or ())
    return scene


async def delete_conversation(request: web.Request) -> web.Response:
    """DELETE /api/conversations/{id}: 204; a running turn ends first."""
    services, tenant = _open(request)
    await services.conversations.delete(
        tenant=tenant, conversation_id=_uuid(request, "conversation_id")
    )
    return web.Response(status=204)


async def delete_branch(request: web.Request) -> web.Response:
    """DELETE /api/conversations/{id}/messages/{message_id}: the message and all below it."""
    services, tenant = _open(request)
    conversation = await services.conversations.delete_branch(
        tenant=tenant,
        conversation_id=_uuid(request, "conversation_id"),
        message_id=_uuid(request, "message_id"),
    )
    return json_answer(conversation_fields(conversation))


async def send_message(request: web.Request) -> web.StreamResponse:
    """POST /api/conversations/{id}/messages: a turn as events."""
    services, tenant = _open(request)
    conversation_id = _uuid(request, "conversation_id")
    asked = await read_json(request, SEND_MESSAGE)
    events = services.turns.send(
        tenant=tenant,
        conversation_id=conversation_id,
        text=asked.text,
        parent=Place.HEAD if asked.parent_id is msgspec.UNSET else asked.parent_id,
        turn_key=asked.turn_key,
        speaker=asked.speaker,
        params=_params(request, asked),
    )
    return await stream_reply(request, events, turn_events, error_event="error")


async def regenerate(request: web.Request) -> web.StreamResponse:
    """POST /api/conversations/{id}/regenerate: another reply beside one, as events."""
    services, tenant = _open(request)
    conversation_id = _uuid(request, "conversation_id")
    asked = await read_json(request, REGENERATE)
    events = services.turns.regenerate(
        tenant=tenant,
        conversation_id=conversation_id,
        message_id=asked.message_id,
        speaker=asked.speaker,
        params=_params(request, asked),
    )
    return await stream_reply(request, events, turn_events, error_event="error")


async def cancel_turn(request: web.Request) -> web.Response:
    """POST /api/conversations/{id}/cancel: 202; `cancelled` says whether a turn was running."""
    services, tenant = _open(request)
    conversation_id = _uuid(request, "conversation_id")
    cancelled = services.turns.cancel(tenant=tenant, conversation_id=conversation_id)
    return json_answer({"cancelled": cancelled}, status=202)


async def get_message(request: web.Request) -> web.Response:
    """GET /api/conversations/{id}/messages/{message_id}."""
    services, tenant = _open(request)
    message = await services.conversations.message(
        tenant=tenant,
        conversation_id=_uuid(request, "conversation_id"),
        message_id=_uuid(request, "message_id"),
    )
    return json_answer(message_fields(message))


async def get_prompt(request: web.Request) -> web.Response:
    """GET /api/conversations/{id}/messages/{message_id}/prompt: what the model read for a reply."""
    services, tenant = _open(request)
    prompt = await services.prompt_view.prompt_of(
        tenant=tenant,
        conversation_id=_uuid(request, "conversation_id"),
        message_id=_uuid(request, "message_id"),
    )
    return json_answer(prompt_fields(prompt, services.tokenizer))


async def explain_prompt(request: web.Request) -> web.Response:
    """GET /api/conversations/{id}/messages/{message_id}/explain: what a reply's prompt was made of."""
    services, tenant = _open(request)
    explanation = await services.prompt_view.explain(
        tenant=tenant,
        conversation_id=_uuid(request, "conversation_id"),
        message_id=_uuid(request, "message_id"),
    )
    return json_answer(explanation_fields(explanation))


def _open(request: web.Request) -> tuple[Services, str]:
    """The services and the caller's tenant, once the database's schema is there."""
    services = request.app[SERVICES]
    services.readiness.require_schema()
    return services, request[TICKET].tenant


def _params(request: web.Request, asked: SamplingFields) -> GenerationParams:
    """How the reply of a turn is chosen; raises InvalidRequest."""
    return asked.params(
        vocab_size=request.app[SERVICES].tokenizer.vocab_size,
        arrived_s=request[TICKET].arrived_s,
        unnamed=CONVERSATION_SAMPLING,
    )


def _uuid(request: web.Request, name: str) -> UUID:
    try:
        return UUID(request.match_info[name])
    except ValueError as error:
        raise NotFound(f"{name}: no such id.", param=name) from error


def _limit(text: str | None) -> int:
    if text is None:
        return LIST_DEFAULT
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= LIST_MAX:
        raise InvalidRequest(f"limit: expected 1 to {LIST_MAX}.", param="limit")
    return int(text[:9])
