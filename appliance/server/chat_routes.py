"""POST /v1/chat/completions and GET /v1/models, as OpenAI has them. Owns no generation."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from appliance.errors import NotFound
from appliance.server.body import read_json
from appliance.server.chat_answers import ChatAnswer
from appliance.server.chat_requests import CHAT_REQUEST
from appliance.server.json_answer import json_answer
from appliance.server.reply import stream_reply, whole_reply
from appliance.server.services import SERVICES, Services
from appliance.server.sse import DONE
from appliance.server.ticket import TICKET


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer a conversation that the client holds."""
    services, ticket = request.app[SERVICES], request[TICKET]
    asked = await read_json(request, CHAT_REQUEST)
    asked.check(model=services.config.model.name)
    events = services.completions.run(
        tenant=ticket.tenant,
        messages=asked.chat_messages(),
        params=asked.generation_params(
            vocab_size=services.tokenizer.vocab_size, arrived_s=ticket.arrived_s
        ),
        continue_final_message=bool(asked.continue_final_message),
    )
    answer = ChatAnswer(
        request_id=ticket.request_id,
        model=services.config.model.name,
        fingerprint=_fingerprint(services),
        tokenizer=services.tokenizer,
        with_usage=asked.include_usage,
        with_logprobs=bool(asked.logprobs),
    )
    ticket.fields["model"] = services.config.model.name
    if asked.stream:
        return await stream_reply(request, events, answer.chunks, error_event=None, last=DONE)
    whole = answer.whole(await whole_reply(request, events))
    return json_answer(whole)


async def list_models(request: web.Request) -> web.Response:
    """The one model served here."""
    models = {"object": "list", "data": [_model(request.app[SERVICES])]}
    return json_answer(models)


async def get_model(request: web.Request) -> web.Response:
    """One model by its name."""
    services = request.app[SERVICES]
    if request.match_info["model"] != services.config.model.name:
        raise NotFound(f"The model served here is {services.config.model.name!r}.", param="model")
    return json_answer(_model(services))


def _model(services: Services) -> dict[str, Any]:
    hello = services.engine.hello
    return {
        "id": services.config.model.name,
        "object": "model",
        "created": 0,
        "owned_by": "appliance",
        "context_tokens_max": hello.context_tokens_max if hello is not None else None,
    }


def _fingerprint(services: Services) -> str | None:
    hello = services.engine.hello
    return f"fp_{hello.model_fingerprint[:12]}" if hello is not None else None
