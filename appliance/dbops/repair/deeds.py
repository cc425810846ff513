"""How each kind of step is done: by statements alone, or by what more it takes.

Owns what only some steps need: the server that may be stopped, the folder for damaged pages. Never:
decides what comes next, asks anybody, or raises what a server answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.faults import RepairFault, repair_fault
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.autovacuum_call import call_autovacuum
from appliance.dbops.repair.damaged_pages import give_up_damaged_pages
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_step import StepTaker
from appliance.dbops.repair.single_user import drop_in_single_user_mode
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import NoConnectionFree
from appliance.errors import ApplianceError, DatabaseError

DAMAGED_PAGES = "damaged-pages"
"""The folder for their copies, in the state folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A server that this process runs itself, and so may stop for single-user mode."""

    cluster: Cluster
    binaries: Binaries


class Deeds:
    """What a run can do; a failure is an outcome."""

    def __init__(
        self,
        journal: RunJournal,
        state_dir: Path,
        server: OwnServer | None,
        said: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._pages_dir = state_dir / DAMAGED_PAGES
        self._server = server
        self._said = said

    async def do(
        self, step: Step, choice: Choice | None, snapshot: Snapshot, taker: StepTaker
    ) -> Result:
        """Do a step through the sessions of `taker`; `choice` is what was agreed to."""
        try:
            match step.kind:
                case StepKind.AUTOVACUUM:
                    return await call_autovacuum(step, taker.sessions, self._journal)
                case StepKind.DROP_TEMP_OFFLINE:
                    assert choice is not None
                    return await self._drop_offline(step, choice)
                case StepKind.ZERO_PAGES:
                    await self._give_up_pages(step, snapshot, taker)
        except NoConnectionFree as error:
            return Result(state=State.FAILED, words=error.message, fault=RepairFault.FULL)
        except ApplianceError as error:
            return Result(state=State.FAILED, words=error.message)
        except DatabaseFailure as error:
            return Result(state=State.FAILED, words=str(error), fault=repair_fault(error))
        return await taker.take(step, choice, snapshot)

    async def _drop_offline(self, step: Step, choice: Choice) -> Result:
        if self._server is None:
            raise DatabaseError(
                "the server is not this command's own: stop it and name its folder (--data-dir)"
            )
        assert step.database is not None
        await drop_in_single_user_mode(
            self._server.cluster,
            self._server.binaries,
            step.database,
            choice.statements[0],
            self._said,
        )
        return Result(state=State.DONE)

    async def _give_up_pages(self, step: Step, snapshot: Snapshot, taker: StepTaker) -> None:
        relation = snapshot.relation(step.database, step.relation_oid)
        assert relation is not None
        copies = await give_up_damaged_pages(step, relation, taker.sessions, self._pages_dir)
        for path in copies:
            self._said(f"kept a copy of a damaged page: {path}")
