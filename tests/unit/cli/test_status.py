"""`appliance status`: one screen of 80 by 24 whatever is told, and plain words for what is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.cli import status
from appliance.cli.main import main
from appliance.cli.service_states import ServiceState
from appliance.cli.status import lines_of
from appliance.cli.status_parts import engine_part
from appliance.dbops.limits import STOP_AGE
from appliance.wire.frames import PROTOCOL, Hello, encode

HELLO = Hello(
    protocol=PROTOCOL,
    pid=4_194_304,
    model_fingerprint="0410a6b465ac06323c2268c7aca90910",
    vocab_size=10,
    context_tokens_max=4096,
    page_size=16,
    pages_total=10,
    waiting_max=1,
    device="cuda:0",
)
COUNTED = """
    running waiting pages_cached pages_free pages_total prompt_tokens prefix_hit_tokens evicted_pages
    recomputed_tokens unknown_node tier_rejected_pages audits audited_tokens audit_failures rss_bytes
    tier_host_bytes tier_host_bytes_max tier_disk_bytes tier_disk_bytes_max tier_disk_off audit_alarm
"""
MANY = dict.fromkeys(COUNTED.split(), 10**9) | {"running": 512, "waiting": 9999}
SERVICE = {"active": "active", "restarting": None}


def engine(values: dict[str, float]) -> dict[str, Any]:
    return {"pid": 4_194_304, "device": "cuda:0", "model_fingerprint": "0" * 64, "values": values}


def told(count: int, values: dict[str, float], **parts: Any) -> dict[str, Any]:
    """Everything that a box can tell."""
    names = [f"engine-{number}" for number in range(count)]
    units = [f"appliance-engine@{number}.service" for number in range(count)]
    return {
        "version": "10.10.10",
        "model": {"name": "SmolLM2-1.7B-Instruct"},
        "is_stopped": False,
        "services": dict.fromkeys(
            ["appliance-server.service", "appliance-postgres.service", *units], SERVICE
        ),
        "server": {
            "ready": True,
            "reasons": [],
            "version": "10.10.11",
            "pid": 4_194_304,
            "streams": 512,
            "streams_max": 512,
            "index_coverage": {"system": 1.0, "user": 1.0, "assistant": 0.999, "tool": 1.0},
        },
        "engines": {name: engine(values) for name in names},
        "database": {
            "server_version": "18.6 (Debian 18.6-1.pgdg12+1)",
            "xid_age": STOP_AGE,
            "bytes": 10**12,
            "sessions": 100,
            "schema_version": 100,
        },
        "journal": {
            "entries": 1_000_000,
            "oldest_s": 86_400.1,
            "bytes": 10**9,
            "bytes_max": 10**9,
            "writes": "closed",
            "reason": "disk_full",
        },
        **parts,
    }


@pytest.mark.parametrize("engines", [0, 1, 2, 8])
@pytest.mark.parametrize(
    "values",
    [{}, dict.fromkeys(COUNTED.split(), 0), MANY],
    ids=["none", "0", "all"],
)
def test_it_is_one_screen_whatever_an_engine_tells(engines: int, values: dict[str, float]) -> None:
    lines = list(lines_of(told(engines, values)))
    assert len(lines) <= 24, "\n".join(lines)
    assert max(map(len, lines)) <= 80, "\n".join(lines)
    assert f"writes stop at {STOP_AGE:,} (100.0%)" in " ".join(" ".join(lines).split())


def test_a_part_that_is_away_and_foreign_text_are_told_within_the_screen() -> None:
    server = {**told(0, {})["server"], "ready": False, "reasons": ["The engine is starting."] * 4}
    away = {"away": f"/run/{'long/' * 8}engine.sock: \x1b[31m{'it is not there ' * 6}"}
    screen = list(lines_of(told(0, {}, server=server, engines={"engine": away}, database=away)))
    assert max(map(len, screen)) <= 80, "\n".join(screen)
    assert "NOT READY (The engine is starting.;" in " ".join(" ".join(screen).split())
    assert "\x1b" not in "".join(screen)
    assert sum("AWAY: " in line for line in screen) == 2


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (None, "nobody listens there: it loads its model still, or does not run"),
        (
            ServiceState(active="activating", status="loading the model"),
            "it starts: loading the model",
        ),
        (ServiceState(active="inactive"), "it does not run: its service is inactive"),
        (ServiceState(active="failed"), "it does not run: its service is failed"),
    ],
)
async def test_an_engine_that_loads_is_told_apart_from_one_that_is_gone(
    service: ServiceState | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.status_parts.PART_TIMEOUT_S", 0.2)
    assert words in (await engine_part(tmp_path / "engine.sock", service))["away"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            encode(msgspec.structs.replace(HELLO, protocol=PROTOCOL + 1)),
            f"it is of another version: it speaks protocol {PROTOCOL + 1}, this program {PROTOCOL}",
        ),
        (b"\x00\x00\x00\x01\xc1", "it is of another version: it speaks another protocol"),
        (b"", "it listens and says nothing"),
        (encode(HELLO), "no answer within 0.2 s"),
    ],
    ids=["other", "undecodable", "silent", "deaf"],
)
async def test_an_engine_that_cannot_be_used_is_told_in_plain_words(
    said: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.status_parts.PART_TIMEOUT_S", 0.2)
    ended = asyncio.Event()

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await ended.wait()
        writer.close()

    server = await asyncio.start_unix_server(speak, tmp_path / "engine.sock")
    try:
        assert words in (await engine_part(tmp_path / "engine.sock"))["away"]
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


def test_a_box_without_an_appliance_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "CONFIG", tmp_path / "appliance.toml")
    assert main(["status"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("appliance: no appliance is installed here: ")
    assert main(["status", "--config", str(tmp_path / "none.toml")]) == 2
    assert capsys.readouterr().err == (
        f"appliance: {tmp_path}/none.toml: cannot be read: No such file or directory\n"
    )
