"""One statement in single-user mode, for the one deed that in the stop nothing else can do.

Only on an embedded cluster that this process runs itself: it is stopped, the statement takes one of the
three million transaction IDs that are kept back, and it is started again. Never: any other statement.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable
from pathlib import Path

from appliance.dbops.cluster.account import Account, account_for_initdb, account_of_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.cluster.programs import run_program
from appliance.dbops.folder import give_to, opened
from appliance.errors import DatabaseError

TIMEOUT_S = 600.0


async def drop_in_single_user_mode(
    cluster: Cluster,
    binaries: Binaries,
    database: str,
    statement: str,
    progress: Callable[[str], None],
) -> None:
    """Stop `cluster`, run the DROP TABLE, start it again.

    Raises DatabaseError when the DROP fails, or a name has a line break, which would end the statement.
    """
    assert statement.startswith('DROP TABLE "pg_temp_')
    if "\n" in statement:
        raise DatabaseError(
            "the table's name has a line break, with which single-user mode cannot be given it: have its "
            "name changed or its session drop it, or drop it when there are transaction IDs again"
        )
    # Nobody else may start one meanwhile.
    await cluster.end_server()
    try:
        output = await _single_user(cluster.directory, binaries, database, statement)
    finally:
        await cluster.start(progress)
    errors = [line for line in output.splitlines() if "ERROR:" in line or "FATAL:" in line]
    if errors:
        raise DatabaseError(f"single-user mode: {errors[0].strip()}")


async def _single_user(directory: Path, binaries: Binaries, database: str, statement: str) -> str:
    owner = account_of_cluster(directory)
    # In this mode PostgreSQL looks its user up in passwd, which need not know the folder's owner. Were we
    # killed in between, the folder would only have another owner, who serves as well.
    account = owner if _has_name(owner) else account_for_initdb()
    reachable = reachable_binaries(binaries, account)
    if account != owner:
        give_to(directory, uid=account.uid, gid=account.gid)
    try:
        with opened(directory) as here:
            return await run_program(
                reachable.program("postgres"),
                "--single",
                "-D",
                here.path,
                # Its words come to us and not into the server's log.
                "-c",
                "logging_collector=off",
                database,
                cwd=directory,
                account=account,
                timeout_s=TIMEOUT_S,
                pass_fds=(here.descriptor,),
                given=f"{statement}\n".encode(),
            )
    finally:
        if account != owner:
            give_to(directory, uid=owner.uid, gid=owner.gid)


def _has_name(account: Account) -> bool:
    try:
        pwd.getpwuid(account.uid)
    except KeyError:
        return False
    return True
