"""Experiments as they are stored: made, started, ramped, paused, ended, each with who and why.

Owns every statement on experiments, their arms and events, and on what conversations keep for them alone.
Never: decides whether an experiment is sound, or what it has shown.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from appliance.errors import Conflict, NotFound
from appliance.store.experiment_records import (
    Apart,
    ArmCounts,
    Experiment,
    ExperimentEvent,
    ShippedArm,
    State,
    create_arguments,
    read_event,
    read_experiments,
)
from appliance.store.pool import Connection, Pool, retried, retried_deed, retried_write
from appliance.store.prompt_records import checked_author, checked_message
from appliance.store.queries import load_queries

QUERIES = load_queries("experiments")
READ_RETRY_S = 2.0
WRITE_RETRY_S = 10.0
FAILURES_KEPT = 1_000
"""Of one conversation's failed replies, the latest."""


async def store_draft(
    connection: Connection, experiment: Experiment, *, author: str, message: str
) -> bool:
    """Store a draft with its arms, in one statement; False where the name is taken."""
    arguments = create_arguments(experiment, checked_author(author), checked_message(message))
    return bool(await connection.fetchval(QUERIES["create_experiment"], *arguments))


async def store_end(
    connection: Connection,
    name: str,
    state: State,
    *,
    arm: str | None,
    author: str,
    message: str,
    report: str | None,
) -> bool:
    """Stop an experiment, or note that an arm was shipped, with the report (JSON), or give a draft up;
    False where it does not run, or is no draft."""
    assert state in ("stopped", "shipped", "withdrawn")
    ended = (name, state, arm, checked_author(author), checked_message(message), report)
    return bool(await connection.fetchval(QUERIES["end_experiment"], *ended))


async def store_deletion(
    connection: Connection, experiment: str, arm: str, tenant: str, user: str | None
) -> None:
    """Keep that a conversation with a prompt that differs was deleted, and not whose it was."""
    await connection.execute(QUERIES["add_deletion"], experiment, arm, tenant, user)


def not_running(name: str, state: State) -> Conflict:
    """Why an experiment cannot be ended."""
    if state == "withdrawn":
        return Conflict(f"{name} is no draft: only a draft is withdrawn; `stop` ends what runs")
    beside = "; a draft is withdrawn" if state == "stopped" else ""
    return Conflict(f"{name} does not run: only a running experiment can be {state}{beside}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deed:
    """What is done to an experiment, as its event tells it. Raises InvalidRequest for who or why."""

    name: str
    kind: str
    arm: str | None = None
    author: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "author", checked_author(self.author))
        object.__setattr__(self, "message", checked_message(self.message))

    @property
    def event(self) -> tuple[str | None, ...]:
        """The parameters of the query `was_done`, in its order."""
        return (self.name, self.kind, self.arm, self.author, self.message)


