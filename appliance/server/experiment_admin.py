"""The operator's deeds with experiments, at the admin socket. Owns addresses and shapes.

What may be done is decided in `chat/experimenting.py`. Never: measures, or reads a file.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
from aiohttp import web

from appliance.chat.experimenting import Experimenting
from appliance.chat.prompt_diff import PromptDiff
from appliance.server.body import read_json
from appliance.server.experiment_requests import (
    BODY_BYTES_MAX,
    CREATE,
    LINT,
    PAGES,
    PAUSE,
    SHIP,
    START,
    STOP,
    WITHDRAW,
)
from appliance.server.json_answer import json_answer
from appliance.server.prompt_answers import diff_fields
from appliance.server.services import SERVICES
from appliance.store.experiment_records import Experiment


def add_experiment_routes(router: web.UrlDispatcher) -> None:
    """Everything under /experiments."""
    router.add_get("/experiments", _list)
    router.add_post("/experiments", _create)
    router.add_put("/experiments", _draw)
    router.add_post("/experiments/lint", _lint)
    router.add_get("/experiments/{name}", _show)
    router.add_get("/experiments/{name}/cost", _cost)
    router.add_post("/experiments/{name}/start", _start)
    router.add_post("/experiments/{name}/pause", _pause)
    router.add_post("/experiments/{name}/stop", _stop)
    router.add_post("/experiments/{name}/withdraw", _withdraw)
    router.add_post("/experiments/{name}/ship", _ship)


async def _list(request: web.Request) -> web.Response:
    """GET: every experiment, the newest first."""
    found = await _deeds(request).experiments.all()
    return json_answer({"experiments": [experiment_fields(experiment) for experiment in found]})


async def _draw(request: web.Request) -> web.Response:
    """PUT: what /experiments shows from now on."""
    asked = await read_json(request, PAGES, bytes_max=BODY_BYTES_MAX)
    request.app[SERVICES].experiment_pages.replace(asked.pages)
    return json_answer({"pages": len(asked.pages)})


async def _lint(request: web.Request) -> web.Response:
    """POST: what is wrong with a definition."""
    asked = await read_json(request, LINT, bytes_max=BODY_BYTES_MAX)
    return json_answer(asdict(await _deeds(request).lint(asked.definition)))


async def _create(request: web.Request) -> web.Response:
    """POST: store a draft."""
    asked = await read_json(request, CREATE, bytes_max=BODY_BYTES_MAX)
    experiment, linted = await _deeds(request).create(
        asked.definition, author=asked.author, message=asked.message
    )
    return json_answer({"experiment": experiment_fields(experiment), "notes": linted.notes})


async def _show(request: web.Request) -> web.Response:
    """GET: one experiment, what happened to it, and who is in it."""
    store, name = _deeds(request).experiments, request.match_info["name"]
    experiment = await store.get(name)
    events, counts = await store.events(name), await store.counts(name)
    return json_answer(
        {
            "experiment": experiment_fields(experiment),
            "events": [asdict(event) for event in events],
            "counts": [asdict(count) for count in counts],
            **asdict(await store.apart(name)),
        }
    )


async def _cost(request: web.Request) -> web.Response:
    """GET ?arm: what shipping an arm would cost live chats."""
    cost = await _deeds(request).cost(request.match_info["name"], request.query.get("arm", ""))
    return json_answer({"cost": _cost_fields(cost)})


async def _start(request: web.Request) -> web.Response:
    """POST: start it, or let more users in."""
    asked = await read_json(request, START, bytes_max=BODY_BYTES_MAX)
    experiment = await _deeds(request).start(
        request.match_info["name"],
        coverage=asked.coverage,
        author=asked.author,
        message=asked.message,
    )
    return json_answer({"experiment": experiment_fields(experiment)})


async def _pause(request: web.Request) -> web.Response:
    """POST: open no more conversations in an arm."""
    asked = await read_json(request, PAUSE, bytes_max=BODY_BYTES_MAX)
    paused = await _deeds(request).pause(
        request.match_info["name"], asked.arm, author=asked.author, message=asked.message
    )
    return json_answer({"paused": paused})


async def _stop(request: web.Request) -> web.Response:
    """POST: open no more conversations in it."""
    asked = await read_json(request, STOP, bytes_max=BODY_BYTES_MAX)
    experiment = await _deeds(request).stop(
        request.match_info["name"],
        author=asked.author,
        message=asked.message,
        report=bytes(asked.report).decode(),
    )
    return json_answer({"experiment": experiment_fields(experiment)})


async def _withdraw(request: web.Request) -> web.Response:
    """POST: give a draft up."""
    asked = await read_json(request, WITHDRAW, bytes_max=BODY_BYTES_MAX)
    experiment = await _deeds(request).withdraw(
        request.match_info["name"], author=asked.author, message=asked.message
    )
    return json_answer({"experiment": experiment_fields(experiment)})


async def _ship(request: web.Request) -> web.Response:
    """POST: move `production` to an arm's version."""
    asked = await read_json(request, SHIP, bytes_max=BODY_BYTES_MAX)
    shipped = await _deeds(request).ship(
        request.match_info["name"],
        asked.arm,
        author=asked.author,
        message=asked.message,
        report=bytes(asked.report).decode(),
        confirmed=asked.confirmed,
        anyway=asked.anyway,
    )
    return json_answer(
        {
            "version": shipped.version,
            "move": None if shipped.move is None else asdict(shipped.move),
            "cost": _cost_fields(shipped.cost),
        }
    )


def experiment_fields(experiment: Experiment) -> dict[str, Any]:
    """An experiment as answers tell it."""
    options = msgspec.structs.asdict(experiment.options)
    return {**asdict(experiment), "options": options, "overrides": dict(experiment.overrides)}


def _cost_fields(cost: PromptDiff | None) -> dict[str, Any] | None:
    return None if cost is None else diff_fields(cost)


def _deeds(request: web.Request) -> Experimenting:
    services = request.app[SERVICES]
    services.readiness.require_schema()
    return services.experimenting
