"""The options that `db plan`, `run` and `verify` share: what is to be reached, and what is allowed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_state, state_folder, target_of

if TYPE_CHECKING:
    from appliance.dbops.plan.policy import Policy
    from appliance.dbops.repair.run import Surroundings
    from appliance.dbops.snapshot.snapshot import Snapshot


def add_limits(parser: argparse.ArgumentParser) -> None:
    """How far, and how patiently. Numbers are checked by the policy itself."""
    default = _default()
    parser.add_argument(
        "--until-stage",
        type=int,
        default=default.last_stage,
        metavar="N",
        help="1: only bring writes back; 2: restore a comfortable margin too; 3: repair what was skipped "
        f"as well (default: {default.last_stage})",
    )
    parser.add_argument(
        "--headroom",
        type=int,
        default=default.headroom,
        metavar="XIDS",
        help=f"transaction IDs that are to be left after stage 1 (default: {default.headroom})",
    )
    parser.add_argument(
        "--lock-timeout-ms",
        type=int,
        default=default.lock_timeout_ms,
        metavar="MS",
        help="how long a table that is locked, or a page of it that is in use, is waited for "
        f"(default: {default.lock_timeout_ms})",
    )
    add_state(parser)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """What `add_limits` adds, and how a run works."""
    default = _default()
    add_limits(parser)
    parser.add_argument(
        "--workers",
        type=int,
        default=default.workers,
        metavar="N",
        help=f"VACUUMs at once, 1 or 2 (default: {default.workers})",
    )
    parser.add_argument(
        "--disk-floor-mib",
        type=int,
        default=default.disk_floor_bytes >> 20,
        metavar="MIB",
        help=f"stop at this much free disk (default: {default.disk_floor_bytes >> 20}, but at most a "
        "tenth of the disk)",
    )
    parser.add_argument(
        "--single-user",
        action="store_true",
        help="run the server myself, and stop it for the one deed that takes single-user mode",
    )


def _default() -> Policy:
    from appliance.dbops.plan.policy import Policy

    return Policy()


def limits_of(options: argparse.Namespace) -> Policy:
    """The policy that `add_limits`' options mean. Raises ConfigError."""
    from appliance.dbops.plan.policy import Policy

    return Policy(
        last_stage=options.until_stage,
        headroom=options.headroom,
        lock_timeout_ms=options.lock_timeout_ms,
    )


def policy_of(options: argparse.Namespace) -> Policy:
    """The policy that `add_policy`'s options mean. Raises ConfigError."""
    return replace(
        limits_of(options),
        workers=options.workers,
        disk_floor_bytes=options.disk_floor_mib << 20,
        single_user=options.single_user,
        maintenance=state_folder(options) is not None,
    )


def place_of(options: argparse.Namespace, snapshot: Snapshot) -> Surroundings:
    """Where a run keeps its state, and what of the server's disk can be seen from here."""
    from appliance.dbops.repair.disk_floor import is_folder_of, wal_folders
    from appliance.dbops.repair.run import Surroundings

    state, folder = state_folder(options), target_of(options).directory
    if folder is None and "data_directory" in snapshot.settings:
        told = Path(snapshot.settings["data_directory"])
        folder = told if is_folder_of(told, snapshot.server_started_s) else None
    return Surroundings(
        state_dir=_own_state_dir(snapshot.system_id) if state is None else state / "repair",
        data_dir=state,
        wal_folders=wal_folders(folder),
    )


def _own_state_dir(system_id: str) -> Path:
    """In this user's state folder (XDG base directory specification), one for each cluster."""
    import os

    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "appliance" / f"repair-{system_id}"
