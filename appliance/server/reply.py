"""Runs one generating request to its end, streamed or whole: slot, pings, errors, numbers for the log.

Owns the order of things between the chat layer and the wire; never their shape on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from aiohttp import web

from appliance.chat.events import Delta, Event, TurnDone, TurnStarted
from appliance.errors import ApplianceError
from appliance.server.failures import envelope, internal_error, log_bug
from appliance.server.pacing import Ping, paced
from appliance.server.services import SERVICES, Services
from appliance.server.sse import PING, EventStream, event_bytes
from appliance.server.ticket import TICKET, Ticket


async def stream_reply(
    request: web.Request,
    events: AsyncGenerator[Event, None],
    shape: Callable[[Event], Iterable[bytes]],
    *,
    error_event: str | None,
    last: bytes = b"",
) -> web.StreamResponse:
    """Send every event in its `shape`, pings in silences, `last` at a good end.

    A failure before the first byte is raised (an HTTP error); later it is sent as one event named
    `error_event`, and the connection is closed.
    """
    services, ticket = request.app[SERVICES], request[TICKET]
    stream = EventStream(request, services.config.server, services.drain, ticket.request_id)
    try:
        async with aclosing(_observed(services, ticket, events)) as steps:
            async for step in steps:
                if isinstance(step, Ping):
                    await stream.send(PING)
                    continue
                for data in shape(step):
                    await stream.send(data)
        if last:
            await stream.send(last)
        await stream.finish(keep_connection=not services.drain.draining)
    except ConnectionError:
        raise
    except Exception as error:
        failure = _as_failure(error, ticket)
        if not stream.opened:
            raise failure from error
        ticket.fields["code"] = failure.code
        told = envelope(failure, ticket.request_id)
        await stream.send(event_bytes(told, event=error_event))
        await stream.finish(keep_connection=False)
    return stream.response


async def whole_reply(request: web.Request, events: AsyncGenerator[Event, None]) -> list[Event]:
    """Run to the end and return all events; raises what the turn raises."""
    services, ticket = request.app[SERVICES], request[TICKET]
    async with aclosing(_observed(services, ticket, events)) as steps:
        return [step async for step in steps if not isinstance(step, Ping)]


async def _observed(
    services: Services, ticket: Ticket, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event | Ping, None]:
    """The paced events, counted; holds one of `server.streams_max` slots while they last."""
    server = services.config.server
    async with aclosing(events):
        with services.streams.one(server.streams_max):
            pacing = paced(events, interval_s=server.ping_interval_s, drain=services.drain)
            async with aclosing(pacing) as steps:
                async for step in steps:
                    _note(services, ticket, step)
                    yield step


def _note(services: Services, ticket: Ticket, step: Event | Ping) -> None:
    """Numbers for the metrics and the request's log line."""
    if isinstance(step, TurnStarted):
        ticket.fields["turn_id"] = str(step.turn_id)
        # The engine's log knows a request by the id of its reply, or of a turn that is not stored.
        ticket.fields["engine_request_id"] = str(step.assistant_message_id or step.turn_id)
        ticket.fields["prompt_tokens"] = step.prompt_tokens
        ticket.fields["prefix_hit_tokens"] = step.prefix_hit_tokens
    elif isinstance(step, Delta) and "ttft_ms" not in ticket.fields:
        age_s = ticket.age_s()
        ticket.fields["ttft_ms"] = round(age_s * 1000, 1)
        services.metrics.count_first_text(age_s)
    elif isinstance(step, TurnDone):
        usage = step.usage
        ticket.fields["new_tokens"] = usage.new_tokens
        ticket.fields["reason"] = step.finish_reason
        services.metrics.count_tokens(
            prompt=usage.prompt_tokens, cached=usage.prefix_hit_tokens, new=usage.new_tokens
        )


def _as_failure(error: Exception, ticket: Ticket) -> ApplianceError:
    if isinstance(error, ApplianceError):
        return error
    log_bug(error, ticket.request_id)
    return internal_error(ticket.request_id)
