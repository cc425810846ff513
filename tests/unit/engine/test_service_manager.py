"""An engine process under a service manager: when it says what."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from appliance.config import dump_config
from tests.engine_fixtures import engine_config

START_S = 300.0
WATCHDOG_S = 0.8


async def test_it_is_ready_once_it_is_loaded_and_feeds_the_watchdog_while_it_idles(
    model_directory: Path, tmp_path: Path
) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(dump_config(engine_config(model_directory, tmp_path)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "appliance.cli.main", "engine", "--config", str(path)],
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}",
            },
            stderr=subprocess.PIPE,
        )
        loop = asyncio.get_running_loop()

        async def heard() -> str:
            return (await asyncio.wait_for(loop.sock_recv(manager, 4096), START_S)).decode()

        try:
            before = []
            while "READY=1" not in (said := await heard()):
                before.append(said)
            assert before
            assert all("EXTEND_TIMEOUT_USEC=" in words for words in before)
            assert (tmp_path / "engine.sock").is_socket()
            for _ in range(3):
                assert await heard() == "WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in (said := await heard()):
                assert said == "WATCHDOG=1"
            assert "EXTEND_TIMEOUT_USEC=" in said
            _, log = await asyncio.to_thread(process.communicate, timeout=START_S)
            assert process.returncode == 0, log
        finally:
            process.kill()
            process.communicate()
