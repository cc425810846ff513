"""The operator's questions and deeds about prompts, at the admin socket. Owns addresses and shapes.

What is published, moved or compared is decided in `chat/`. Never: reads a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aiohttp import web

from appliance.chat.prompt_diff import prompt_diff
from appliance.chat.prompt_replay import prompt_replay
from appliance.chat.publishing import publish
from appliance.prompt.bundle import Bundle
from appliance.prompt.try_out import try_out
from appliance.server.body import read_json
from appliance.server.json_answer import json_answer
from appliance.server.prompt_answers import diff_fields
from appliance.server.prompt_requests import (
    BODY_BYTES_MAX,
    DIFF,
    MOVE_LABEL,
    PUBLISH,
    REPLAY,
    MoveLabel,
    Publish,
    Reference,
    SentBundle,
)
from appliance.server.services import SERVICES, Services
from appliance.store.prompt_records import PRODUCTION


def add_prompt_routes(router: web.UrlDispatcher) -> None:
    """Everything under /prompts."""
    router.add_get("/prompts", _names)
    router.add_post("/prompts", _publish)
    router.add_post("/prompts/diff", _diff)
    router.add_post("/prompts/replay", _replay)
    router.add_get("/prompts/{name}", _history)
    router.add_get("/prompts/{name}/versions/{at}", _files)
    router.add_put("/prompts/{name}/labels/{label}", _move)


async def _names(request: web.Request) -> web.Response:
    """GET: every name that has a version, and those that new conversations may have (`served`)."""
    registry = _services(request).catalog.registry
    served = [label.name for label in await registry.labelled(PRODUCTION)]
    return json_answer({"names": await registry.names(), "served": served})


async def _publish(request: web.Request) -> web.Response:
    """POST: store a version; says whether it is new."""
    services = _services(request)
    asked: Publish = await read_json(request, PUBLISH, bytes_max=BODY_BYTES_MAX)
    version, is_new = await publish(
        services.catalog.registry,
        _bundle(asked.bundle),
        author=asked.author,
        message=asked.message,
    )
    return json_answer({"name": asked.bundle.name, "version": version, "is_new": is_new})


async def _history(request: web.Request) -> web.Response:
    """GET: versions, labels and what happened to them, newest first; which experiments shipped one."""
    registry, name = _services(request).catalog.registry, request.match_info["name"]
    versions = await registry.versions(name)
    labels, moves = await registry.labels(name), await registry.moves(name)
    shipped = await _services(request).experimenting.experiments.shipped(name)
    return json_answer(
        {
            "name": name,
            "versions": [_without_name(version) for version in versions],
            "labels": [_without_name(label) for label in labels],
            "moves": [_without_name(move) for move in moves],
            "shipped": [asdict(arm) for arm in shipped],
        }
    )


async def _files(request: web.Request) -> web.Response:
    """GET: the files of what a label or the beginning of a version means."""
    bundle = await _found(_services(request), request.match_info["name"], request.match_info["at"])
    return json_answer(
        {"name": bundle.name, "version": bundle.version, "files": dict(bundle.files)}
    )


async def _move(request: web.Request) -> web.Response:
    """PUT: move a label; `move` is null when it was there already. Serves at once where it is served."""
    services = _services(request)
    name, label = request.match_info["name"], request.match_info["label"]
    asked: MoveLabel = await read_json(request, MOVE_LABEL, bytes_max=BODY_BYTES_MAX)
    registry = services.catalog.registry
    version = await registry.resolve(name, asked.version)
    # A label never stands at what this program cannot serve.
    await services.catalog.of(name, version)
    move = await registry.move(
        name,
        label,
        version,
        seen=asked.seen,
        author=asked.author,
        message=asked.message,
        protect=asked.protect,
        confirmed=asked.confirmed,
    )
    await services.catalog.reload()
    return json_answer(
        {
            "name": name,
            "label": label,
            "version": version,
            "move": None if move is None else _without_name(move),
        }
    )


async def _diff(request: web.Request) -> web.Response:
    """POST: what an edit does to live chats."""
    services = _services(request)
    asked = await read_json(request, DIFF, bytes_max=BODY_BYTES_MAX)
    before, after = await _both(services, asked.before, asked.after)
    prompts = services.turns.prompts
    found = await prompt_diff(prompts.paths, prompts.builder, before, after, days=asked.days)
    return json_answer(diff_fields(found))


async def _replay(request: web.Request) -> web.Response:
    """POST: recorded conversations under both versions."""
    services = _services(request)
    asked = await read_json(request, REPLAY, bytes_max=BODY_BYTES_MAX)
    before, after = await _both(services, asked.before, asked.after)
    prompts = services.turns.prompts
    found = await prompt_replay(
        prompts.paths, prompts.builder, before, after, conversations=asked.conversations
    )
    return json_answer(asdict(found))


async def _both(services: Services, before: Reference, after: Reference) -> tuple[Bundle, Bundle]:
    before.check("before")
    after.check("after")
    return await _bundle_of(services, before), await _bundle_of(services, after)


async def _bundle_of(services: Services, reference: Reference) -> Bundle:
    if reference.bundle is not None:
        bundle = _bundle(reference.bundle)
        await asyncio.to_thread(try_out, bundle)
        return bundle
    assert reference.name is not None
    assert reference.at is not None
    return await _found(services, reference.name, reference.at)


async def _found(services: Services, name: str, at: str) -> Bundle:
    version = await services.catalog.registry.resolve(name, at)
    return await services.catalog.bundle(name, version)


def _bundle(sent: SentBundle) -> Bundle:
    return Bundle(name=sent.name, files=sent.files)


def _services(request: web.Request) -> Services:
    services = request.app[SERVICES]
    services.readiness.require_schema()
    return services


def _without_name(row: Any) -> Mapping[str, Any]:
    return {key: value for key, value in asdict(row).items() if key != "name"}
