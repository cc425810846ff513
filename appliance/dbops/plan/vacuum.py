"""The VACUUM of one relation as a step: which relation, with which options, how large. Pure.

Measured on 15.18 and 18.6 in the stop: what is left out here (index cleanup, truncation, TOAST by the
way, FREEZE) is what fails, waits or takes long there. FREEZE would also write the pages of the newest 50
million IDs, which hold nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from appliance.dbops.limits import MEMBERS_MAX
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Step, StepKind
from appliance.dbops.quoting import identifier
from appliance.dbops.snapshot.snapshot import Relation, RelationKind, Snapshot

FREEZE_MIN_AGE = 50_000_000
"""PostgreSQL's default; written down so that a setting of this server does not change the plan."""
MULTIXACT_FREEZE_MIN_AGE = 5_000_000

WAL_SHARE = 0.93
"""Bytes of WAL for a byte of table: freezing writes an image of each page (measured 0.90 to 0.93)."""
WAL_SHARE_COMPRESSED = 0.15

SECONDS_EACH = 0.002
"""What a VACUUM takes of an empty table: 1.4 to 3.3 s for 2,000 of them."""

AGE_STEP = 10_000_000
"""Of relations in the same ten million the smaller one goes first, and not the older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeLimits:
    """The ages from which on a relation belongs to a stage; stage 2's are never above stage 1's."""

    xid: tuple[int, int]
    mxid: tuple[int, int]
    members_short: bool
    """Multixacts are to be removed whatever their age: not their IDs but their members run out."""
    members_over_half: bool
    """Autovacuum too then freezes multixacts earlier than its setting says."""

    def stage_of(self, xid_age: int, mxid_age: int) -> int | None:
        """1 or 2, or None for what is young enough."""
        for stage in (1, 2):
            if xid_age >= self.xid[stage - 1] or mxid_age >= self.mxid[stage - 1]:
                return stage
        return None


def age_limits(snapshot: Snapshot, policy: Policy) -> AgeLimits:
    """What this policy means for this cluster.

    How many members a multixact has is not told anywhere. They are taken for spread evenly over the
    ages, so that to give back half of them the older half of the multixacts has to go.
    """
    first = policy.stage1_age
    last = policy.stage2_age(snapshot.setting_int("autovacuum_freeze_max_age"))
    mxid_last = policy.stage2_age(snapshot.setting_int("autovacuum_multixact_freeze_max_age"))
    used = 0.0 if snapshot.members is None else snapshot.members.used / MEMBERS_MAX
    by_members = [
        int(snapshot.mxid_age * share / used) if used > share else first
        for share in (policy.members_share_first, policy.members_share_last)
    ]
    mxid_first = min(first, max(1, by_members[0]))
    return AgeLimits(
        xid=(first, last),
        mxid=(mxid_first, min(mxid_first, mxid_last, max(1, by_members[1]))),
        members_short=used > policy.members_share_last,
        members_over_half=used > 0.5,
    )


def vacuum_step(
    snapshot: Snapshot,
    database: str,
    relation: Relation,
    *,
    stage: int,
    limits: AgeLimits,
    policy: Policy,
    rate_bytes_per_s: float,
) -> Step:
    """Freeze one relation, and nothing else."""
    size = relation.pages_not_frozen * snapshot.block_size
    options = ["INDEX_CLEANUP OFF", "TRUNCATE OFF", "PROCESS_TOAST OFF", "PARALLEL 0"]
    if snapshot.major >= 16:
        # The database's age is computed once, by the step that ends the database.
        options.append("SKIP_DATABASE_STATS")
        if stage == 1:
            options.append("BUFFER_USAGE_LIMIT 0")  # no ring: writing waits less for the WAL
    only = _only(snapshot)
    return Step(
        key=f"vacuum:{stage}:{database}:{relation.oid}",
        kind=StepKind.VACUUM,
        stage=stage,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason=_reason(relation, limits, stage),
        statements=(
            f"VACUUM ({', '.join(options)}) {only}{identifier(relation.schema, relation.name)}",
        ),
        settings=vacuum_settings(stage, policy, members_short=limits.members_short),
        relation_oid=relation.oid,
        xid_age=relation.xid_age,
        mxid_age=relation.mxid_age,
        xid_age_max=limits.xid[stage - 1],
        mxid_age_max=limits.mxid[stage - 1],
        bytes=size,
        wal_bytes=int(size * wal_share(snapshot)),
        seconds=size / rate_bytes_per_s + SECONDS_EACH,
    )


def repair_step(
    snapshot: Snapshot,
    database: str,
    relation: Relation,
    *,
    policy: Policy,
    rate_bytes_per_s: float,
    analyze: bool,
) -> Step:
    """What freezing left out: dead entries in indexes, empty pages at the end, statistics (`analyze`)."""
    size = max(0, relation.pages - relation.pages_all_visible) * snapshot.block_size
    options = ["INDEX_CLEANUP ON", "PROCESS_TOAST OFF", "PARALLEL 0"]
    if analyze and relation.kind is not RelationKind.TOAST:
        options.append("ANALYZE")
    only = _only(snapshot)
    return Step(
        key=f"repair:{database}:{relation.oid}",
        kind=StepKind.REPAIR,
        stage=3,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason="its indexes, its end and its statistics were left out while it was frozen",
        statements=(
            f"VACUUM ({', '.join(options)}) {only}{identifier(relation.schema, relation.name)}",
        ),
        settings=vacuum_settings(3, policy, members_short=False),
        relation_oid=relation.oid,
        bytes=size,
        seconds=size / rate_bytes_per_s + SECONDS_EACH,
    )


def _only(snapshot: Snapshot) -> str:
    """Since 18 a VACUUM of an inheritance parent goes through its children too, unless told not to."""
    return "ONLY " if snapshot.major >= 18 else ""


def order(relation: Relation) -> tuple[bool, int, int]:
    """Catalogs first (small, and they hold every database back), then the oldest, the smallest."""
    age = max(relation.xid_age, relation.mxid_age)
    return (not relation.catalog, -(age // AGE_STEP), relation.pages_not_frozen)


def vacuum_settings(stage: int, policy: Policy, *, members_short: bool) -> Mapping[str, str]:
    """The session's settings. `freeze_table_age` 0 reads every page that is not all-frozen, without
    which a VACUUM of a table that is merely middle-aged would not advance it."""
    return MappingProxyType(
        {
            "vacuum_freeze_min_age": str(FREEZE_MIN_AGE),
            "vacuum_freeze_table_age": "0",
            "vacuum_multixact_freeze_min_age": "0"
            if members_short
            else str(MULTIXACT_FREEZE_MIN_AGE),
            "vacuum_multixact_freeze_table_age": "0",
            "vacuum_cost_delay": "0" if stage == 1 else str(policy.cost_delay_ms),
        }
    )


def wal_share(snapshot: Snapshot) -> float:
    """Bytes of WAL for each byte that a run freezes. Its sessions compress with lz4 where they may,
    whatever the server's own setting is (`maintenance_session.py`)."""
    is_on = snapshot.settings.get("wal_compression", "off") != "off"
    is_compressed = is_on or (snapshot.has_lz4 and snapshot.superuser)
    return WAL_SHARE_COMPRESSED if is_compressed else WAL_SHARE


def _reason(relation: Relation, limits: AgeLimits, stage: int) -> str:
    holds = "it holds writes back" if stage == 1 else "autovacuum should have frozen it earlier"
    if relation.xid_age >= limits.xid[stage - 1]:
        return f"its oldest row is {relation.xid_age:,} XIDs old: {holds}"
    return f"its oldest multixact is {relation.mxid_age:,} MXIDs old: {holds}"
