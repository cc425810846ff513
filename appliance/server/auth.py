"""API keys: which tenant a request speaks for, and whether it is the operator's own.

What the operator adds (characters) is seen by every tenant and shared in the cache. Holds digests only;
never a key, never a log line.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.config import ServerConfig
from appliance.errors import ConfigError, Unauthorized

LOCAL_TENANT = "local"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a request comes from."""

    tenant: str
    is_operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    caller: Caller
    digest: bytes


_LOCAL = Caller(tenant=LOCAL_TENANT, is_operator=True)


class Keys:
    """The configured keys. Without any, everybody on this machine is the tenant `local`, and operator."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = tuple(entries)

    @classmethod
    def from_config(cls, config: ServerConfig) -> Keys:
        """Check the configured keys; raises ConfigError.

        An empty list would let anybody in, so it is accepted on loopback only.
        """
        if not config.api_keys and not is_loopback(config.host):
            raise ConfigError(
                f"server.api_keys is empty, and server.host {config.host!r} can be reached from other "
                "machines: add a key, or listen on 127.0.0.1"
            )
        entries = []
        for number, key in enumerate(config.api_keys):
            try:
                digest = bytes.fromhex(key.sha256)
            except ValueError:
                digest = b""
            if len(digest) != _DIGEST_BYTES:
                raise ConfigError(f"server.api_keys[{number}].sha256 must be 64 hexadecimal digits")
            caller = Caller(tenant=key.tenant, is_operator=key.operator)
            entries.append(_Entry(caller=caller, digest=digest))
        return cls(entries)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._entries)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Everybody that requests may speak for, each once, as configured."""
        if not self._entries:
            return (LOCAL_TENANT,)
        return tuple(dict.fromkeys(entry.caller.tenant for entry in self._entries))

    def caller(self, authorization: Sequence[str]) -> Caller:
        """Who sends a request with these `Authorization` headers; raises Unauthorized."""
        if not self._entries:
            return _LOCAL
        if len(authorization) != 1:
            raise Unauthorized("Send the API key in one header: Authorization: Bearer KEY.")
        scheme, _, key = authorization[0].strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("Send the API key in one header: Authorization: Bearer KEY.")
        # Header bytes that are not UTF-8 arrive as surrogates; they digest like any other bytes.
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for entry in self._entries:
            # Every entry is compared, so that timing tells nothing about which one matched.
            if hmac.compare_digest(entry.digest, digest):
                found = entry.caller
        if found is None:
            raise Unauthorized("This API key is not known here.")
        return found


def loopback_address(host: str) -> str | None:
    """The address that a listening address or a host name means, where it can only mean this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return str(address) if address.is_loopback else None


def is_loopback(host: str) -> bool:
    """Whether a listening address or a host name can only mean this machine."""
    return loopback_address(host) is not None
