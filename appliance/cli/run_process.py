"""One process of a box, under `appliance serve` or a service manager: `engine`, `server` or `postgres`.

Owns what all of them begin with: logging, secrets, the service manager, whether their paths can be used.
"""

from __future__ import annotations

import argparse
import os

from appliance.config import load_config
from appliance.credentials import with_credentials
from appliance.file_access import ENTER, READ, WRITE, check_access
from appliance.log import configure_logging
from appliance.service_manager import NO_MANAGER, inherited_socket, service_manager


def run_process(options: argparse.Namespace) -> int:
    """Run the one that `options.command` names to its end; returns the exit code.

    Raises ConfigError, within a second of the start, when the settings are wrong or this user may not use
    what they name.
    """
    config = load_config(options.config)
    configure_logging()
    if options.parent_pid is None:
        config = with_credentials(config, os.environ)
        manager = service_manager(os.environ)
    else:
        from appliance.cli.parent import die_with_parent

        die_with_parent(options.parent_pid)
        manager = NO_MANAGER
    # Before anything is loaded.
    if options.command != "postgres":
        is_folder = config.model.path.suffix != ".gguf"
        check_access("model.path", config.model.path, READ | ENTER if is_folder else READ)
        check_access("paths.run_dir", config.paths.run_dir, WRITE | ENTER)
    if options.parent_pid is None:
        check_access("paths.data_dir", config.paths.data_dir, READ | WRITE | ENTER)
    if options.command == "postgres":
        from appliance.cli.postgres import run_postgres

        return run_postgres(config, manager)
    if options.command == "engine":
        from appliance.engine.main import run as run_engine

        return run_engine(config, options.number, manager)
    from appliance.cli.postgres import with_own_postgres
    from appliance.server.main import run as run_server

    inherited = inherited_socket(os.environ)
    listen_fd = inherited if options.listen_fd is None else options.listen_fd
    return run_server(with_own_postgres(config), listen_fd, manager)
