"""`appliance db run`: carries a plan out. Dry by default; each destructive step is agreed to by name.

Never: decides what is done (the plan does), or takes a silence for consent.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from appliance.cli.db_options import add_json, add_target, target_of
from appliance.cli.db_plan_text import plan_json
from appliance.cli.db_policy import add_policy, place_of, policy_of
from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.dbops.repair.crew import Confirm, Report
    from appliance.dbops.repair.deeds import OwnServer
    from appliance.dbops.repair.row_counts import RowComparison
    from appliance.dbops.repair.run import Outcome


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "run",
        help="bring writes back and restore a margin; shows what it would do without --execute",
    )
    add_target(parser)
    add_policy(parser)
    parser.add_argument("--execute", action="store_true", help="do it")
    parser.add_argument(
        "--yes",
        action="append",
        default=[],
        metavar="KIND",
        help="agree beforehand to one kind of destructive step: session, standby, lock, prepared-commit, "
        "prepared-rollback, slot, temp-table, single-user, zero-damaged-pages, freeze-bad-rows, "
        "blocking-reindex",
    )
    parser.add_argument(
        "--rows",
        choices=("count", "hash"),
        help="count (or hash) every row before the first step and again before the server writes, and "
        "tell whether any was lost; it reads every table twice",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show the plan or carry it out; returns the exit code (1: something is left)."""
    import asyncio

    agreed = _consents(options.yes)
    if not options.execute:
        from appliance.cli.db_plan import run as show

        code = show(options)
        if not options.json:
            print("\nnothing was done: add --execute to do it")
        return code
    from appliance.cli.db_run_terminal import JsonReport, TerminalReport, confirm_by

    report: Report
    if options.json:
        # Standard output is a program's: nobody is there to be asked.
        report, confirm = JsonReport(), confirm_by(agreed, None)
    else:
        report = terminal = TerminalReport()
        confirm = confirm_by(agreed, terminal.ask if sys.stdin.isatty() else None)
    outcome = asyncio.run(_run(options, report, confirm))
    if options.json:
        print(as_json(_outcome_json(outcome)))
    else:
        report.said(_outcome_text(outcome))
    has_lost = outcome.rows is not None and outcome.rows.is_loss
    return 0 if outcome.is_complete and not has_lost else EXIT_FOUND_WRONG


async def _run(options: argparse.Namespace, report: Report, confirm: Confirm) -> Outcome:
    from appliance.dbops.repair.row_counts import RowReading
    from appliance.dbops.repair.run import Run
    from appliance.dbops.repair.run_journal import RunJournal
    from appliance.dbops.snapshot.inspect import read_cluster

    policy, target = policy_of(options), target_of(options)
    server = await _own_server(options, report) if options.single_user else None
    try:
        snapshot = await read_cluster(target.connect)
        place = place_of(options, snapshot)
        if not place.wal_folders:
            report.said(
                "the server's disk cannot be seen from here, so nothing stops this run when it is nearly "
                "full: watch it there, or run this on the server's machine as root or the server's user"
            )
        journal = RunJournal(place.state_dir, snapshot.system_id)
        try:
            if journal.unfinished:
                report.said("going on with a run that was broken off")
            return await Run(
                target,
                policy,
                journal,
                place,
                confirm=confirm,
                report=report,
                server=server,
                rows=None if options.rows is None else RowReading(options.rows),
            ).go()
        finally:
            journal.close()
    finally:
        if server is not None:
            await server.cluster.stop()


async def _own_server(options: argparse.Namespace, report: Report) -> OwnServer:
    """The embedded cluster, started by this process, which may then stop it."""
    from appliance.cli.db_options import cluster_folder
    from appliance.dbops.cluster.binaries import find_for
    from appliance.dbops.cluster.cluster import Cluster, major_of
    from appliance.dbops.repair.deeds import OwnServer

    if options.url is not None:
        raise ConfigError("--single-user is for an embedded cluster: name its folder (--data-dir)")
    folder = cluster_folder(options)
    binaries = find_for(major_of(folder))
    cluster = Cluster(folder, binaries, purpose="appliance db run")
    await cluster.start(report.said)
    return OwnServer(cluster=cluster, binaries=binaries)


def _consents(kinds: list[str]) -> frozenset[str]:
    from appliance.dbops.plan.step import Consent

    known = {consent.value for consent in Consent}
    for kind in kinds:
        if kind not in known:
            raise ConfigError(f"--yes {kind}: expected one of {', '.join(sorted(known))}")
    if {Consent.PREPARED_COMMIT, Consent.PREPARED_ROLLBACK} <= set(kinds):
        raise ConfigError(
            "--yes prepared-commit and --yes prepared-rollback: give one of them, or none to be asked "
            "about each prepared transaction"
        )
    return frozenset(kinds)


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "complete": outcome.is_complete,
        "stopped": outcome.stopped,
        "rows": None if outcome.rows is None else _rows_json(outcome.rows),
        "ended": [
            {
                "key": step.key,
                "object": step.object,
                "state": result.state.value,
                "words": result.words,
                "fault": None if result.fault is None else result.fault.value,
                "seconds": round(result.seconds, 3),
            }
            for step, result in outcome.ended
        ],
        "left": plan_json(outcome.left),
    }


def _rows_json(rows: RowComparison) -> dict[str, Any]:
    changes = [
        {
            "database": change.database,
            "table": change.table,
            "words": change.words,
            "is_loss": change.is_loss,
        }
        for change in rows.changes
    ]
    return {"tables": rows.tables, "is_loss": rows.is_loss, "changes": changes}


def _outcome_text(outcome: Outcome) -> str:
    from appliance.cli.db_verify import checks_text
    from appliance.dbops.repair.result import State
    from appliance.dbops.repair.verify import check_rows

    lines = []
    last = {step.key: (step, result) for step, result in outcome.ended}
    alike: dict[tuple[State, str], list[str]] = {}
    for step, result in last.values():
        if result.state is not State.DONE:
            alike.setdefault((result.state, result.words), []).append(visible(step.object))
    for (state, words), objects in alike.items():
        # What hundreds of steps wait for is one line.
        more = f" and {counted(len(objects) - 1, 'other')}" if len(objects) > 1 else ""
        lines.append(f"{state.value}: {objects[0]}{more}: {visible(words)}")
    if outcome.rows is not None:
        lines.append(checks_text(check_rows(outcome.rows)))
    if outcome.stopped is not None:
        lines.append(f"stopped: {outcome.stopped}")
    if outcome.is_complete:
        lines.append("everything is done")
    else:
        lines.append(
            f"{counted(len(outcome.left.steps), 'step')} left; `appliance db plan` shows what is to be "
            "done, and the same command goes on with it"
        )
    left = outcome.left
    lines.append(f"{left.xids_left:,} transaction IDs and {left.mxids_left:,} multixacts are left")
    return "\n".join(lines)
