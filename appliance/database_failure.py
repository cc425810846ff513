"""What a statement or a connection to PostgreSQL may raise that is no bug. Never: what it means."""

from __future__ import annotations

import asyncpg

DatabaseFailure = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""TimeoutError is an OSError. InternalClientError ("another operation is in progress") is for a statement
that comes between a server's last words, as when its postmaster was killed, and the connection's end."""

QueryAtFault = (asyncpg.SyntaxOrAccessError, asyncpg.DataError)
"""What a statement raises that is wrong by itself (its text, a division by zero) on any database."""
