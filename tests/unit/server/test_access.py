"""Who may ask: keys and origins over real HTTP, with header bytes as clients send them."""

from __future__ import annotations

import hashlib
import logging

import pytest

from appliance.config import ApiKey, ServerConfig
from tests.raw_http import exchange
from tests.unit.server.door import Door, open_door

KEYED = ServerConfig(
    api_keys=(
        ApiKey(tenant="alice", sha256=hashlib.sha256(b"valid").hexdigest()),
        ApiKey(tenant="bob", sha256=hashlib.sha256(b"other").hexdigest()),
    )
)


def get(*headers: bytes, path: bytes = b"/v1/models") -> bytes:
    lines = (b"GET " + path + b" HTTP/1.1", b"Host: chat.example", b"Connection: close", *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("raw_hex", "expected"),
    [
        ("426561726572206b6579e28099", 401),
        ("42656172657220c3a9", 401),
        ("42656172657220efbbbf6b", 401),
        ("426561726572", 401),
        ("4265617265722020", 401),
        ("6265617265722076616c6964", 200),
        ("42617369632076616c6964", 401),
    ],
)
async def test_every_authorization_header_gets_200_or_401(
    raw_hex: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_door(KEYED) as door:
        header = b"Authorization: " + bytes.fromhex(raw_hex)
        response = await exchange(door.port, get(header))
    assert response.status == expected
    if expected == 401:
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.json["error"]["type"] == "authentication_error"
    assert "valid" not in caplog.text


async def test_two_headers_a_huge_key_and_other_headers() -> None:
    async with open_door(KEYED) as door:
        twice = get(b"Authorization: Bearer valid", b"Authorization: Bearer valid")
        assert (await exchange(door.port, twice)).status in (400, 401)
        huge = get(b"Authorization: Bearer " + b"k" * 10_000)
        assert (await exchange(door.port, huge)).status in (400, 401)
        beside = get(b"x-api-key: wrong", b"Authorization: Bearer valid")
        assert (await exchange(door.port, beside)).status == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [(b"/live", 200), (b"/ready", 503), (b"/", 200), (b"/metrics", 401), (b"/api/characters", 401)],
)
async def test_only_probes_and_the_page_need_no_key(path: bytes, expected: int) -> None:
    async with open_door(KEYED) as door:
        assert (await exchange(door.port, get(path=path))).status == expected


async def test_the_key_decides_whose_cache_a_request_uses() -> None:
    async with open_door(KEYED) as door:
        door.say("ok")
        for key in ("valid", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
            fields = {"cache_salt": "alice", "user": "alice"}
            assert (await door.post("/v1/chat/completions", {**body, **fields}, headers))[0] == 200
        alice, bob = (
            {namespace for namespace, _ in request.stretches} for request in door.engine.generated
        )
        assert alice & bob <= {b"public"}
        assert len(alice | bob) >= 2


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[x"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_without_keys_other_sites_pages_are_refused(
    door: Door, headers: dict[str, str]
) -> None:
    door.say("ok")
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
    status, told = await door.post("/v1/chat/completions", body, headers)
    assert (status, told["error"]["code"]) == (403, "forbidden_origin")
    assert door.engine.generated == []


async def test_the_page_has_a_strict_policy_and_is_cached_by_its_content(door: Door) -> None:
    async with door.session.get(door.url + "/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "<script>" not in await answer.text()
        etag = answer.headers["ETag"]
    async with door.session.get(door.url + "/", headers={"If-None-Match": etag}) as again:
        assert again.status == 304
    for name in ("app.js", "style.css", "icon.svg"):
        async with door.session.get(f"{door.url}/page/{name}") as answer:
            assert answer.status == 200
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for name in ("..%2fapp.py", "%2e%2e/auth.py", "nothing.js"):
        async with door.session.get(f"{door.url}/page/{name}") as answer:
            assert answer.status == 404
