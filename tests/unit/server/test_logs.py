"""What the log says at INFO: one line a request, nothing a client wrote, no traceback."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from appliance.log import EventFormatter
from tests.raw_http import connect, exchange
from tests.unit.server.door import Door, chat

MARKER = "MARKER"


@pytest.fixture
def log_text() -> Iterator[io.StringIO]:
    """What the process would write to standard error."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(EventFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


async def test_a_busy_hour_gives_few_lines_and_none_with_a_clients_words(
    door: Door, log_text: io.StringIO
) -> None:
    for _ in range(300):
        async with door.session.get(door.url + "/live") as answer:
            assert answer.status == 200
    async with door.session.get(door.url + "/ready") as answer:
        assert answer.status == 503
    assert _lines(log_text) == []

    door.say("tok ", "tok ")
    headers = {"Authorization": "Bearer sk-MARKER-KEY", "User-Agent": "MARKER"}
    body = {**chat("MARKER-PROMPT-7781\r\nERROR fake log line \x1b[31m"), "user": "MARKER\r\nx"}
    assert (await door.post("/v1/chat/completions", body, headers))[0] == 200
    (line,) = _lines(log_text)
    for part in (
        "request_id=req_",
        "model=scripted",
        "prompt_tokens=",
        "new_tokens=2",
        "reason=stop",
    ):
        assert part in line

    door.say("tok ", forever=True, token_s=0.02)
    for number in range(100):
        connection = await connect(door.port)
        await connection.post("/v1/chat/completions", {**chat("MARKER"), "stream": True})
        await connection.read_until(b"\n\n")
        connection.close(reset=number % 2 == 0)
    await door.eventually(lambda: door.services.streams.running == 0)
    await door.eventually(lambda: len(_lines(log_text)) >= 101)
    assert len(_lines(log_text)) == 101

    for bad in (b'{"MARKER-BODY"', b'{"model":"\\ud83dMARKER-BODY"}', b'{"model":7,"MARKER":1}'):
        for _ in range(17):
            assert (await door.post("/v1/chat/completions", bad))[0] == 400
    async with door.session.get(door.url + "/MARKER%0d%0aERROR%20fake") as answer:
        assert answer.status == 404
    raw = b"GET /MARKER\x1b[31m HTTP/9.9\r\nMARKER: \x00\r\n\r\n"
    assert (await exchange(door.port, raw)).status == 400
    lines = _lines(log_text)
    assert len(lines) < 300
    assert MARKER not in log_text.getvalue()
    assert "Traceback" not in log_text.getvalue()
    assert all(line.startswith("20") for line in lines)


async def test_a_bug_answers_500_without_its_text_and_is_logged_by_place(
    door: Door, log_text: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("MARKER /srv/secret/path")

    monkeypatch.setattr(door.services.completions, "run", broken)
    status, told = await door.complete()
    assert (status, told["error"]["code"]) == (500, "internal_error")
    assert told["error"]["request_id"] in told["error"]["message"]
    text = log_text.getvalue()
    assert "unexpected_error" in text
    assert "chat_routes.py" in text
    assert MARKER not in text
    assert MARKER not in str(told)


async def test_a_turns_line_names_the_request_as_the_engine_knows_it(
    stored_door: Door, log_text: io.StringIO
) -> None:
    door = stored_door
    door.say("ok")
    assert (await door.complete())[0] == 200
    assert f"engine_request_id={door.engine.generated[-1].request_id}" in log_text.getvalue()
    _, opened = await door.post("/api/conversations", {})
    await door.stream(f"/api/conversations/{opened['id']}/messages", {"text": "x"})
    assert f"engine_request_id={door.engine.generated[-1].request_id}" in log_text.getvalue()


def _lines(text: io.StringIO) -> list[str]:
    return text.getvalue().splitlines()
