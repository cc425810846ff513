"""What supervisors and scrapers ask: /live, /ready, /health, /metrics."""

from __future__ import annotations

import asyncio

from aiohttp import web

from appliance.server.box_metrics import box_exposition
from appliance.server.json_answer import json_answer
from appliance.server.services import SERVICES

ENGINE_TIMEOUT_S = 2.0


async def live(_: web.Request) -> web.Response:
    """200 as long as the event loop turns."""
    return json_answer({"live": True})


async def ready(request: web.Request) -> web.Response:
    """200 when a chat can be answered and stored, else 503; both with the reasons as JSON.

    Of several engines one is enough; `engines` then says which are there.
    """
    services = request.app[SERVICES]
    reasons = await services.readiness.reasons()
    told: dict[str, object] = {
        "ready": not reasons,
        "reasons": [{"part": reason.part, "message": reason.message} for reason in reasons],
        "journal": services.storage.state().fields(),
    }
    engines = services.engine.ready_by_name
    if len(engines) > 1:
        told["engines"] = engines
    answer = json_answer(told, status=503 if reasons else 200)
    if reasons:
        answer.headers["Retry-After"] = "1"
    return answer


async def health(request: web.Request) -> web.Response:
    """200 with what `ready` would say, for people and dashboards: being unwell is no failure to say
    so."""
    answer = await ready(request)
    answer.set_status(200)
    answer.headers.popall("Retry-After", None)
    return answer


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text: the server's own counters, the engines' gauges, and the box."""
    services = request.app[SERVICES]
    answers = await services.engine.ask_each(timeout_s=ENGINE_TIMEOUT_S)
    values = {name: None if answer is None else answer.values for name, answer in answers.items()}
    box = await asyncio.to_thread(box_exposition, services.config.paths.data_dir)
    return web.Response(
        body=services.metrics.exposition(values) + box,
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )
