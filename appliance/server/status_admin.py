"""GET /status at the operator's door: how the server itself is. Asks no engine and changes nothing."""

from __future__ import annotations

import os
from importlib.metadata import version

from aiohttp import web

from appliance.server.json_answer import json_answer
from appliance.server.services import SERVICES


async def server_status(request: web.Request) -> web.Response:
    """Version, process, streams, and what keeps it from answering chats."""
    services = request.app[SERVICES]
    reasons = await services.readiness.reasons()
    told = {
        "version": version("appliance"),
        "pid": os.getpid(),
        "ready": not reasons,
        "reasons": [reason.message for reason in reasons],
        "streams": services.streams.running,
        "streams_max": services.config.server.streams_max,
        "journal": services.storage.state().fields(),
        "index_coverage": services.turns.coverage.shares,
    }
    return json_answer(told)
