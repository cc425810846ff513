"""`appliance demo`: a real small model, an embedded PostgreSQL and a chat page, with one command."""

from __future__ import annotations

import asyncio
import logging
import os
import webbrowser
from pathlib import Path

from appliance.cli.demo_model import DEMO_MODEL_NAME, demo_cache_dir, ensure_demo_model
from appliance.cli.demo_paths import demo_paths
from appliance.cli.processes import run_processes
from appliance.cli.supervisor import bind_socket
from appliance.cli.terminal import console, progress_bars
from appliance.config import Config, ModelSource, ServerConfig

HOST = "127.0.0.1"


def run_demo(*, port: int, data_dir: Path | None, open_browser: bool) -> int:
    """Fetch the model once, start everything, print the page's address; ends on Ctrl-C.

    Raises ConfigError, ModelError or DatabaseError with one line that says what to do.
    """
    paths = demo_paths(data_dir)
    data_dir = paths.data_dir
    # Events go to the processes' logs; the terminal is for the person at it.
    logging.getLogger("appliance").addHandler(logging.NullHandler())
    with bind_socket(HOST, port) as listening:
        with progress_bars() as report:
            model_dir = ensure_demo_model(demo_cache_dir(), report)
        config = Config(
            model=ModelSource(path=model_dir, name=DEMO_MODEL_NAME),
            paths=paths,
            server=ServerConfig(host=HOST, port=listening.getsockname()[1]),
        )
        console.print("  starting the database, the engine and the server …")

        def announce(url: str) -> None:
            console.print(f"\n  Chat at [bold]{url}[/bold]   (Ctrl-C stops)")
            console.print(f"  logs are in {data_dir / 'logs'}\n", soft_wrap=True)
            if open_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
                webbrowser.open(url)

        asyncio.run(run_processes(config, listening, log_dir=data_dir / "logs", on_ready=announce))
    console.print(f"  stopped; chats are kept in {data_dir}", soft_wrap=True)
    return 0
