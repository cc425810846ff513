"""The user a PostgreSQL server runs as. PostgreSQL refuses root, so root runs it as somebody else.

Owns no user: creates none, and changes no folder that is not the cluster's own.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import DatabaseError

CLUSTER_UID = 61170
"""Owns clusters that root creates: of no range that distributions or systemd hand out (they end at
61183 and begin again at 61184), so no other program runs as it. `postgres` needs no passwd entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A uid and gid, and whether this process has to become it first (it is root)."""

    uid: int
    gid: int
    borrowed: bool

    def spawn_options(self) -> dict[str, Any]:
        """Keyword arguments of subprocess for a child under this account."""
        if not self.borrowed:
            return {"umask": 0o077}
        return {"umask": 0o077, "user": self.uid, "group": self.gid, "extra_groups": []}


def own_account() -> Account:
    """This process's own account."""
    return Account(uid=os.geteuid(), gid=os.getegid(), borrowed=False)


def account_for_new_cluster() -> Account:
    """Who is to own a cluster created now."""
    if os.geteuid() != 0:
        return own_account()
    return Account(uid=CLUSTER_UID, gid=CLUSTER_UID, borrowed=True)


def account_for_initdb() -> Account:
    """Who runs `initdb`, which looks its own user up in passwd: as root, `nobody` or any other.

    Raises DatabaseError when passwd knows root alone.
    """
    if os.geteuid() != 0:
        return own_account()
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    if not others:
        raise DatabaseError("PostgreSQL cannot be set up as root where passwd knows no other user")
    chosen = next((entry for entry in others if entry.pw_name == "nobody"), others[0])
    return Account(uid=chosen.pw_uid, gid=chosen.pw_gid, borrowed=True)


def account_of_cluster(directory: Path) -> Account:
    """Who has to run the cluster in `directory`: its owner.

    Raises DatabaseError when that is root, or someone this process cannot become.
    """
    status = directory.stat()
    if os.geteuid() == 0:
        if status.st_uid == 0:
            raise DatabaseError(
                f"{directory} belongs to root, under which PostgreSQL refuses to run; "
                f"give it to the user it ran as (chown -R USER {directory})"
            )
        return Account(uid=status.st_uid, gid=status.st_gid, borrowed=True)
    if status.st_uid != os.geteuid():
        raise DatabaseError(
            f"{directory} belongs to {_user_name(status.st_uid)}, not to "
            f"{_user_name(os.geteuid())}: run this as its owner, or choose another data folder"
        )
    return own_account()


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
