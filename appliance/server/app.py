"""Puts the application together: routes, the frame around them, the shared services. Opens nothing."""

from __future__ import annotations

from aiohttp import web

from appliance.errors import InvalidRequest
from appliance.prompt.cards.reading import CARD_BYTES_MAX
from appliance.server import (
    character_routes,
    chat_routes,
    conversation_routes,
    experiment_routes,
    ops_routes,
)
from appliance.server.auth import Keys
from appliance.server.body import refuse_announced_size
from appliance.server.failures import error_response
from appliance.server.middleware import (
    add_request_id,
    http_log,
    quiet_bad_http,
    request_frame,
)
from appliance.server.page_routes import Page
from appliance.server.services import SERVICES, Services
from appliance.server.ticket import TICKET, Ticket

_CONVERSATION = "/api/conversations/{conversation_id}"
_CHARACTER = "/v1/characters/{id}"
_MESSAGE = _CONVERSATION + "/messages/{message_id}"


HEAD_TIMEOUTS = 4
"""A connection waits this many body timeouts for a whole request head, idle ones included."""

HEADERS_MAX = 64
"""Lines of a request head; each is at most 8 KiB (aiohttp's own limit)."""

LINGER_S = 2.0
"""How long an unread body is still taken in after an early refusal, so that the refusal arrives."""

SHUTDOWN_S = 1.5
"""How long a handler may go on once its stream was cut, before it is cancelled."""


def create_runner(services: Services, keys: Keys) -> web.AppRunner:
    """The application with the connection settings it relies on."""
    http_log.addFilter(quiet_bad_http)
    return web.AppRunner(
        create_app(services, keys),
        handler_cancellation=True,
        access_log=None,
        logger=http_log,
        auto_decompress=False,
        max_headers=HEADERS_MAX,
        keepalive_timeout=HEAD_TIMEOUTS * services.config.server.body_timeout_s,
        lingering_time=LINGER_S,
        shutdown_timeout=SHUTDOWN_S,
    )


def create_app(services: Services, keys: Keys) -> web.Application:
    """The whole HTTP surface over the given services."""
    frame = request_frame(keys, services.drain, services.metrics, services.tracer)
    app = web.Application(middlewares=[frame])
    app[SERVICES] = services
    services.metrics.watch_streams(lambda: services.streams.running)
    services.metrics.watch_coverage(lambda: services.turns.coverage.shares)
    services.metrics.watch_storage(services.storage)
    app.on_response_prepare.append(add_request_id)
    page = Page()
    app.router.add_get("/", page.index)
    app.router.add_get("/page/{name}", page.asset)
    app.router.add_get("/live", ops_routes.live)
    app.router.add_get("/ready", ops_routes.ready)
    app.router.add_get("/health", ops_routes.health)
    app.router.add_get("/metrics", ops_routes.metrics)
    app.router.add_get("/experiments", experiment_routes.to_list)
    app.router.add_get("/experiments/{page:[^/]*}", experiment_routes.show)
    app.router.add_get("/v1/models", chat_routes.list_models)
    app.router.add_get("/v1/models/{model}", chat_routes.get_model)
    for path in ("/v1/characters", "/api/characters"):
        app.router.add_get(path, character_routes.list_characters)
    app.router.add_get(_CHARACTER + "/card", character_routes.export_card)
    app.router.add_delete(_CHARACTER, character_routes.remove_character)
    app.router.add_get(_CHARACTER + "/avatar", character_routes.portrait)
    app.router.add_get("/api/conversations", conversation_routes.list_conversations)
    app.router.add_get(_CONVERSATION, conversation_routes.get_conversation)
    app.router.add_delete(_CONVERSATION, conversation_routes.delete_conversation)
    app.router.add_get(_MESSAGE, conversation_routes.get_message)
    app.router.add_delete(_MESSAGE, conversation_routes.delete_branch)
    app.router.add_get(_MESSAGE + "/prompt", conversation_routes.get_prompt)
    app.router.add_get(_MESSAGE + "/explain", conversation_routes.explain_prompt)
    app.router.add_post(_CONVERSATION + "/cancel", conversation_routes.cancel_turn)
    for method, path, handler in (
        ("POST", "/v1/characters", character_routes.import_card),
        ("POST", "/v1/chat/completions", chat_routes.complete),
        ("POST", "/api/conversations", conversation_routes.create_conversation),
        ("PATCH", _CONVERSATION, conversation_routes.change_conversation),
        ("POST", _CONVERSATION + "/messages", conversation_routes.send_message),
        ("POST", _CONVERSATION + "/regenerate", conversation_routes.regenerate),
    ):
        app.router.add_route(method, path, handler, expect_handler=_before_body)
    return app


def _bytes_max(request: web.Request) -> int:
    if request.match_info.handler is character_routes.import_card:
        return CARD_BYTES_MAX
    return request.app[SERVICES].config.server.body_bytes_max


async def _before_body(request: web.Request) -> web.StreamResponse | None:
    """A client that asks before it sends (`Expect: 100-continue`) hears of a size limit at once."""
    ticket = Ticket()
    request[TICKET] = ticket
    try:
        if request.headers["Expect"].lower() != "100-continue":
            raise InvalidRequest("The only expectation met here is 100-continue.")
        refuse_announced_size(request, _bytes_max(request))
    except InvalidRequest as error:
        response = error_response(error, ticket.request_id)
        response.force_close()
        return response
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # Those bytes are no part of the answer; the writer must not count them as one.
    request.writer.output_size = 0
    return None
