"""API keys: which header gives which tenant, and which configuration is refused."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from appliance.config import ApiKey, ServerConfig
from appliance.errors import ConfigError, Unauthorized
from appliance.server.auth import LOCAL_TENANT, Keys, is_loopback


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def keys(*pairs: tuple[str, str]) -> Keys:
    entries = tuple(ApiKey(tenant=tenant, sha256=digest(key)) for tenant, key in pairs)
    return Keys.from_config(ServerConfig(host="0.0.0.0", api_keys=entries))


def test_the_key_decides_the_tenant() -> None:
    both = keys(("alice", "ka"), ("bob", "kb"))
    assert both.caller(["Bearer ka"]).tenant == "alice"
    assert both.caller(["bearer kb"]).tenant == "bob"


def test_only_a_key_that_says_so_is_the_operators() -> None:
    entries = (
        ApiKey(tenant="boss", sha256=digest("kb"), operator=True),
        ApiKey(tenant="boss", sha256=digest("kc")),
    )
    keys = Keys.from_config(ServerConfig(host="0.0.0.0", api_keys=entries))
    assert keys.caller(["Bearer kb"]).is_operator
    assert not keys.caller(["Bearer kc"]).is_operator
    assert Keys.from_config(ServerConfig()).caller([]).is_operator


def as_header(raw_hex: str) -> str:
    """What aiohttp makes of these bytes."""
    return bytes.fromhex(raw_hex).decode("utf-8", "surrogateescape").strip()


@pytest.mark.parametrize(
    "raw_hex",
    [
        "426561726572206b6579e28099",
        "42656172657220c3a9",
        "42656172657220efbbbf6b",
        "426561726572",
        "4265617265722020",
        "42617369632076616c6964",
        "42656172657220ff",
        "426561726572" + "20" + "61" * 10_000,
    ],
)
def test_a_wrong_key_is_refused_whatever_its_bytes_are(raw_hex: str) -> None:
    with pytest.raises(Unauthorized):
        keys(("t", "valid")).caller([as_header(raw_hex)])


@pytest.mark.parametrize("headers", [[], ["Bearer valid", "Bearer valid"], ["Bearer valid", "x"]])
def test_exactly_one_authorization_header_is_taken(headers: list[str]) -> None:
    with pytest.raises(Unauthorized):
        keys(("t", "valid")).caller(headers)


def test_without_keys_this_machine_is_one_tenant() -> None:
    assert Keys.from_config(ServerConfig()).caller([]).tenant == LOCAL_TENANT


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "chat.example"])
def test_without_keys_an_address_that_others_reach_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        Keys.from_config(ServerConfig(host=host))


def test_a_digest_that_is_none_is_a_configuration_error() -> None:
    bad = msgspec.structs.replace(ApiKey(tenant="t", sha256=digest("k")), sha256="valid\n")
    with pytest.raises(ConfigError, match="sha256"):
        Keys.from_config(ServerConfig(api_keys=(bad,)))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("localhost", True),
        ("app.localhost", True),
        ("LOCALHOST.", True),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_every_byte_of_a_keys_digest_counts() -> None:
    right = digest("ka")
    for place in (0, 7, 32, 63):
        wrong = right[:place] + ("0" if right[place] != "0" else "1") + right[place + 1 :]
        config = ServerConfig(api_keys=(ApiKey(tenant="alice", sha256=wrong),))
        with pytest.raises(Unauthorized):
            Keys.from_config(config).caller(["Bearer ka"])
