"""What Prometheus is told of a cluster. Owns the names; `alerts.yml` beside it is written for them.

From a snapshot without relations: cheap enough for every scrape. Never: a statement's text, a user's or a
client's name; the labels are databases and the kinds of what holds the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from importlib import resources

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from appliance.dbops.blockers.blocker import BlockerKind
from appliance.dbops.blockers.blockers import due_age
from appliance.dbops.blockers.holders import holders
from appliance.dbops.limits import STOP_AGE
from appliance.dbops.monitoring.backups import Backups, made_at
from appliance.dbops.monitoring.status import autovacuum_lag, stage_of_member_space
from appliance.dbops.snapshot.snapshot import Database, Snapshot

PREFIX = "appliance_db_"
HOLDERS = (
    BlockerKind.IDLE_IN_TRANSACTION,
    BlockerKind.LONG_TRANSACTION,
    BlockerKind.PREPARED_TRANSACTION,
    BlockerKind.STANDBY_FEEDBACK,
    BlockerKind.PHYSICAL_SLOT,
    BlockerKind.LOGICAL_SLOT,
)
"""The kinds that hold the horizon; each is told, 0 where there is none."""

Family = GaugeMetricFamily | CounterMetricFamily


def exposition(snapshot: Snapshot | None, backups: Backups | None = None) -> str:
    """The Prometheus text of a snapshot; of None, that the database could not be asked.

    `backups`: None where it is not known where they are kept, as of a database on another machine.
    """
    registry = CollectorRegistry()
    registry.register(_Families(list(_families(snapshot, backups))))
    return generate_latest(registry).decode()


def alert_rules() -> str:
    """The text of the rules file for Prometheus."""
    return (resources.files("appliance.dbops.monitoring") / "alerts.yml").read_text(
        encoding="utf-8"
    )


class _Families:
    """A collector of families that are already there."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _families(snapshot: Snapshot | None, backups: Backups | None) -> Iterator[Family]:
    yield _gauge("up", "Whether the database could be asked.", float(snapshot is not None))
    if snapshot is None:
        return
    yield _gauge(
        "read_timestamp_seconds",
        "When the database was asked, by its own clock.",
        snapshot.taken_at.timestamp(),
    )
    yield _gauge("parts_missing", "Parts that could not be read.", len(snapshot.missing))
    yield from _ids(snapshot)
    yield from _members(snapshot)
    yield from _autovacuum(snapshot)
    yield _horizon(snapshot)
    if backups is not None:
        yield from _backups(backups, made_at(snapshot.system_id))


def _ids(snapshot: Snapshot) -> Iterator[Family]:
    stage = GaugeMetricFamily(
        f"{PREFIX}stage",
        "On the way to the stop: 0 ok, 1 lagging, 2 failsafe, 3 warnings, 4 stopped.",
        labels=["of"],
    )
    stage.add_metric(["xids"], snapshot.stage_of_xid_age(snapshot.xid_age))
    stage.add_metric(["mxids"], snapshot.stage_of_mxid_age(snapshot.mxid_age))
    members = stage_of_member_space(snapshot)
    if members is not None:
        stage.add_metric(["members"], members)
    yield stage
    told: dict[str, tuple[str, Callable[[Database], int]]] = {
        "xid_age": ("Age of the oldest transaction ID.", lambda item: item.xid_age),
        "xids_left": ("Until this database stops the cluster.", lambda item: item.xids_left),
        "mxid_age": ("Age of the oldest multixact ID.", lambda item: item.mxid_age),
        "mxids_left": ("Until this database stops the cluster.", lambda item: item.mxids_left),
    }
    for name, (about, value) in told.items():
        family = GaugeMetricFamily(f"{PREFIX}{name}", about, labels=["database"])
        for database in snapshot.databases:
            if not database.dropping:
                family.add_metric([database.name], value(database))
        yield family
    yield _gauge("xid_age_due", "XID age at which autovacuum lags.", due_age(snapshot).xid)
    yield _gauge("xid_age_stop", "XID age at which writes are refused.", STOP_AGE)
    yield _counter("xids", "Transaction IDs ever given out.", snapshot.next_xid)
    yield _counter("wal_bytes", "Bytes of WAL ever written.", snapshot.wal_position)


def _members(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.members is not None:
        yield _gauge("members_used", "Multixact members in use, rounded up.", snapshot.members.used)
        yield _gauge("members_left", "Multixact members left.", snapshot.members.left)


def _autovacuum(snapshot: Snapshot) -> Iterator[Family]:
    lag = autovacuum_lag(snapshot)
    yield _gauge("autovacuum_on", "Whether autovacuum is on and runs.", float(lag.on))
    yield _gauge("autovacuum_workers", "Autovacuum workers at work.", lag.workers)
    yield _gauge("autovacuum_workers_max", "Autovacuum workers allowed.", lag.workers_max)


def _horizon(snapshot: Snapshot) -> Family:
    oldest = dict.fromkeys(HOLDERS, 0)
    for holder in holders(snapshot):
        oldest[holder.kind] = max(oldest[holder.kind], holder.age or 0)
    family = GaugeMetricFamily(
        f"{PREFIX}horizon_age",
        "XIDs back to which each kind of holder keeps rows from being frozen; 0: none.",
        labels=["holder"],
    )
    for kind, age in oldest.items():
        family.add_metric([kind.value], age)
    return family


def _backups(backups: Backups, cluster_made_at: datetime | None) -> Iterator[Family]:
    since = backups.newest_at or cluster_made_at
    if since is not None:
        yield _gauge(
            "backup_timestamp_seconds",
            "When the newest base backup ended; without any, when the cluster was made.",
            since.timestamp(),
        )
    if backups.free_bytes is not None and backups.disk_bytes is not None:
        yield _gauge("backup_free_bytes", "Bytes free on the backups' disk.", backups.free_bytes)
        yield _gauge("backup_disk_bytes", "Bytes of the backups' disk.", backups.disk_bytes)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", about, value=value)


def _counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", about, value=value)
