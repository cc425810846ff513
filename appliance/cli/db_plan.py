"""`appliance db plan`: what a repair would do, in order, and why. Never: does any of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_json, add_target, target_of
from appliance.cli.db_plan_text import plan_json, plan_text
from appliance.cli.db_policy import add_policy, place_of, policy_of
from appliance.cli.plain_text import as_json

if TYPE_CHECKING:
    from appliance.dbops.plan.plan import Plan


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "plan", help="what brings writes back or a margin, step by step, without doing it"
    )
    add_target(parser)
    add_policy(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    import asyncio

    plan = asyncio.run(_plan(options))
    print(as_json(plan_json(plan)) if options.json else plan_text(plan))
    return 0


async def _plan(options: argparse.Namespace) -> Plan:
    from appliance.dbops.plan.history import History
    from appliance.dbops.plan.plan import make_plan
    from appliance.dbops.repair.run_journal import past_history
    from appliance.dbops.snapshot.inspect import read_snapshot

    policy = policy_of(options)
    snapshot = await read_snapshot(target_of(options).connect)
    place = place_of(options, snapshot)
    history: History = past_history(place.state_dir, snapshot.system_id)
    return make_plan(snapshot, policy, history)
