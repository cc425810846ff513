"""Fills an empty folder with a new cluster. Never: starts its server, or names the folder.

UTF8, a locale that sorts by code point and knows Unicode's letters, and data checksums.
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.dbops.cluster.account import Account, account_for_initdb, account_for_new_cluster
from appliance.dbops.cluster.binaries import Binaries, reachable_binaries
from appliance.dbops.cluster.programs import run_program
from appliance.dbops.folder import append_text, give_to, opened
from appliance.dbops.settings import (
    HBA,
    HBA_FILE,
    INCLUDE_LINE,
    SETTINGS,
    SETTINGS_FILE,
    SUPERUSER,
)
from appliance.durable import replace_file

INIT_TIMEOUT_S = 120.0
BUILTIN_LOCALE_SINCE = 17
"""From this major version on PostgreSQL brings C.UTF-8 along; before, the system's has to do."""


async def fill_folder(work: Path, binaries: Binaries) -> None:
    """Make a cluster in the empty folder `work` and give it to the user who will run it.

    Raises DatabaseError.
    """
    account = account_for_initdb()
    os.chown(work, account.uid, account.gid)
    reachable = reachable_binaries(binaries, account)
    await initdb(work, reachable, account, checksums=True)
    adopt(work, account_for_new_cluster())


async def initdb(
    work: Path, binaries: Binaries, account: Account, *, checksums: bool, wal_segment_mb: int = 16
) -> None:
    """Run `initdb` in `work`, which belongs to `account`; its own settings are left in place."""
    with opened(work) as here:
        await run_program(
            binaries.program("initdb"),
            f"--pgdata={here.path}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            f"--wal-segsize={wal_segment_mb}",
            *_version_options(int(binaries.major), checksums),
            cwd=work,
            account=account,
            timeout_s=INIT_TIMEOUT_S,
            pass_fds=(here.descriptor,),
        )


def adopt(work: Path, owner: Account) -> None:
    """Give a new cluster its owner and its settings."""
    give_to(work, uid=owner.uid, gid=owner.gid)
    replace_file(work / HBA_FILE, HBA.encode())
    replace_file(work / SETTINGS_FILE, SETTINGS.encode())
    append_text(work, "postgresql.conf", INCLUDE_LINE)


def _version_options(major: int, checksums: bool) -> list[str]:
    options = ["--data-checksums"] if checksums else []
    if not checksums and major >= 18:
        options.append("--no-data-checksums")  # On by default from 18 on.
    if major < BUILTIN_LOCALE_SINCE:
        return [*options, "--locale=C.UTF-8"]
    builtin = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    return [*options, *builtin, "--sync-method=syncfs"]
