"""Traces as a collector gets them: server and engine in one, no text, and nothing without an endpoint."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from appliance.config import TracesConfig, parse_config
from appliance.engine.request_spans import RequestSpans
from appliance.errors import ConfigError
from appliance.extras import install_command
from appliance.server.app import create_app
from appliance.server.auth import Keys
from appliance.spans import NoTracer, Span, tracer
from appliance.wire.frames import Admitted, Finished, Generate, Sampling, Tokens
from tests.unit.server.conftest import door
from tests.unit.server.door import Door, chat

__all__ = ["door"]

MARKER = "MARKER-7781"
REQUEST = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Collector:
    """Takes what is exported, over real HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.endpoint = ""

    def spans(self) -> dict[str, Any]:
        """By name, as the protocol's own classes read them."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        found: dict[str, Any] = {}
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found |= {span.name: span for span in scope.spans}
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the test's output."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_request_is_one_trace_of_server_and_engine_without_a_word_of_text(
    door: Door,
) -> None:
    with collecting() as collector:
        of_server, of_engine = (tracer(collector.endpoint, name) for name in ("server", "engine"))
        services = replace(door.services, tracer=of_server)
        runner = web.AppRunner(create_app(services, Keys.from_config(services.config.server)))
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            door.say("ok", "tok ")
            headers = {"Authorization": f"Bearer sk-{MARKER}", "User-Agent": MARKER}
            async with ClientSession(headers=headers) as session:
                body = {**chat(MARKER), "user": MARKER}
                async with session.post(address + "/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
                async with session.get(f"{address}/{MARKER}") as answer:
                    assert answer.status == 404
        finally:
            await runner.cleanup()
        request = door.engine.generated[-1]
        spans = RequestSpans(of_engine, iter([1.0, 1.5, 2.0, 3.0]).__next__)
        spans.arrived(1, request)
        spans.sent(1, admitted(request.request_id))
        spans.sent(1, Tokens(request_id=request.request_id, token_ids=b"\1\0\0\0"))
        spans.sent(1, finished(request.request_id))
        of_server.close()
        of_engine.close()
        told = collector.spans()
    assert set(told) == {"POST /v1/chat/completions", "GET unmatched", "generate"}
    assert all(MARKER.encode() not in body for body in collector.bodies)
    server, engine = told["POST /v1/chat/completions"], told["generate"]
    assert server.trace_id == engine.trace_id == bytes.fromhex(request.request_id.replace("-", ""))
    assert engine.parent_span_id == server.span_id
    assert server.parent_span_id == b""
    assert [event.name for event in engine.events] == ["admitted", "first_token"]
    assert engine.end_time_unix_nano - engine.start_time_unix_nano == pytest.approx(2e9, rel=1e-3)
    names = {attribute.key for attribute in server.attributes}
    assert {"http_request_id", "status", "prompt_tokens", "new_tokens"} <= names


def test_each_way_to_end_closes_the_span_and_none_is_kept() -> None:
    told: list[Span] = []

    class Listening(NoTracer):
        def tell(self, span: Span) -> None:
            told.append(span)

    spans = RequestSpans(Listening(), lambda: 1.0)
    for number, code in enumerate((None, "overloaded")):
        request = generate(f"r{number}")
        spans.arrived(1, request)
        spans.arrived(1, request)
        spans.sent(1, finished(request.request_id, code))
        spans.sent(1, finished(request.request_id, code))
    assert [span.failure for span in told] == [None, "overloaded"]
    assert not spans._open


def test_without_an_endpoint_nothing_is_loaded_and_without_packages_it_is_said() -> None:
    assert isinstance(tracer(None, "server"), NoTracer)
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from appliance.errors import ConfigError\n"
        "from appliance.spans import tracer\n"
        "tracer(None, 'server'); assert 'appliance.otlp' not in sys.modules\n"
        "try: tracer('http://127.0.0.1:1/v1/traces', 'server')\n"
        "except ConfigError as error: print(error.message)\n"
    )
    ended = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    command = ended.stdout.partition("): ")[2].strip()
    assert command == install_command("traces")
    assert command.startswith(f"{sys.executable} -m pip install ")
    assert "'opentelemetry-sdk>=" in command


@pytest.mark.parametrize("wrong", ["127.0.0.1:4318", "ftp://x/", "http://", "http:// x"])
def test_an_endpoint_that_is_no_address_is_refused_by_name(wrong: str) -> None:
    text = '[model]\npath = "m"\nname = "m"\n[paths]\ndata_dir = "d"\nrun_dir = "r"\n'
    with pytest.raises(ConfigError, match=r"traces\.endpoint"):
        parse_config(f'{text}[traces]\nendpoint = "{wrong}"\n', base=Path("/"))
    good = parse_config(f'{text}[traces]\nendpoint = "http://h:4318/v1/traces"\n', base=Path("/"))
    assert good.traces == TracesConfig(endpoint="http://h:4318/v1/traces")


def generate(request_id: str) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=b"\3\0\0\0",
        stretches=[(b"x", 1)],
        sampling=Sampling(),
        new_tokens_max=1,
        stop_token_ids=[],
    )


def admitted(request_id: str) -> Admitted:
    return Admitted(request_id=request_id, prompt_tokens=7, prefix_hit_tokens=3, queue_wait_ms=0.0)


def finished(request_id: str, code: str | None = None) -> Finished:
    return Finished(request_id=request_id, reason="stop", new_tokens=1, error_code=code)
