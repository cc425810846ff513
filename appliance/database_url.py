"""The address of a PostgreSQL server: whether it is one, and what others ask of it. Never: connects.

What is said of a wrong one does not repeat it: it may hold a password.
"""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

SCHEMES = ("postgresql", "postgres")
SOCKETS = "/var/run/postgresql"
"""Where a server's socket is, when no host is named."""


def check_database_url(url: str) -> None:
    """Raises ValueError, with a sentence's end, for what no address is."""
    try:
        parts = urlsplit(url)
        _ = parts.port, port_of(parts)
    except ValueError as error:
        raise ValueError(
            "is not an address that can be read: postgresql://user:password@host:port/name, with a port "
            "up to 65535, [] around an IPv6 address, and %2F for a / in a password"
        ) from error
    if parts.scheme not in SCHEMES:
        raise ValueError("must begin with postgresql://")


def hosts_of(parts: SplitResult) -> list[str]:
    """The hosts that an address names; a folder of sockets begins with /."""
    hosts = parse_qs(parts.query).get("host")
    return hosts if hosts is not None else [unquote(parts.hostname or SOCKETS)]


def port_of(parts: SplitResult) -> int | None:
    """The port that an address names. Raises ValueError for none that there is."""
    asked = parse_qs(parts.query).get("port")
    if parts.port is not None or asked is None:
        return parts.port
    port = int(asked[0])
    if not 0 < port < 1 << 16:
        raise ValueError(port)
    return port
