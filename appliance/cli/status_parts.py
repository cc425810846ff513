"""The parts of `appliance status`, each asked for by itself, so that one that is down hides no other.

A part that cannot be asked is `{"away": why}`. Never: starts, waits long, or changes anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from appliance.cli.admin_client import ask_socket
from appliance.cli.postgres import with_own_postgres
from appliance.cli.service_states import ServiceState, are_stopped, services
from appliance.cli.system_files import engine_units
from appliance.config import Config, engine_configs
from appliance.database_failure import DatabaseFailure
from appliance.dbops.monitoring.figures import read_figures
from appliance.dbops.target import Target
from appliance.errors import ApplianceError, EngineUnavailable
from appliance.store.migrate import schema_version
from appliance.store.pool import acquired, connect
from appliance.wire.client import NOBODY_LISTENS, EngineClient

PART_TIMEOUT_S = 3.0
Part: TypeAlias = Mapping[str, Any]


def gather(config: Config) -> dict[str, Any]:
    """Every part by name."""
    server = _server(config)
    states = services()
    return {
        **_system(states),
        "server": server,
        "engines": asyncio.run(_engines(config, states)),
        "database": asyncio.run(database_part(config)),
        # Only the server knows what of the file is done with; without it, the file's size is told.
        "journal": server.get("journal") or _journal(config.paths.journal_dir),
        "model": {"name": config.model.name, "path": str(config.model.path)},
    }


def gather_without_settings(why: str) -> dict[str, Any]:
    """What systemd tells to anybody; `why` the settings are not read."""
    return {**_system(services()), "settings": {"away": why}}


def _system(states: Mapping[str, ServiceState]) -> dict[str, Any]:
    return {
        "version": version("appliance"),
        "services": {unit: _service(state) for unit, state in states.items()},
        "is_stopped": are_stopped(states),
    }


def _service(state: ServiceState) -> Part:
    up_s = None if state.up_s is None else round(state.up_s, 1)
    return {**asdict(state), "up_s": up_s, "restarting": state.restarting}


def _server(config: Config) -> Part:
    try:
        told: Part = ask_socket(
            config.paths.admin_socket, "GET", "/status", timeout_s=PART_TIMEOUT_S
        )
    except ApplianceError as error:
        return {"away": error.message}
    return told


async def _engines(config: Config, states: Mapping[str, ServiceState]) -> dict[str, Part]:
    # What the client logs of an engine that it cannot use is told on the screen.
    logging.getLogger("appliance.wire").setLevel(logging.CRITICAL + 1)
    own = engine_configs(config)
    parts = await asyncio.gather(
        *(
            engine_part(each.paths.engine_socket, states.get(unit))
            for each, unit in zip(own, engine_units(config), strict=True)
        )
    )
    return dict(zip([each.paths.engine_name for each in own], parts, strict=True))


async def engine_part(path: Path, service: ServiceState | None = None) -> Part:
    """What an engine tells; `service`: its unit, where systemd has one, which knows of a load."""
    client = EngineClient(path)
    hello = None
    try:
        async with asyncio.timeout(PART_TIMEOUT_S), client:
            hello = await client.wait_ready()
            answer = await client.ask(timeout_s=PART_TIMEOUT_S)
    except TimeoutError:
        if hello is not None:
            return {"away": f"{path}: no answer within {PART_TIMEOUT_S:g} s"}
        return {"away": _why_away(client.fault, path, service)}
    except EngineUnavailable as error:
        return {"away": error.message}
    return {
        "pid": hello.pid,
        "device": hello.device,
        "model_fingerprint": hello.model_fingerprint,
        "context_tokens_max": hello.context_tokens_max,
        "values": {n: int(v) if v.is_integer() else v for n, v in answer.values.items()},
    }


def _why_away(fault: str, path: Path, service: ServiceState | None) -> str:
    if fault != NOBODY_LISTENS:
        return f"{path}: {fault}"
    if service is None:
        return f"{path}: {NOBODY_LISTENS}: it loads its model still, or does not run"
    if service.active == "activating" and service.restarting is None:
        return f"it starts: {service.status or 'loading the model'}"
    return f"it does not run: its service is {service.active or 'unknown'}"


async def database_part(config: Config) -> Part:
    """The figures of the database that the configuration means, and its schema's version.

    They come as what the server asks does: through its pool, so through a pooler as well.
    """
    try:
        database = with_own_postgres(config).database
        assert database.url is not None
        pool = await connect(database.url, database)
    except ApplianceError as error:
        return {"away": error.message}
    place = str(
        Target(url=config.database.url) if config.database.url else config.paths.postgres_dir
    )
    try:
        async with asyncio.timeout(PART_TIMEOUT_S), acquired(pool) as connection:
            figures = await read_figures(connection)
            return {**figures, "schema_version": await schema_version(connection)}
    except TimeoutError:
        return {"away": f"{place}: no answer within {PART_TIMEOUT_S:g} s"}
    except PermissionError:
        return {"away": f"{place}: only the folder's owner or root may speak to its server"}
    except OSError as error:
        return {"away": f"no PostgreSQL answers at {place}: {error.strerror or error}"}
    except DatabaseFailure as error:
        return {"away": f"{place}: {str(error) or type(error).__name__}"}
    finally:
        pool.terminate()


def _journal(folder: Path) -> Part:
    """The bytes that lie there."""
    try:
        sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    except FileNotFoundError:
        sizes = []
    except OSError as error:
        return {"away": f"{folder}: {error.strerror}"}
    return {"bytes": sum(sizes)}
