"""The parts of `appliance status`, each asked for by itself, so that one that is down hides no other.

A part that cannot be asked is `{"away": why}`. Never: starts, waits long, or changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from appliance.cli.admin_client import ask_socket
from appliance.cli.service_states import ServiceState, services
from appliance.config import Config, engine_configs
from appliance.database_failure import DatabaseFailure
from appliance.dbops.monitoring.figures import read_figures
from appliance.dbops.target import Target
from appliance.errors import ApplianceError, DatabaseError, EngineUnavailable
from appliance.store.migrate import schema_version
from appliance.wire.client import EngineClient

PART_TIMEOUT_S = 3.0
Part: TypeAlias = Mapping[str, Any]


def gather(config: Config) -> dict[str, Any]:
    """Every part by name."""
    server = _server(config)
    return {
        "version": version("appliance"),
        "services": {unit: _service(state) for unit, state in services().items()},
        "server": server,
        "engines": asyncio.run(_engines(config)),
        "database": asyncio.run(database_part(config)),
        # Only the server knows what of the file is done with; without it, the file's size is told.
        "journal": server.get("journal") or _journal(config.paths.journal_dir),
        "model": {"name": config.model.name, "path": str(config.model.path)},
    }


def _service(state: ServiceState) -> Part:
    return {**asdict(state), "restarting": state.restarting}


def _server(config: Config) -> Part:
    try:
        told: Part = ask_socket(
            config.paths.admin_socket, "GET", "/status", timeout_s=PART_TIMEOUT_S
        )
    except ApplianceError as error:
        return {"away": error.message}
    return told


async def _engines(config: Config) -> dict[str, Part]:
    own = engine_configs(config)
    parts = await asyncio.gather(*(_engine(engine.paths.engine_socket) for engine in own))
    return dict(zip([engine.paths.engine_name for engine in own], parts, strict=True))


async def _engine(path: Path) -> Part:
    try:
        async with asyncio.timeout(PART_TIMEOUT_S), EngineClient(path) as client:
            hello = await client.wait_ready()
            answer = await client.ask(timeout_s=PART_TIMEOUT_S)
    except TimeoutError:
        return {"away": f"no engine answers at {path}"}
    except EngineUnavailable as error:
        return {"away": error.message}
    return {
        "pid": hello.pid,
        "device": hello.device,
        "model_fingerprint": hello.model_fingerprint,
        "context_tokens_max": hello.context_tokens_max,
        "values": answer.values,
    }


async def database_part(config: Config) -> Part:
    """The figures of the database that the configuration means, and its schema's version."""
    url = config.database.url
    target = Target(directory=config.paths.postgres_dir) if url is None else Target(url=url)
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            return await _figures(target)
    except TimeoutError:
        return {"away": f"{target}: no answer within {PART_TIMEOUT_S:g} s"}
    except ApplianceError as error:
        return {"away": error.message}


async def _figures(target: Target) -> Part:
    connection = await target.connect()
    try:
        figures = await read_figures(connection)
        return {**figures, "schema_version": await schema_version(connection)}
    except DatabaseFailure as error:
        raise DatabaseError(f"{target}: {str(error) or type(error).__name__}") from error
    finally:
        connection.terminate()


def _journal(folder: Path) -> Part:
    """The bytes that lie there."""
    try:
        sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    except FileNotFoundError:
        sizes = []
    except OSError as error:
        return {"away": f"{folder}: {error.strerror}"}
    return {"bytes": sum(sizes)}
