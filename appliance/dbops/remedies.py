"""The statements against what holds freezing back: what `diagnose` prints and `run` enters. Text only.

Each is one statement without its semicolon, and takes no transaction ID where that is possible. Never:
decides which of them is right.
"""

from __future__ import annotations

from datetime import datetime

from appliance.dbops.quoting import identifier, literal

TERMINATE_WAIT_MS = 5000

ONLY_DATABASE_STATS_SINCE = 16
SMALL_CATALOG = "pg_catalog.pg_am"
"""Before 16 a database's age is computed at the end of any VACUUM, so of the smallest one."""


def end_session(pid: int) -> str:
    """End a session, from anywhere in the cluster."""
    return f"SELECT pg_terminate_backend({pid}, {TERMINATE_WAIT_MS})"


def end_session_seen(pid: int, seen_at: datetime, *, idle_too: bool = False) -> str:
    """End it unless it is no longer the one that was seen: its number may be another's by now, and a
    transaction that has ended holds nothing back. No row then."""
    begun = "backend_start" if idle_too else "xact_start"
    return (
        f"SELECT pg_terminate_backend(pid, {TERMINATE_WAIT_MS}) FROM pg_stat_activity "
        f"WHERE pid = {pid} AND {begun} <= {literal(seen_at.isoformat())}::timestamptz"
    )


def commit_prepared(gid: str) -> str:
    """In its database; what it wrote becomes visible."""
    return f"COMMIT PREPARED {literal(gid)}"


def rollback_prepared(gid: str) -> str:
    """In its database; what it wrote is thrown away."""
    return f"ROLLBACK PREPARED {literal(gid)}"


def drop_slot(name: str) -> str:
    """A logical one only in its database; one that is read only once its reader has ended."""
    return f"SELECT pg_drop_replication_slot({literal(name)})"


def drop_table(schema: str, name: str) -> str:
    """Takes a transaction ID."""
    return f"DROP TABLE {identifier(schema, name)}"


def drop_temp_table(schema: str, name: str) -> str:
    """Of a session that has ended, with its temporary views of it, as autovacuum does it. Takes an ID."""
    return f"{drop_table(schema, name)} CASCADE"


def check_rows(schema: str | None, relation: str, *, first: bool = False) -> str:
    """A call of amcheck's verify_heapam; `relation` is an expression, `schema` is where it was installed.

    With all its arguments, each of its own type: whoever may create functions in that schema may have one
    there that a shorter call fits better, and this may be a superuser's.
    """
    name = "verify_heapam" if schema is None else identifier(schema, "verify_heapam")
    return (
        f"{name}({relation}::regclass, {str(first).lower()}, false, 'none'::text, "
        "NULL::bigint, NULL::bigint)"
    )


def set_setting(name: str, value: str | None) -> str:
    """A setting of the whole server, from the next reload on; None takes it out again."""
    if value is None:
        return f"ALTER SYSTEM RESET {name}"
    return f"ALTER SYSTEM SET {name} = {literal(value)}"


def freeze_database() -> str:
    """Make a whole database young, all but its indexes' cleanup. For small ones."""
    return "VACUUM (FREEZE, INDEX_CLEANUP OFF, TRUNCATE OFF)"


def count_database_age(major: int) -> str:
    """Have a database's age follow from its relations', and with it the server's limits."""
    if major >= ONLY_DATABASE_STATS_SINCE:
        return "VACUUM (ONLY_DATABASE_STATS)"
    return f"VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) {SMALL_CATALOG}"
