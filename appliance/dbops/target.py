"""How a PostgreSQL is reached by its operator: by URL, or through the socket in an embedded data folder.

Owns the settings of a maintenance session. Never: starts a server, retries, or asks for anything that
needs a transaction ID, so that a session comes up in a database that has run out of them.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import asyncpg

from appliance.database_failure import DatabaseFailure, FailureKind, failure_kind
from appliance.database_url import check_database_url
from appliance.dbops.folder import opened
from appliance.dbops.settings import PORT, SUPERUSER
from appliance.errors import ConfigError, DatabaseError, NotRunning

if TYPE_CHECKING:
    # Generic in the type stubs only.
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

APPLICATION_NAME = "appliance-db"
CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_MS = 10_000
LOCK_TIMEOUT_MS = 2000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 30_000
COMMAND_MARGIN_S = 5.0

_PLAIN_REFUSALS = frozenset(
    {
        FailureKind.STARTING,
        FailureKind.NO_NAMESPACE,
        FailureKind.LOGIN,
        FailureKind.CONNECTIONS_FULL,
        FailureKind.DISK_FULL,
        FailureKind.RESOURCES,
    }
)
"""What no code of a database's owner has to do with."""

EVENT_TRIGGERS_SINCE = 17
"""From this version on a database's owner may have code run at each login; a superuser may forbid it."""
EVENT_TRIGGERS_OFF = {"event_triggers": "off"}


class NoConnectionFree(DatabaseError):
    """All connections are in use that this user may have to this server or database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A PostgreSQL and who to be there: its superuser, or a role that may do maintenance.

    Exactly one is given: `url` (postgresql://…), or `directory`, the data folder of an embedded cluster.
    """

    url: str | None = None
    directory: Path | None = None
    _forbids: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Settings with which sessions begin, once it is known that this server has them."""

    def __post_init__(self) -> None:
        assert (self.url is None) != (self.directory is None)
        if self.url is not None:
            _check_url(self.url)

    def __str__(self) -> str:
        """What a person would call it; never a password."""
        if self.directory is not None:
            return str(self.directory)
        assert self.url is not None
        parts = urlsplit(self.url)
        place = parts.hostname or "localhost"
        return f"{place}:{parts.port}{parts.path}" if parts.port else f"{place}{parts.path}"

    async def connect(
        self,
        database: str | None = None,
        *,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    ) -> Connection:
        """A session in `database` (None: the URL's, or `postgres`); the caller closes it.

        A timeout of 0 is none. Raises NotRunning when nobody answers or the server is still starting
        or already stopping, NoConnectionFree when all are in use, DatabaseError when the session is
        refused.
        """
        settings = {
            "application_name": APPLICATION_NAME,
            "statement_timeout": str(statement_timeout_ms),
            "lock_timeout": str(lock_timeout_ms),
            "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
            # A database's owner may set others, and this is a superuser: no function of anybody's fits a
            # call better than the server's own, and a text is what it seems.
            "search_path": "pg_catalog",
            "role": "none",
            "standard_conforming_strings": "on",
        }
        command_timeout_s = _command_timeout_s(statement_timeout_ms)
        try:
            return await self._without_event_triggers(database, settings, command_timeout_s)
        except asyncpg.PostgresError as error:
            raise self._refused(error, database) from error
        except PermissionError as error:
            raise DatabaseError(
                f"{self}: only the folder's owner or root may speak to its server"
            ) from error
        except DatabaseFailure as error:
            raise NotRunning(f"no PostgreSQL answers at {self}: {self._why(error)}") from error

    async def _without_event_triggers(
        self, database: str | None, settings: dict[str, str], command_timeout_s: float | None
    ) -> Connection:
        """Connect so that no code of the database's owner runs, where the server can forbid it.

        Whether it can is seen at the first session, which still runs it. Where that one fails at such
        code (which in the stop may need a transaction ID), it is tried once more without.
        """
        if self._forbids:
            return await self._connect(database, settings | EVENT_TRIGGERS_OFF, command_timeout_s)
        try:
            connection = await self._connect(database, settings, command_timeout_s)
        except asyncpg.PostgresError as error:
            if failure_kind(error) in _PLAIN_REFUSALS:
                raise
            try:
                connection = await self._connect(
                    database, settings | EVENT_TRIGGERS_OFF, command_timeout_s
                )
            except asyncpg.PostgresError as second:
                raise error from second
        if connection.get_server_version().major >= EVENT_TRIGGERS_SINCE and is_superuser(
            connection
        ):
            self._forbids.update(EVENT_TRIGGERS_OFF)
        return connection

    async def _connect(
        self, database: str | None, settings: dict[str, str], command_timeout_s: float | None
    ) -> Connection:
        with self._socket_folder() as folder:
            return await asyncpg.connect(
                self.url,
                host=folder,
                port=None if folder is None else PORT,
                user=None if folder is None else SUPERUSER,
                database=database or (None if folder is None else SUPERUSER),
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=command_timeout_s,
                server_settings=settings,
            )

    def _why(self, error: Exception) -> str:
        """Why nobody answers, and what to type where it is only that no server runs on the folder."""
        if self.directory is None or not isinstance(
            error, FileNotFoundError | ConnectionRefusedError
        ):
            return _words(error)
        return (
            "it is not running; start the appliance, or the database alone with: "
            f"appliance db start --data-dir {shlex.quote(str(self.directory))}"
        )

    @contextlib.contextmanager
    def _socket_folder(self) -> Iterator[str | None]:
        """Where an embedded cluster's socket is found, while the context is open; None with a URL."""
        if self.directory is None:
            yield None
            return
        if not self.directory.is_dir():
            raise DatabaseError(f"{self.directory} does not exist: there is no database")
        # However long the folder's path is, this one fits into a socket's address.
        with opened(self.directory) as here:
            yield here.path

    def _refused(self, error: asyncpg.PostgresError, database: str | None) -> Exception:
        match failure_kind(error):
            case FailureKind.STARTING:
                return NotRunning(f"the PostgreSQL at {self} is not ready: {error}")
            case FailureKind.CONNECTIONS_FULL:
                return NoConnectionFree(f"{self} has no connection free: {error}")
            case FailureKind.NO_NAMESPACE:
                return DatabaseError(f"{self}: there is no database {database or ''}".rstrip())
            case FailureKind.LOGIN:
                return DatabaseError(f"{self} refuses the session: {error}")
            case _:
                return DatabaseError(f"{self}: {error} ({error.sqlstate or ''})")


def without_event_triggers(connection: Connection) -> dict[str, str]:
    """The settings of a superuser's session on which no event trigger acts, by the server's version."""
    if connection.get_server_version().major >= EVENT_TRIGGERS_SINCE:
        return EVENT_TRIGGERS_OFF
    return {"session_replication_role": "replica"}


def is_superuser(connection: Connection) -> bool:
    """As the server has told at the login, and tells anew when it changes."""
    return connection.get_settings().is_superuser == "on"  # type: ignore[no-any-return]


def _check_url(url: str) -> None:
    try:
        check_database_url(url)
    except ValueError as error:
        raise ConfigError(f"the database's URL {error}") from error


def _command_timeout_s(statement_timeout_ms: int) -> float | None:
    """The server's timeout comes first; this one is for a server that does not answer at all."""
    return statement_timeout_ms / 1000 + COMMAND_MARGIN_S if statement_timeout_ms else None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
