"""The operator's pages of experiments over real HTTP: who may read them, and what they allow."""

from __future__ import annotations

import hashlib

import pytest

from appliance.config import ApiKey, ServerConfig
from tests.raw_http import exchange
from tests.unit.server.door import open_door
from tests.unit.server.test_access import get

KEYED = ServerConfig(
    api_keys=(
        ApiKey(tenant="alice", sha256=hashlib.sha256(b"hers").hexdigest()),
        ApiKey(tenant="team", sha256=hashlib.sha256(b"ours").hexdigest(), operator=True),
    )
)


@pytest.mark.parametrize(
    ("path", "key", "expected"),
    [
        (b"/experiments", b"ours", 308),
        (b"/experiments/", b"ours", 200),
        (b"/experiments/ships.html", b"ours", 200),
        (b"/experiments/birds.html", b"ours", 404),
        (b"/experiments", b"hers", 403),
        (b"/experiments/", b"hers", 403),
        (b"/experiments/ships.html", b"hers", 403),
        (b"/experiments/", b"nobody's", 401),
    ],
)
async def test_only_an_operator_reads_what_runs(path: bytes, key: bytes, expected: int) -> None:
    async with open_door(KEYED) as door:
        pages = {"index.html": "<p>the list", "ships.html": "<p>a secret plan"}
        door.services.experiment_pages.replace(pages)
        answer = await exchange(door.port, get(b"Authorization: Bearer " + key, path=path))
        assert answer.status == expected
        if expected in (401, 403):
            assert b"secret" not in answer.body
        if expected == 308:
            assert answer.headers["location"] == "/experiments/"
        if expected == 200:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.body == pages[path.decode().rpartition("/")[2] or "index.html"].encode()
