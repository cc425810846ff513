"""The options of the commands that run processes: `serve` and its parts. Never: runs one."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_processes(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`serve`, and the `engine`, `server` and `postgres` that a service manager runs."""
    serve = commands.add_parser(
        "serve", help="serve the model and database of a configuration file"
    )
    engine = commands.add_parser("engine", help="run only the engine process")
    server = commands.add_parser("server", help="run only the HTTP server process")
    postgres = commands.add_parser("postgres", help="run only the embedded PostgreSQL")
    for command in (serve, engine, server, postgres):
        command.add_argument("--config", type=Path, required=True, help="a TOML file")
    for process in (engine, server, postgres):
        process.add_argument(
            "--parent-pid", type=int, default=None, help="stop when this process, the parent, ends"
        )
    engine.add_argument(
        "--number", type=int, default=None, help="which of several engine.devices, from 0 on"
    )
    server.add_argument("--listen-fd", type=int, default=None, help="an inherited listening socket")
