"""The operator's door: over a unix socket of this user alone, never TCP.

Owns the addresses and the tenant of a question about a conversation, which `chat/cache_view.py` and
`chat/prompt_view.py` answer; what is asked about versions of prompts is in `prompt_admin.py`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from aiohttp import web
from aiohttp.typedefs import Handler

from appliance.chat.cache_view import QUESTION_TIMEOUT_S, CacheView
from appliance.errors import ApplianceError, InvalidRequest, NotFound
from appliance.server.admin_requests import (
    AUDIT,
    PURGE,
    AuditRequest,
    PurgeRequest,
)
from appliance.server.auth import Keys
from appliance.server.body import read_json
from appliance.server.conversation_answers import explanation_fields
from appliance.server.experiment_admin import add_experiment_routes
from appliance.server.failures import error_response, internal_error, log_bug
from appliance.server.json_answer import json_answer
from appliance.server.prompt_admin import add_prompt_routes
from appliance.server.services import SERVICES, Services
from appliance.server.status_admin import server_status
from appliance.unix_socket import bind_unix_socket

log = logging.getLogger("appliance.server")

SHUTDOWN_S = 1.0
"""How long a question that waits for the engine may go on when the server ends."""

_CONVERSATION = "/cache/conversations/{conversation_id}"
_KEYS: web.AppKey[Keys] = web.AppKey("keys", Keys)


@asynccontextmanager
async def serving_admin(services: Services, keys: Keys) -> AsyncIterator[None]:
    """Listens on `Paths.admin_socket`, mode 0600. Raises ConfigError when the socket cannot be had."""
    path = services.config.paths.admin_socket
    runner = web.AppRunner(
        create_admin_app(services, keys),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, bind_unix_socket(path)).start()
        yield
        path.unlink(missing_ok=True)
    finally:
        await runner.cleanup()


def create_admin_app(services: Services, keys: Keys) -> web.Application:
    """The admin surface over the given services; who reaches it may do all."""
    app = web.Application(middlewares=[_frame])
    app[SERVICES] = services
    app[_KEYS] = keys
    app.router.add_get("/status", server_status)
    app.router.add_get("/cache/stats", _stats)
    app.router.add_get(_CONVERSATION, _explain)
    app.router.add_put(_CONVERSATION + "/pin", _pin)
    app.router.add_delete(_CONVERSATION + "/pin", _unpin)
    app.router.add_get("/prompt/conversations/{conversation_id}", _explain_prompt)
    app.router.add_post("/cache/purge", _purge)
    app.router.add_post("/cache/audit", _audit)
    add_prompt_routes(app.router)
    add_experiment_routes(app.router)
    return app


@web.middleware
async def _frame(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Failures as envelopes, and one log line for each question."""
    request_id = uuid4().hex
    code = None
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status not in (404, 405):
            raise
        code = NotFound.code
        return error_response(NotFound("There is nothing at this address."), request_id)
    except ApplianceError as error:
        code = error.code
        return error_response(error, request_id)
    except Exception as error:
        code = "internal_error"
        log_bug(error, request_id)
        return error_response(internal_error(request_id), request_id)
    finally:
        resource = request.match_info.route.resource
        log.info(
            "admin_request",
            extra={
                "request_id": request_id,
                "method": request.method,
                "route": "unmatched" if resource is None else resource.canonical,
                "code": code,
            },
        )


async def _stats(request: web.Request) -> web.Response:
    """GET: each engine's gauges and counters, None of one that is away; the index coverage by role."""
    services = request.app[SERVICES]
    engines = await _engine_values(services)
    return json_answer({"engines": engines, "index_coverage": services.turns.coverage.shares})


async def _explain(request: web.Request) -> web.Response:
    """GET: what is cached of a conversation, and why not more."""
    view, tenant, conversation_id = _conversation(request)
    explanation = await view.explain(tenant=tenant, conversation_id=conversation_id)
    return json_answer(explanation_fields(explanation))


async def _explain_prompt(request: web.Request) -> web.Response:
    """GET ?message: what a reply's prompt was made of, and what broke its prefix."""
    _, tenant, conversation_id = _conversation(request)
    asked = request.query.get("message")
    explanation = await request.app[SERVICES].prompt_view.explain(
        tenant=tenant,
        conversation_id=conversation_id,
        message_id=None if asked is None else _uuid(asked, "message"),
    )
    return json_answer(explanation_fields(explanation))


async def _pin(request: web.Request) -> web.Response:
    """PUT: keep a conversation cached."""
    view, tenant, conversation_id = _conversation(request)
    return json_answer({"pages": await view.pin(tenant=tenant, conversation_id=conversation_id)})


async def _unpin(request: web.Request) -> web.Response:
    """DELETE: let it be evicted again."""
    view, tenant, conversation_id = _conversation(request)
    return json_answer({"pages": await view.unpin(tenant=tenant, conversation_id=conversation_id)})


async def _purge(request: web.Request) -> web.Response:
    """POST: drop what is cached of a conversation, of a tenant, or of all."""
    services = request.app[SERVICES]
    services.readiness.require_schema()
    asked: PurgeRequest = await read_json(request, PURGE)
    view = services.cache_view
    if asked.everything == (asked.conversation is not None or asked.tenant is not None):
        raise InvalidRequest("say either `everything`, or whose: a conversation or a tenant")
    if asked.everything:
        pages = await view.purge_all()
    elif asked.conversation is not None:
        tenant = _tenant(request, asked.tenant)
        pages = await view.purge(tenant=tenant, conversation_id=asked.conversation)
    else:
        pages = await view.purge_tenant(_tenant(request, asked.tenant))
    return json_answer({"pages": pages})


async def _audit(request: web.Request) -> web.Response:
    """POST: recompute what is cached of a conversation, or of turns that ended lately."""
    services = request.app[SERVICES]
    services.readiness.require_schema()
    asked: AuditRequest = await read_json(request, AUDIT)
    view = services.cache_view
    if asked.conversation is None:
        paths = await view.audit_sample(asked.tokens, timeout_s=asked.timeout_s)
    else:
        paths = await view.audit(
            tenant=_tenant(request, asked.tenant),
            conversation_id=asked.conversation,
            timeout_s=asked.timeout_s,
        )
    engines = (await _engine_values(services)).values()
    return json_answer(
        {
            "paths": paths,
            "alarm": any(values and values["audit_alarm"] > 0 for values in engines),
            "index_coverage": services.turns.coverage.shares,
        }
    )


async def _engine_values(services: Services) -> dict[str, dict[str, float] | None]:
    answers = await services.engine.ask_each(timeout_s=QUESTION_TIMEOUT_S)
    return {name: None if said is None else said.values for name, said in answers.items()}


def _conversation(request: web.Request) -> tuple[CacheView, str, UUID]:
    conversation_id = _uuid(request.match_info["conversation_id"], "conversation")
    services = request.app[SERVICES]
    services.readiness.require_schema()
    view = services.cache_view
    return view, _tenant(request, request.query.get("tenant")), conversation_id


def _uuid(text: str, param: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidRequest(f"expected a {param}'s id, a UUID", param=param) from error


def _tenant(request: web.Request, asked: str | None) -> str:
    """The tenant that was named, or the only one there is."""
    tenants = request.app[_KEYS].tenants
    if asked is None and len(tenants) > 1:
        raise InvalidRequest(f"{len(tenants)} tenants are configured: name one", param="tenant")
    if asked is not None and asked not in tenants:
        raise NotFound("no such tenant in server.api_keys", param="tenant")
    return tenants[0] if asked is None else asked
