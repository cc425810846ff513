"""The frame around every request: id, who may ask, errors as envelopes, one log line at the end.

Never reads bodies and never logs what a client wrote: paths appear as their route's pattern.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from appliance.errors import ApplianceError, NotFound
from appliance.server.auth import Keys
from appliance.server.drain import Drain
from appliance.server.failures import (
    MethodNotAllowed,
    ReaderTooSlow,
    error_response,
    internal_error,
    log_bug,
)
from appliance.server.metrics import Metrics
from appliance.server.origin import refuse_foreign
from appliance.server.ticket import TICKET, Ticket
from appliance.spans import Span, Tracer

log = logging.getLogger("appliance.server")
http_log = logging.getLogger("appliance.server.http")

CLIENT_CLOSED_REQUEST = 499
"""Status in logs and counters for a client that left; never sent."""

OPEN_ROUTES = frozenset({"/live", "/ready"})
"""Answered without a key and while draining: what a supervisor polls."""

PAGE_ROUTES = frozenset({"/", "/page/{name}"})
"""The page itself, which holds nothing private."""


def request_frame(keys: Keys, drain: Drain, metrics: Metrics, tracer: Tracer) -> Middleware:
    """The one middleware of the application."""

    @web.middleware
    async def frame(request: web.Request, handler: Handler) -> web.StreamResponse:
        ticket = Ticket()
        request[TICKET] = ticket
        route = _route_of(request)
        status = CLIENT_CLOSED_REQUEST
        try:
            response = await _answer(request, handler, ticket, route, keys, drain)
            status = response.status
            return response
        finally:
            metrics.count_request(method=_method_of(request), route=route, status=status)
            if not _is_quiet(route, status):
                fields = _fields(request, ticket, route, status)
                level = logging.ERROR if status == 500 else logging.INFO
                log.log(level, "request", extra=fields)
                tracer.tell(_span(ticket, fields))

    return frame


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: every response says which request it answers."""
    ticket = request.get(TICKET)
    if ticket is not None:
        response.headers["X-Request-Id"] = ticket.request_id


def quiet_bad_http(record: logging.LogRecord) -> bool:
    """Log filter: bytes that are not HTTP are the client's fault; one line, no traceback, no bytes."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "bad_http", ()
        record.exc_info = None
        record.error = type(error).__name__
    return True


async def _answer(
    request: web.Request,
    handler: Handler,
    ticket: Ticket,
    route: str,
    keys: Keys,
    drain: Drain,
) -> web.StreamResponse:
    """Run the handler; whatever it raises becomes an answer, cancellation aside."""
    try:
        if not keys.required:
            refuse_foreign(request.headers, navigation=route in PAGE_ROUTES)
        if route not in OPEN_ROUTES:
            drain.refuse()
            if route not in PAGE_ROUTES:
                ticket.caller = keys.caller(request.headers.getall("Authorization", []))
        return await handler(request)
    except web.HTTPException as error:
        return _http_error(request, error, ticket)
    except ApplianceError as error:
        ticket.fields["code"] = error.code
        response = error_response(error, ticket.request_id)
        if drain.draining:
            response.force_close()
        return response
    except ReaderTooSlow:
        ticket.fields["code"] = "reader_too_slow"
        return _gone()
    except ConnectionError:
        return _gone()
    except Exception as error:
        log_bug(error, ticket.request_id)
        return error_response(internal_error(ticket.request_id), ticket.request_id)


def _http_error(
    request: web.Request, error: web.HTTPException, ticket: Ticket
) -> web.StreamResponse:
    """aiohttp's own refusals, in our envelope."""
    if error.status == 404:
        return error_response(NotFound("There is nothing at this address."), ticket.request_id)
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = MethodNotAllowed(f"This address takes {allowed} only.")
        response = error_response(refusal, ticket.request_id)
        response.headers["Allow"] = allowed
        return response
    raise error


def _gone() -> web.Response:
    """Never seen by anybody: its connection is closed."""
    return web.Response(status=CLIENT_CLOSED_REQUEST)


def _route_of(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unmatched"


def _method_of(request: web.Request) -> str:
    """The method as a bounded label: clients may invent any word."""
    known = ("GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT")
    return request.method if request.method in known else "other"


def _is_quiet(route: str, status: int) -> bool:
    """Whether nobody wants to hear of it."""
    if route in OPEN_ROUTES | PAGE_ROUTES | {"/metrics"} and status < 400:
        return True
    # A poll while something is away; what is away logs that itself.
    return route in OPEN_ROUTES and status == 503


def _fields(
    request: web.Request, ticket: Ticket, route: str, status: int
) -> dict[str, str | int | float]:
    """What log and trace say of a request."""
    return {
        "request_id": ticket.request_id,
        "method": _method_of(request),
        "route": route,
        "status": status,
        "ms": round(ticket.age_s() * 1000, 1),
        **ticket.fields,
    }


def _span(ticket: Ticket, fields: Mapping[str, str | int | float]) -> Span:
    """A request's span: under the engine's id of it, where it reached an engine."""
    ended_s = time.monotonic()
    started_s = ended_s - ticket.age_s()
    first_ms = fields.get("ttft_ms")
    code = fields.get("code")
    return Span(
        name=f"{fields['method']} {fields['route']}",
        request_id=str(fields.get("engine_request_id", ticket.request_id)),
        started_s=started_s,
        ended_s=ended_s,
        attributes={**fields, "http_request_id": ticket.request_id},
        moments={} if first_ms is None else {"first_text": started_s + float(first_ms) / 1000},
        failure=None if code is None else str(code),
    )
