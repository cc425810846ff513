"""`appliance serve`: the processes of one box, from a configuration file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from appliance.cli.processes import run_processes
from appliance.cli.supervisor import bind_socket
from appliance.cli.terminal import console, progress_bars
from appliance.config import Config
from appliance.errors import ConfigError
from appliance.log import configure_logging
from appliance.model.conversion import convert_once
from appliance.model.files import check_model
from appliance.server.auth import Keys


def run_serve(config: Config) -> int:
    """Check the model, bind the port, then run everything until a signal; returns the exit code.

    Raises ModelError, ConfigError or DatabaseError before anything is served.
    """
    configure_logging()
    Keys.from_config(config.server)
    check_model(config.model.path)
    with bind_socket(config.server.host, config.server.port) as listening:
        directory = model_directory(config)
        ready = msgspec.structs.replace(
            config, model=msgspec.structs.replace(config.model, path=directory)
        )
        asyncio.run(
            run_processes(
                ready,
                listening,
                log_dir=None,
                on_ready=lambda url: console.print(f"serving at {url}"),
            )
        )
    return 0


def model_directory(config: Config) -> Path:
    """The model's directory; a .gguf file is converted once, again only when the file changes."""
    source = config.model.path
    if source.is_dir():
        return source
    models_dir = config.paths.models_dir
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be made: {error.strerror}") from error
    with progress_bars() as report:
        return convert_once(
            source,
            models_dir,
            lambda done: report("converting the model", done),
            lambda done: report("waiting for another conversion", done),
        )
