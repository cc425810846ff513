"""`appliance serve`: the processes of one box, from a configuration file."""

from __future__ import annotations

import asyncio

import msgspec

from appliance.cli.model_directory import model_directory
from appliance.cli.processes import run_processes
from appliance.cli.supervisor import bind_socket
from appliance.cli.terminal import console, progress_bars
from appliance.config import Config
from appliance.log import configure_logging
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
        with progress_bars() as report:
            directory = model_directory(config.model.path, config.paths.models_dir, report)
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