class Experiments:
    """Reads and writes of one database; safe to share between all requests of a process.

    Every method raises StorageUnavailable after its time of retries. Those that change something raise
    InvalidRequest for an author or message that is empty or too long.
    """

    def __init__(self, pool: Pool, *, jitter: random.Random | None = None) -> None:
        self._pool = pool
        self._jitter = jitter or random.Random()

    async def all(self) -> tuple[Experiment, ...]:
        """Every experiment, the newest first."""
        return read_experiments(await self._fetch("experiments", False))

    async def running(self) -> tuple[Experiment, ...]:
        """Those that run and those they exclude: what each server asks again and again."""
        return read_experiments(await self._fetch("experiments", True))

    async def get(self, name: str) -> Experiment:
        """One experiment; raises NotFound."""
        found = await self.all()
        for experiment in found:
            if experiment.name == name:
                return experiment
        known = ", ".join(experiment.name for experiment in found) or "there is none yet"
        raise NotFound(f"no experiment {name!r} (there are: {known})", param="name")

    async def events(self, name: str) -> tuple[ExperimentEvent, ...]:
        """What happened to it, in order."""
        return tuple(read_event(row) for row in await self._fetch("experiment_events", name))

    async def report(self, name: str) -> str | None:
        """The report that it was last stopped or shipped with, as JSON; None without one."""
        rows = await self._fetch("experiment_report", name)
        return rows[0]["report"] if rows else None

    async def shipped(self, character: str) -> tuple[ShippedArm, ...]:
        """The arms that experiments made a character's `production`, the newest first."""
        rows = await self._fetch("shipped_arms", character)
        return tuple(
            ShippedArm(
                experiment=row["experiment"], arm=row["arm"], version=row["version"], at=row["at"]
            )
            for row in rows
        )

    async def counts(self, name: str) -> tuple[ArmCounts, ...]:
        """Conversations and users by arm. Reads every partition: a question of the operator's."""
        rows = await self._fetch("exposed_conversations", name)
        return tuple(
            ArmCounts(
                arm=row["arm"],
                conversations=row["conversations"],
                exposed=row["exposed"],
                users=row["users"],
                deleted=row["deleted"],
            )
            for row in rows
        )

    async def apart(self, name: str) -> Apart:
        """Whom no report counts."""
        (row,) = await self._fetch("apart", name)
        return Apart(crossed=row["crossed"], testers=row["testers"])

    async def add_failure(self, tenant: str, conversation_id: UUID, exposes: bool | None) -> None:
        """Keep that a reply failed before its first token, where the conversation is in an experiment
        that runs. `exposes`: its prompt is another than in the other arms; None: there was no prompt."""

        async def operation(connection: Connection) -> None:
            failed = (tenant, conversation_id, exposes, FAILURES_KEPT)
            await connection.execute(QUERIES["add_failure"], *failed)

        await retried_write(self._pool, operation, budget_s=WRITE_RETRY_S, jitter=self._jitter)

    async def create(self, experiment: Experiment, *, author: str, message: str) -> None:
        """Store a draft; raises Conflict where the name is taken."""
        deed = _Deed(name=experiment.name, kind="created", author=author, message=message)

        async def operation(connection: Connection) -> bool:
            return await store_draft(
                connection, experiment, author=deed.author, message=deed.message
            )

        if not await self._write(deed, operation):
            raise Conflict(f"there is an experiment {experiment.name!r} already: take another name")

    async def start(
        self,
        name: str,
        *,
        coverage: float | None = None,
        author: str,
        message: str,
        check: Callable[[Sequence[Experiment]], None],
    ) -> None:
        """Let users in from now on, with another `coverage` than the draft's where one is given. `check`
        sees all experiments, and raises where this one would get in the way of another; no other is
        started meanwhile. Raises Conflict unless it is a draft."""
        deed = _Deed(name=name, kind="started", author=author, message=message)
        if not await self._change("start_experiment", coverage, deed, check=check):
            raise Conflict(f"{name} is no draft any more: only a draft can be started")

    async def ramp(
        self,
        name: str,
        coverage: float,
        *,
        author: str,
        message: str,
        check: Callable[[Sequence[Experiment]], None],
    ) -> None:
        """Let in a larger share of its users, where `check` allows it, as for `start`; raises Conflict
        where it is no larger, or does not run."""
        deed = _Deed(name=name, kind="ramped", author=author, message=message)
        if not await self._change("ramp_experiment", coverage, deed, check=check):
            raise Conflict(
                f"{name} does not run, or lets in as many users already: a ramp only adds users, since "
                "those who were let in have seen the difference"
            )

    async def pause(self, name: str, arm: str, *, author: str, message: str) -> bool:
        """Open no more conversations in an arm; False when it is paused already or does not run."""
        deed = _Deed(name=name, kind="paused", arm=arm, author=author, message=message)
        return await self._change("pause_arm", arm, deed)

    async def end(
        self,
        name: str,
        state: State,
        *,
        arm: str | None,
        author: str,
        message: str,
        report: str | None,
    ) -> None:
        """As `store_end`, by itself; raises Conflict where it does not run, or is no draft."""
        deed = _Deed(name=name, kind=state, arm=arm, author=author, message=message)
        who: dict[str, str] = {"author": deed.author, "message": deed.message}

        async def operation(connection: Connection) -> bool:
            return await store_end(connection, name, state, arm=arm, report=report, **who)

        if not await self._write(deed, operation):
            raise not_running(name, state)

    async def _change(
        self,
        query: str,
        value: object,
        deed: _Deed,
        *,
        check: Callable[[Sequence[Experiment]], None] | None = None,
    ) -> bool:
        change = (deed.name, value, deed.author, deed.message)

        async def operation(connection: Connection) -> bool:
            if check is not None:
                await connection.execute(QUERIES["lock_experiments"])
                check(read_experiments(await connection.fetch(QUERIES["experiments"], False)))
            return bool(await connection.fetchval(QUERIES[query], *change))

        return await self._write(deed, operation)

    async def _write(self, deed: _Deed, operation: Callable[[Connection], Awaitable[bool]]) -> bool:
        """Whether it was done. A try after one whose answer was lost finds nothing left to change: the
        event that is stored with it says whether that is its own work."""

        async def once(connection: Connection, is_again: bool) -> bool:
            if await operation(connection):
                return True
            return is_again and bool(await connection.fetchval(QUERIES["was_done"], *deed.event))

        return await retried_deed(self._pool, once, budget_s=WRITE_RETRY_S, jitter=self._jitter)

    async def _fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        async def operation(connection: Connection) -> Sequence[asyncpg.Record]:
            return await connection.fetch(QUERIES[query], *arguments)

        return await retried(self._pool, operation, budget_s=READ_RETRY_S, jitter=self._jitter)
