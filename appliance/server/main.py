"""The server process: builds everything from the configuration, serves, drains at a signal.

Starts and answers while engine and database are away. Never imports torch and never starts a process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from aiohttp import http_parser, web

from appliance.chat.cache_view import CacheView
from appliance.chat.card_import import CardImport
from appliance.chat.catalog import Catalog
from appliance.chat.completion import Completions
from appliance.chat.conversations import Conversations
from appliance.chat.experimenting import Experimenting
from appliance.chat.params import ChatLimits
from appliance.chat.prompt_view import PromptView
from appliance.chat.publishing import fill_empty
from appliance.chat.running import RunningTurns
from appliance.chat.trials import Trials
from appliance.chat.turn import Turns
from appliance.config import Config, engine_configs
from appliance.errors import ConfigError, StorageUnavailable
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.namespace import PUBLIC
from appliance.server.admin import serving_admin
from appliance.server.app import create_runner
from appliance.server.auth import Keys
from appliance.server.drain import Drain
from appliance.server.metrics import Metrics
from appliance.server.readiness import Readiness
from appliance.server.service_status import heard_by
from appliance.server.services import Services
from appliance.server.storage import Storage, storing
from appliance.service_manager import ServiceManager
from appliance.spans import tracer
from appliance.store.experiments import Experiments
from appliance.store.migrate import migrate
from appliance.store.pool import Pool, connect
from appliance.store.prompt_registry import PromptRegistry
from appliance.store.search import Search
from appliance.store.write_gate import Writes
from appliance.wire.client import EngineClient
from appliance.wire.engines import Engines

log = logging.getLogger("appliance.server")

PROMPTS_DIR = Path(__file__).parents[2] / "prompts"
"""The characters that the first start publishes."""

LISTEN_BACKLOG = 1024
"""Connections that wait to be taken, for the moment between two servers on one socket."""

CUT_WAIT_S = 1.5
POOL_CLOSE_S = 2.0
STOP_MARGIN_S = 5.0

BIND_WAIT_S = 10.0
"""For a database that was there a moment ago, for its migrations."""


def run(config: Config, listen_fd: int | None, manager: ServiceManager) -> int:
    """Serve until a signal; returns the exit code.

    `listen_fd` is an inherited listening socket; without one, `server.host` and `server.port` are
    bound. `manager` hears when chats can be answered. Raises ConfigError, ModelError, DatabaseError,
    JournalHeld when another server has the data folder, or JournalForeign.
    """
    keys = Keys.from_config(config.server)
    if config.database.url is None:
        raise ConfigError("database.url is missing: the server process starts no database itself")
    text = ModelText.load(
        config.model.path,
        now=datetime.now(UTC),
        memo_bytes_max=config.server.tokenizer_memo_bytes,
    )
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        log.warning("slow_http_parser", extra={"cause": "aiohttp was installed without its C code"})
    with _listening(config, listen_fd) as listening:
        return uvloop.run(_serve(config, keys, text, listening, manager))


async def _serve(
    config: Config,
    keys: Keys,
    text: ModelText,
    listening: socket.socket,
    manager: ServiceManager,
) -> int:
    drain = Drain()
    hurry = asyncio.Event()
    _on_signals(drain, hurry)
    async with (
        _pool(config) as pool,
        storing(config, pool) as storage,
        engines_of(config) as engine,
    ):
        catalog = Catalog(PromptRegistry(pool))
        services = build_services(config, text, catalog, storage, engine, drain)
        migrating = asyncio.create_task(_prepare(pool, services))
        runner = create_runner(services, keys)
        await runner.setup()
        try:
            site = web.SockSite(runner, listening, backlog=LISTEN_BACKLOG)
            await site.start()
            log.info("server_started", extra={"port": listening.getsockname()[1]})
            async with heard_by(manager, services.readiness):
                async with serving_admin(services, keys):
                    await _until_drain(drain, migrating)
                manager.stopping("draining", within_s=_stop_s(config))
                await site.stop()
                log.info("server_draining", extra={"streams": services.streams.running})
                await _finish_streams(services, hurry, config.server.drain_s)
        finally:
            drain.cut()
            migrating.cancel()
            await asyncio.gather(migrating, return_exceptions=True)
            await runner.cleanup()
            await services.turns.close()
            await asyncio.to_thread(services.tracer.close)
    log.info("server_stopped")
    return 0


def _stop_s(config: Config) -> float:
    """The longest that an orderly end takes: streams drain, then finished turns are still stored."""
    waits_s = CUT_WAIT_S + POOL_CLOSE_S + STOP_MARGIN_S
    return config.server.drain_s + config.database.write_retry_s + waits_s


def _on_signals(drain: Drain, hurry: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT drains, the second ends the draining."""

    def stop() -> None:
        if drain.draining:
            hurry.set()
        drain.begin()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


