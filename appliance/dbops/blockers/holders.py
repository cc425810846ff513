"""Who holds the horizon back: each transaction, standby and slot that keeps rows from being frozen. Pure.

Whose XIDs count for which tables is `ComputeXidHorizons` (storage/ipc/procarray.c): a session's or
prepared transaction's for its database and for what all databases share, a slot's `xmin` and a standby's
feedback for everything, a slot's `catalog_xmin` for catalogs. Never: judges whether that is bad.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.dbops import remedies
from appliance.dbops.blockers.blocker import Action, ActionForm, Blocker, BlockerKind, Reach
from appliance.dbops.duration import duration
from appliance.dbops.snapshot.snapshot import PreparedTransaction, Session, Slot, Snapshot, Standby

PARALLEL_WORKER = "parallel worker"
AUTOVACUUM_WORKER = "autovacuum worker"


def holders(snapshot: Snapshot) -> Iterator[Blocker]:
    """All of them, however young, in no order."""
    feedback = {standby.pid for standby in snapshot.standbys if standby.xmin_age is not None}
    for session in snapshot.sessions:
        # A parallel worker shows its leader's snapshot, a standby's sender its feedback.
        if session.own or session.backend == PARALLEL_WORKER or session.pid in feedback:
            continue
        if session.horizon_age is not None:
            yield _session(snapshot, session, session.horizon_age)
    for standby in snapshot.standbys:
        if standby.xmin_age is not None:
            yield _standby(snapshot, standby, standby.xmin_age)
    for transaction in snapshot.prepared:
        yield _prepared(snapshot, transaction)
    for slot in snapshot.slots:
        if not slot.lost:
            yield from _slot(snapshot, slot)


def owns_old_temp_table(snapshot: Snapshot, pid: int) -> bool:
    """Whether ending this session would leave temporary tables behind that hold the horizon back."""
    return any(
        pid in namespace.owners
        for database in snapshot.databases
        for namespace in database.temp_namespaces or ()
    )


def terminate(pid: int, consequence: str) -> Action:
    """End a session from anywhere in the cluster; takes no XID."""
    return Action(
        form=ActionForm.SQL,
        text=f"{remedies.end_session(pid)};",
        database=None,
        consequence=consequence,
    )


def describe(session: Session) -> str:
    """Whose it is and what it does, in one line without its statement."""
    who = f"user {session.user or '?'}, application {session.application or '?'}"
    place = f" from {session.client}" if session.client else ""
    where = f", database {session.database}" if session.database else ""
    doing = f", {session.state}" if session.state else f", {session.backend}"
    since = f" for {duration(session.state_s)}" if session.state_s is not None else ""
    return f"{who}{place}{where}{doing}{since}"


def _session(snapshot: Snapshot, session: Session, age: int) -> Blocker:
    automatic = session.backend == AUTOVACUUM_WORKER
    idle = (session.state or "").startswith("idle in transaction")
    consequence = "its open transaction is rolled back, its client loses the connection"
    if automatic:
        actions: tuple[Action, ...] = (
            Action(
                form=ActionForm.SQL,
                text=f"SELECT pg_cancel_backend({session.pid});",
                database=None,
                consequence="autovacuum begins that table again later; better to wait for it",
            ),
        )
    elif snapshot.stopped and owns_old_temp_table(snapshot, session.pid):
        actions = (
            terminate(
                session.pid,
                "WRONG while no XID is left: its temporary tables cannot be dropped then, and stay "
                "behind without an owner. Let its client end the transaction instead",
            ),
        )
    else:
        actions = (terminate(session.pid, consequence),)
    return Blocker(
        kind=BlockerKind.IDLE_IN_TRANSACTION if idle else BlockerKind.LONG_TRANSACTION,
        id=f"pid {session.pid}",
        age=age,
        stage=snapshot.stage_of_xid_age(age),
        reach=Reach(database=session.database, shared=True),
        detail=f"{describe(session)}: {session.query}".rstrip(": "),
        since_s=session.transaction_s,
        actions=actions,
        pid=session.pid,
        database=session.database,
        automatic=automatic,
    )


def _standby(snapshot: Snapshot, standby: Standby, age: int) -> Blocker:
    where = f" at {standby.client}" if standby.client else ""
    return Blocker(
        kind=BlockerKind.STANDBY_FEEDBACK,
        id=f"pid {standby.pid}",
        age=age,
        stage=snapshot.stage_of_xid_age(age),
        reach=Reach(),
        detail=f"standby {standby.application or '?'}{where}: a query there keeps its rows here",
        since_s=None,
        actions=(
            _feedback_off(),
            terminate(
                standby.pid, "the standby reconnects, and sends the same again if its query runs"
            ),
        ),
        pid=standby.pid,
    )


def _feedback_off() -> Action:
    return Action(
        form=ActionForm.SQL,
        text="ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf();",
        database=None,
        consequence="ON THE STANDBY: its long queries may be cancelled; or end them there",
    )


def _prepared(snapshot: Snapshot, transaction: PreparedTransaction) -> Blocker:
    return Blocker(
        kind=BlockerKind.PREPARED_TRANSACTION,
        id=f"gid {transaction.gid}",
        age=transaction.xid_age,
        stage=snapshot.stage_of_xid_age(transaction.xid_age),
        reach=Reach(database=transaction.database, shared=True),
        detail=f"prepared by {transaction.owner} in database {transaction.database} "
        f"{duration(transaction.prepared_s)} ago; do not restart the server before it is gone",
        since_s=transaction.prepared_s,
        actions=finish_prepared(transaction.gid, transaction.database),
        gid=transaction.gid,
        database=transaction.database,
    )


def finish_prepared(gid: str, database: str) -> tuple[Action, ...]:
    """Both ways."""
    ways = {
        remedies.commit_prepared(gid): "keeps what it wrote; right if its coordinator committed",
        remedies.rollback_prepared(
            gid
        ): "throws away what it wrote; right if its coordinator gave up",
    }
    return tuple(
        Action(
            form=ActionForm.SQL, text=f"{statement};", database=database, consequence=consequence
        )
        for statement, consequence in ways.items()
    )


def _slot(snapshot: Snapshot, slot: Slot) -> Iterator[Blocker]:
    drop = f"{remedies.drop_slot(slot.name)};"
    if slot.active_pid is not None:
        drop = f"{remedies.end_session(slot.active_pid)}; {drop}"
    whose = f"plugin {slot.plugin}, database {slot.database}" if slot.logical else "a standby's"
    use = "unused" if slot.active_pid is None else f"in use by pid {slot.active_pid}"
    actions = [
        Action(
            form=ActionForm.SQL,
            text=drop,
            database=slot.database,
            consequence="whoever reads from it has to be set up anew",
        )
    ]
    if slot.active_pid is not None and not slot.logical:
        actions.insert(0, _feedback_off())
    for age, catalogs_only in ((slot.xmin_age, False), (slot.catalog_xmin_age, True)):
        if age is not None:
            yield Blocker(
                kind=BlockerKind.LOGICAL_SLOT if slot.logical else BlockerKind.PHYSICAL_SLOT,
                id=f"slot {slot.name}",
                age=age,
                stage=snapshot.stage_of_xid_age(age),
                reach=Reach(catalogs_only=catalogs_only),
                detail=f"{whose}, {use}",
                since_s=None,
                actions=tuple(actions),
                pid=slot.active_pid,
                slot=slot.name,
                database=slot.database,
            )
