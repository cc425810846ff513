"""The prompt registry: versions of characters that never change, and labels that move between them.

Owns every statement on versions, their files, labels and the history of moves. Never: what a file means,
or whether a version is any good.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import asyncpg

from appliance.errors import Conflict, InvalidRequest, LabelProtected, NotFound
from appliance.store.pool import Connection, Pool, retried, retried_write
from appliance.store.prompt_records import (
    PREFIX_CHARACTERS_MIN,
    Label,
    LabelMove,
    PromptVersion,
    checked_author,
    checked_label,
    checked_message,
    is_prefix,
    read_label,
    read_move,
    read_version,
)
from appliance.store.queries import load_queries

T = TypeVar("T")

QUERIES = load_queries("prompt_registry")
READ_RETRY_S = 2.0
WRITE_RETRY_S = 10.0
LISTED_MAX = 1000


class PromptRegistry:
    """Reads and writes of one database; safe to share between all requests of a process.

    Reads are tried again for READ_RETRY_S, writes (all idempotent) for WRITE_RETRY_S; then every method
    raises StorageUnavailable.
    """

    def __init__(self, pool: Pool, *, jitter: random.Random | None = None) -> None:
        self._pool = pool
        self._jitter = jitter or random.Random()

    async def publish(
        self, name: str, version: str, files: Mapping[str, bytes], *, author: str, message: str
    ) -> bool:
        """Store a version with its files; False when it was there already, which changes nothing.

        Raises InvalidRequest for an author or message that is empty or too long.
        """
        who, why = checked_author(author), checked_message(message)
        paths, contents = list(files), list(files.values())

        async def operation(connection: Connection) -> bool:
            return bool(
                await connection.fetchval(
                    QUERIES["publish_version"], name, version, who, why, paths, contents
                )
            )

        return await self._write(operation)

    async def files(self, name: str, version: str) -> Mapping[str, bytes]:
        """The files of a version by path; raises NotFound."""
        rows = await self._fetch("get_files", name, version)
        if not rows:
            raise NotFound(f"{name} has no version {version}", param="prompt_version")
        return {row["path"]: row["content"] for row in rows}

    async def names(self) -> tuple[str, ...]:
        """Every name that has a version."""
        return tuple(row["name"] for row in await self._fetch("names"))

    async def versions(self, name: str) -> tuple[PromptVersion, ...]:
        """The versions of a name, newest first, at most LISTED_MAX; raises NotFound for none."""
        rows = await self._fetch("versions", name, LISTED_MAX)
        if not rows:
            raise await self._no_name(name)
        return tuple(read_version(row) for row in rows)

    async def moves(self, name: str) -> tuple[LabelMove, ...]:
        """What happened to the labels of a name, newest first, at most LISTED_MAX."""
        return tuple(read_move(row) for row in await self._fetch("moves", name, LISTED_MAX))

    async def labels(self, name: str) -> tuple[Label, ...]:
        """Where the labels of a name stand."""
        return tuple(read_label(row) for row in await self._fetch("labels", name))

    async def labelled(self, label: str) -> tuple[Label, ...]:
        """Where one label stands, for every name that has it, at one moment."""
        return tuple(read_label(row) for row in await self._fetch("labelled", label))

    async def resolve(self, name: str, reference: str) -> str:
        """The version that a label, or the beginning of its hash, means.

        Raises NotFound for an unknown name, label or version, InvalidRequest for a beginning that is too
        short or that several versions have.
        """
        if is_prefix(reference):
            return await self._by_prefix(name, reference)
        rows = await self._fetch("get_label", name, checked_label(reference))
        if rows:
            return read_label(rows[0]).version
        known = ", ".join(label.label for label in await self.labels(name))
        newest = await self._fetch("versions", name, 1)
        if not newest:
            raise await self._no_name(name)
        labels = f"labels: {known}" if known else "it has none yet"
        raise NotFound(
            f"{name} has no label {reference!r} ({labels}; its newest version is "
            f"{newest[0]['version'][:12]})",
            param="prompt_version",
        )

    async def move(
        self,
        name: str,
        label: str,
        version: str,
        *,
        seen: str | None,
        author: str,
        message: str,
        protect: bool | None = None,
        confirmed: bool = False,
        also: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> LabelMove | None:
        """Move a label from the version where it was `seen` (None: make it); None when it is there.

        `protect` sets or lifts its protection, None leaves it. `also` is done where it moves, in the same
        transaction: both happen, or neither. Raises Conflict when somebody else moved
        it meanwhile, LabelProtected unless the move of a protected one is `confirmed`, NotFound for an
        unknown version, InvalidRequest.
        """
        who, why = checked_author(author), checked_message(message)
        checked_label(label)
        await self._by_prefix(name, version)
        if seen == version and protect is None:
            return None
        change = (name, label, version, seen, protect, who, why, confirmed)
        tries = 0

        async def operation(connection: Connection) -> LabelMove | None:
            nonlocal tries
            tries += 1
            row = await connection.fetchrow(QUERIES["move_label"], *change)
            if row is not None:
                if also is not None:
                    await also(connection)
                return read_move(row)
            if tries > 1:
                made = (name, label, version, seen, who, why)
                row = await connection.fetchrow(QUERIES["move_made"], *made)
                if row is not None:  # `also` was done with it
                    return read_move(row)
            now = await connection.fetchrow(QUERIES["get_label"], name, label)
            _refuse(name, label, version, seen, None if now is None else read_label(now), protect)
            return None

        return await self._write(operation)

    async def remove_label(
        self,
        name: str,
        label: str,
        *,
        seen: str,
        author: str,
        message: str,
        confirmed: bool = False,
    ) -> None:
        """Take a label away from the version where it was `seen`; the history keeps it, as a move to
        where it stood. Raises as `move`."""
        who, why = checked_author(author), checked_message(message)
        change = (name, checked_label(label), seen, who, why, confirmed)

        async def operation(connection: Connection) -> None:
            if await connection.fetchval(QUERIES["remove_label"], *change) is not None:
                return
            row = await connection.fetchrow(QUERIES["get_label"], name, label)
            if row is not None:  # else a retry finds it done
                at = read_label(row)
                if at.version != seen:
                    raise Conflict(
                        f"label {label} of {name} was at {seen[:12]} and is at {at.version[:12]} now: "
                        "somebody else moved it"
                    )
                raise LabelProtected(
                    f"label {label} of {name} is protected: confirm that it is to be removed "
                    f"(confirm={label})",
                    param="confirm",
                )

        await self._write(operation)

    async def _by_prefix(self, name: str, prefix: str) -> str:
        if len(prefix) < PREFIX_CHARACTERS_MIN:
            raise InvalidRequest(
                f"version: {prefix!r} is shorter than {PREFIX_CHARACTERS_MIN} characters",
                param="prompt_version",
            )
        rows = await self._fetch("versions_beginning_with", name, prefix)
        found = [row["version"] for row in rows]
        if len(found) == 1:
            return str(found[0])
        if found:
            shown = ", ".join(version[: len(prefix) + 4] for version in found)
            raise InvalidRequest(
                f"several versions of {name} begin with {prefix!r} ({shown}): give more of it",
                param="prompt_version",
            )
        if not await self._fetch("versions", name, 1):
            raise await self._no_name(name)
        raise NotFound(f"no version of {name} begins with {prefix!r}", param="prompt_version")

    async def _no_name(self, name: str) -> NotFound:
        known = ", ".join(await self.names()) or "none is published"
        return NotFound(f"no prompt {name!r} (there are: {known})", param="name")

    async def _fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        async def operation(connection: Connection) -> Sequence[asyncpg.Record]:
            return await connection.fetch(QUERIES[query], *arguments)

        return await retried(self._pool, operation, budget_s=READ_RETRY_S, jitter=self._jitter)

    async def _write(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        return await retried_write(
            self._pool, operation, budget_s=WRITE_RETRY_S, jitter=self._jitter
        )


def _refuse(
    name: str,
    label: str,
    version: str,
    seen: str | None,
    now: Label | None,
    protect: bool | None,
) -> None:
    """Why a move did not happen; nothing is raised when the label is where it was to go."""
    if now is None:
        raise Conflict(f"label {label} of {name} is gone; it was at {(seen or '')[:12]}")
    if now.version == version and protect in (None, now.protected):
        return
    if now.version != seen:
        was = "did not exist" if seen is None else f"was at {seen[:12]}"
        raise Conflict(
            f"label {label} of {name} {was} and is at {now.version[:12]} now: somebody else moved it; "
            "look again, then move it"
        )
    raise LabelProtected(
        f"label {label} of {name} is protected and stays at {now.version[:12]}: name it again to move "
        f"it (--confirm {label})",
        param="confirm",
    )