async def _until_drain(drain: Drain, migrating: asyncio.Task[None]) -> None:
    """Wait for the drain; raises DatabaseError when this program cannot use the database's schema, and
    JournalForeign when turns of another database wait in its journal."""
    begun = drain.ending(started=False)
    await asyncio.wait({begun, migrating}, return_when=asyncio.FIRST_COMPLETED)
    if migrating.done():
        migrating.result()
    await begun


async def _finish_streams(services: Services, hurry: asyncio.Event, drain_s: float) -> None:
    """Let streams end by themselves for `drain_s`, then cut them and wait for their last words."""
    ended = asyncio.create_task(services.streams.wait_none())
    hurried = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait({ended, hurried}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        services.drain.cut()
        await asyncio.wait({ended}, timeout=CUT_WAIT_S)
    finally:
        for task in (ended, hurried):
            task.cancel()
        await asyncio.gather(ended, hurried, return_exceptions=True)


async def _prepare(pool: Pool, services: Services) -> None:
    """Bring the schema up to date and read the characters, however long the database is away; then keep
    them as their labels say, and what runs as the experiments do."""
    catalog, trials = services.catalog, services.experimenting.trials
    experiments = services.experimenting.experiments
    while True:
        try:
            await migrate(pool)
            await services.storage.replay.bind(budget_s=BIND_WAIT_S)
            await fill_empty(catalog.registry, PROMPTS_DIR)
            await catalog.reload()
            await trials.reload(experiments)
            break
        except StorageUnavailable:
            log.warning("database_unavailable")
    services.readiness.schema_ready = True
    async with asyncio.TaskGroup() as watching:
        watching.create_task(catalog.watch())
        watching.create_task(trials.watch(experiments))


def build_services(
    config: Config,
    text: ModelText,
    catalog: Catalog,
    storage: Storage,
    engine: Engines,
    drain: Drain,
) -> Services:
    """Everything the handlers share, over an open storage and a started engine client."""
    ledger = storage.ledger
    running = RunningTurns()
    limits = ChatLimits(new_tokens_default=config.server.new_tokens_default)
    trials, experiments = Trials(), Experiments(storage.pool)
    turns = Turns(
        ledger=ledger,
        running=running,
        engine=engine,
        model=text,
        catalog=catalog,
        limits=limits,
        trials=trials,
        keep_failure=experiments.add_failure,
    )
    return Services(
        config=config,
        turns=turns,
        cache_view=CacheView(engine=engine, prompts=turns.prompts, tips=turns.tips),
        prompt_view=PromptView(turns.prompts),
        conversations=Conversations(ledger=ledger, running=running, catalog=catalog, trials=trials),
        completions=Completions(engine=engine, model=text, limits=limits),
        engine=engine,
        catalog=catalog,
        experimenting=Experimenting(
            experiments=experiments,
            trials=trials,
            catalog=catalog,
            prompts=turns.prompts,
        ),
        card_import=CardImport(catalog),
        search=Search(storage.pool, may_write=lambda: ledger.gate.writes is Writes.OPEN),
        tokenizer=text.tokenizer,
        metrics=Metrics(),
        drain=drain,
        storage=storage,
        readiness=Readiness(engine=engine, storage=storage, drain=drain),
        tracer=tracer(config.traces.endpoint, "server"),
    )


def engines_of(config: Config) -> Engines:
    """Clients of all engines of a configuration, to be entered."""
    clients = {
        own.paths.engine_name: EngineClient(own.paths.engine_socket)
        for own in engine_configs(config)
    }
    return Engines(clients, public=PUBLIC)


@asynccontextmanager
async def _pool(config: Config) -> AsyncIterator[Pool]:
    """The pool; at the end, statements that still run get a moment."""
    assert config.database.url is not None
    pool = await connect(config.database.url, config.database)
    try:
        yield pool
    finally:
        try:
            async with asyncio.timeout(POOL_CLOSE_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()


def _listening(config: Config, listen_fd: int | None) -> socket.socket:
    if listen_fd is not None:
        return socket.socket(fileno=listen_fd)
    server = config.server
    try:
        return socket.create_server(
            (server.host, server.port),
            family=socket.AF_INET6 if ":" in server.host else socket.AF_INET,
            reuse_port=False,
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {server.host} port {server.port}: {error.strerror}"
        ) from error
