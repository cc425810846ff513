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

StatementRefused = asyncpg.PostgresError
"""What a statement raises; the two that follow are kinds of it, and looked at first."""

StatementTimedOut = asyncpg.QueryCanceledError

ServerLeft = (asyncpg.OperatorInterventionError, asyncpg.PostgresConnectionError)
"""What it raises because the server ends it, or itself: no fault of the statement's."""
