"""`appliance system`: install, check, upgrade and uninstall the appliance as services of this box.

Owns the options and what is printed. A dry run unless told to act.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.option_types import utf8_path, utf8_text
from appliance.cli.plain_text import as_json
from appliance.errors import ConfigError, NotReadable

if TYPE_CHECKING:
    from appliance.cli.system_plan import Step

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SOURCES = Path(__file__).parents[2] / "systemd"
"""The units, the user and the folders, as they are installed."""


def add_system(commands: Subparsers) -> None:
    """The command and its subcommands, with `system_command` as the name that was chosen."""
    parser = commands.add_parser("system", help="install the appliance as services of this box")
    chosen = parser.add_subparsers(dest="system_command", required=True, metavar="COMMAND")
    install = chosen.add_parser("install", help="say what would be made; with --execute make it")
    install.add_argument("--model", type=utf8_path, default=None, help="a model directory")
    install.add_argument("--name", type=utf8_text, default=None, help="what clients call the model")
    install.add_argument("--start", action="store_true", help="start everything at the end")
    check = chosen.add_parser("check", help="whether all is as it was installed (exit code 1: no)")
    upgrade = chosen.add_parser("upgrade", help="let this program take the installed one's place")
    upgrade.add_argument(
        "--no-way-back",
        action="store_true",
        help="also where the old version cannot use the database afterwards",
    )
    rollback = chosen.add_parser("rollback", help="go back to what the last upgrade replaced")
    chosen.add_parser("about", help="what this program is, as JSON: another version asks")
    uninstall = chosen.add_parser("uninstall", help="take services and program links away")
    uninstall.add_argument(
        "--delete",
        type=utf8_path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="also delete this folder and all in it: /var/lib/appliance (the chats), "
        "/var/cache/appliance, /var/backups/appliance, /etc/appliance (settings and secrets)",
    )
    for command in (install, check, uninstall):
        command.add_argument(
            "--root", type=utf8_path, default=Path("/"), help="a tree that another system will boot"
        )
    for command in (install, upgrade, rollback, uninstall):
        command.add_argument("--execute", action="store_true", help="do it; without: only say it")


def run_system(options: argparse.Namespace) -> int:
    """Run the chosen subcommand; returns the exit code. Raises ConfigError."""
    from appliance.cli.system_apply import tree
    from appliance.cli.system_steps import (
        install_steps,
        next_commands,
        not_this_version,
        uninstall_steps,
    )

    if options.system_command in ("upgrade", "rollback", "about"):
        return _change_version(options)
    root = tree(options.root)
    if options.system_command == "uninstall":
        return _act(root, uninstall_steps(root, SOURCES, options.delete), options.execute)
    if options.system_command == "check":
        return _check(root)
    other = not_this_version(root)
    if other is not None:
        raise ConfigError(other)
    steps = install_steps(
        root, SOURCES, model=options.model, name=options.name, start=options.start
    )
    code = _act(root, steps, options.execute)
    if steps and options.execute:
        print("\n".join(["next:", *next_commands(root, is_started=options.start)]))
    return code


def _change_version(options: argparse.Namespace) -> int:
    import msgspec

    from appliance.cli.system_upgrade import run_rollback, run_upgrade
    from appliance.cli.system_version import about

    if options.system_command == "about":
        print(as_json(msgspec.to_builtins(about())))
        return 0
    if options.system_command == "rollback":
        return run_rollback(execute=options.execute)
    return run_upgrade(SOURCES, execute=options.execute, no_way_back=options.no_way_back)


def _check(root: Path) -> int:
    from appliance.cli.db_choice import is_there
    from appliance.cli.installed import CONFIG
    from appliance.cli.system_apply import below
    from appliance.cli.system_steps import install_steps, not_this_version, steps_without_settings

    if not is_there(below(root, CONFIG)):
        print(f"not installed: {CONFIG} is missing (appliance system install)")
        return EXIT_FOUND_WRONG
    other = not_this_version(root)
    if other is not None:
        print(other)
        return EXIT_FOUND_WRONG
    try:
        steps = install_steps(root, SOURCES, model=None, name=None, start=False)
        is_whole = True
    except NotReadable as error:
        # What the settings ask for is not known; what they have no part in is.
        print(f"not looked at: {error.message}")
        steps = steps_without_settings(root, SOURCES)
        is_whole = False
    for step in steps:
        print(step)
    if steps:
        print("appliance system install --execute would mend it")
    else:
        print("installed as it should be" if is_whole else "the rest is as it should be")
    return 0 if is_whole and not steps else EXIT_FOUND_WRONG


def _act(root: Path, steps: Sequence[Step], execute: bool) -> int:
    from appliance.cli.system_apply import ROOT, carry_out

    if not steps:
        print("nothing to do")
        return 0
    if execute and root == ROOT and os.geteuid() != 0:
        raise ConfigError("only root can change services; without --execute nothing is changed")
    for step in steps:
        print(step, flush=True)
        if execute:
            carry_out(root, step)
    if not execute:
        print("nothing was changed: say --execute to do it", file=sys.stderr)
    return 0
