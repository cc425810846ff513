"""What supervisors and scrapers ask: /live, /ready, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from appliance.errors import ApplianceError
from appliance.server.services import SERVICES, Services

ENGINE_TIMEOUT_S = 2.0


async def live(_: web.Request) -> web.Response:
    """200 as long as the event loop turns."""
    return web.Response(body=b'{"live":true}', content_type="application/json")


async def ready(request: web.Request) -> web.Response:
    """200 when a chat can be answered and stored, else 503; both with the reasons as JSON."""
    reasons = await request.app[SERVICES].readiness.reasons()
    told = {
        "ready": not reasons,
        "reasons": [{"part": reason.part, "message": reason.message} for reason in reasons],
    }
    return web.Response(
        status=503 if reasons else 200,
        body=msgspec.json.encode(told),
        content_type="application/json",
        headers={"Retry-After": "1"} if reasons else {},
    )


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text: the server's own counters and the engine's gauges."""
    services = request.app[SERVICES]
    return web.Response(
        body=services.metrics.exposition(await _engine_values(services)),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def _engine_values(services: Services) -> Mapping[str, float] | None:
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S):
            return (await services.engine.ask()).values
    except (ApplianceError, TimeoutError):
        return None
