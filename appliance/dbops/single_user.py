"""One statement in single-user mode, for the one deed that in the stop nothing else can do.

Only on an embedded cluster that this process runs itself: it is stopped, the statement takes one of the
three million transaction IDs that are kept back, and it is started again. Never: any other statement.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.dbops.account import account_of_cluster
from appliance.dbops.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster import Cluster
from appliance.dbops.folder import opened
from appliance.dbops.programs import run_program
from appliance.errors import DatabaseError

TIMEOUT_S = 600.0


async def drop_in_single_user_mode(
    cluster: Cluster,
    binaries: Binaries,
    database: str,
    statement: str,
    progress: Callable[[str], None],
) -> None:
    """Stop `cluster`, run the DROP TABLE, start it again. Raises DatabaseError when the DROP fails."""
    assert statement.startswith('DROP TABLE "pg_temp_')
    assert "\n" not in statement
    await cluster.stop()
    try:
        output = await _single_user(cluster.directory, binaries, database, statement)
    finally:
        await cluster.start(progress)
    errors = [line for line in output.splitlines() if "ERROR:" in line or "FATAL:" in line]
    if errors:
        raise DatabaseError(f"single-user mode: {errors[0].strip()}")


async def _single_user(directory: Path, binaries: Binaries, database: str, statement: str) -> str:
    account = account_of_cluster(directory)
    reachable = reachable_binaries(binaries, account)
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
