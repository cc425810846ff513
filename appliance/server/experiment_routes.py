"""What operators read in a browser: which experiments run, how they stand, and each one's report.

Never: looks at an experiment itself, which `appliance experiment check` does.
"""

from __future__ import annotations

from aiohttp import web

from appliance.errors import NotAllowed, NotFound
from appliance.experiment.report.frame import CONTENT_SECURITY_POLICY, framed
from appliance.experiment.report.markup import tag
from appliance.server.services import SERVICES
from appliance.server.ticket import TICKET

LIST = "index.html"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


async def to_list(request: web.Request) -> web.Response:
    """308 to the list: its links are relative to its own folder."""
    _refuse_others(request)
    return web.Response(status=308, headers={"Location": "/experiments/"})


async def show(request: web.Request) -> web.Response:
    """A page of the last check; raises NotAllowed for who is no operator, and NotFound."""
    _refuse_others(request)
    name = request.match_info["page"] or LIST
    page = request.app[SERVICES].experiment_pages.get(name)
    if page is None:
        if name != LIST:
            raise NotFound("No experiment of this name was looked at since the server started.")
        page = _nobody_looked().encode()
    return web.Response(body=page, headers=_HEADERS)


def _refuse_others(request: web.Request) -> None:
    if not request[TICKET].caller.is_operator:
        raise NotAllowed(
            "Only the operator's key may read experiments (server.api_keys: operator)."
        )


def _nobody_looked() -> str:
    told = "Nobody has looked since the server started: `appliance experiment check` does."
    return framed("Experiments", tag("h1", "Experiments"), tag("p", told, class_="soft"))
