"""The journal of repairs: what was begun, done and changed, in a file outside of PostgreSQL.

One JSON object a line, fsynced before the deed that it announces and after the one that it reports, so
that a run that was killed can be gone on with. Owns the file and its lock; a torn last line is dropped.
Never: decides what is to be done, or holds a row, a statement's parameter or a password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from appliance.dbops.folder import FolderLock
from appliance.dbops.plan.history import History, RelationKey
from appliance.dbops.plan.step import StepKind
from appliance.dbops.remedies import set_setting
from appliance.dbops.repair.row_counts import RowCounts, TableRows
from appliance.durable import sync_folder
from appliance.errors import DatabaseError

FILE_NAME = "repairs.jsonl"
LOCK_NAME = "repairs.lock"
Record: TypeAlias = dict[str, Any]


class _Any(msgspec.Struct):
    """What each record is read for."""

    event: str
    system_id: str


class _Started(_Any, kw_only=True):
    database: str | None
    relation_oid: int | None
    kind: str = ""


class _Ended(_Started, kw_only=True):
    state: str
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    seconds: float


class _SettingsChanged(_Any, kw_only=True):
    before: dict[str, str | None]


class _RowsCounted(_Any, kw_only=True):
    tables: tuple[TableRows, ...]


_FORMS: Mapping[str, type[_Any]] = {
    "started": _Started,
    "ended": _Ended,
    "settings_changed": _SettingsChanged,
    "rows_counted": _RowsCounted,
}
"""By event: what such a record is read for besides."""

RATE_STEPS = 20
RATE_BYTES_MIN = 16 << 20
"""Below it, what a VACUUM took says more about waiting than about reading."""


class RunJournal:
    """The journal in `folder` of the cluster `system_id`; held by one process at a time.

    What it says of another cluster is kept and passed over: that is what an upgrade or a new database
    leaves.
    """

    def __init__(self, folder: Path, system_id: str) -> None:
        """Raises DatabaseError when another process has it, or a line is damaged."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FolderLock(folder / LOCK_NAME, folder)
        self._lock.acquire()
        self._path = folder / FILE_NAME
        try:
            self.records, length = _parse(self._path, system_id)
            self._file = self._path.open("ab")
            self._file.truncate(length)  # a torn last line
        except BaseException:
            self._lock.release()
            raise
        sync_folder(folder)
        self._system_id = system_id

    @property
    def unfinished(self) -> bool:
        """Whether the last run was not ended by itself: it was killed."""
        return bool(self.records) and self.records[-1]["event"] != "finished"

    def write(self, event: str, *, sync: bool = True, **fields: object) -> None:
        """Append a record; when this returns, it outlives a power cut, or (without `sync`) a kill."""
        record = {"event": event, "system_id": self._system_id, **fields}
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        self.records.append(record)

    def settings_to_restore(self) -> Mapping[str, str | None]:
        """Server settings that a run changed and did not change back: None was not set before."""
        return _changed_settings(self.records)

    def counted(self) -> RowCounts | None:
        """The rows that the last run has counted before its first step, if it never came to compare them:
        it was killed."""
        for record in reversed(self.records):
            if record["event"] in ("finished", "rows_compared"):
                return None
            if record["event"] == "rows_counted":
                return msgspec.convert(record, type=RowCounts)
        return None

    def history(self) -> History:
        """What the runs until now did that a snapshot does not show."""
        return _history(self.records)

    def close(self) -> None:
        """Give the file and its lock up."""
        self._file.close()
        self._lock.release()


def past_history(folder: Path, system_id: str) -> History:
    """The history of a journal that nobody has to hold, empty where there is none.

    Raises DatabaseError as RunJournal does, but for the lock.
    """
    records, _ = _parse(folder / FILE_NAME, system_id)
    return _history(records)


def _changed_settings(records: Sequence[Record]) -> dict[str, str | None]:
    left: dict[str, str | None] = {}
    for record in records:
        if record["event"] == "settings_changed":
            # The first value is the operator's own; a later one may be what a killed run set.
            left = {**record["before"], **left}
        elif record["event"] == "settings_restored":
            left = {}
    return left


_REBUILDING = (StepKind.REINDEX, StepKind.REINDEX_LOCKED)
_FREEZING = (StepKind.VACUUM, StepKind.ZERO_PAGES, StepKind.FREEZE_ROWS)


def _history(records: Sequence[Record]) -> History:
    return History(
        frozen=_frozen(records),
        bad_indexes=_begun(records, StepKind.REINDEX),
        given_up=_begun(records, StepKind.ZERO_PAGES),
        rate_bytes_per_s=_rate(records),
    )


def _of_relations(records: Sequence[Record]) -> Iterator[tuple[RelationKey, str, str]]:
    """What was done to which relation, and how it ended: `started` when that is not known (yet)."""
    for record in records:
        if record["event"] in ("started", "ended") and record["relation_oid"] is not None:
            place = RelationKey(database=record["database"], oid=record["relation_oid"])
            yield place, record.get("kind", ""), record.get("state", "started")


def _frozen(records: Sequence[Record]) -> frozenset[RelationKey]:
    """Relations frozen by any run whose index cleanup nobody has made up for.

    From when a VACUUM began, so that one whose end was never written down counts too.
    """
    places: set[RelationKey] = set()
    for place, kind, state in _of_relations(records):
        if kind in _FREEZING:
            if state in ("started", "done", "held"):
                places.add(place)
            elif state == "failed":
                places.discard(place)
        elif kind == StepKind.REPAIR and state == "done":
            places.discard(place)
    return frozenset(places)


def _begun(records: Sequence[Record], begun: StepKind) -> frozenset[RelationKey]:
    """Relations of which a step of this kind was begun, and whose indexes nobody has built anew since."""
    places: set[RelationKey] = set()
    for place, kind, state in _of_relations(records):
        if kind == begun and state == "started":
            places.add(place)
        elif kind in _REBUILDING and state == "done":
            places.discard(place)
    return frozenset(places)


def _rate(records: Sequence[Record]) -> float | None:
    """Bytes a second, measured over the last large steps; None before there was one."""
    large = [
        record
        for record in records
        if record["event"] == "ended"
        and record["state"] == "done"
        and record["bytes"] >= RATE_BYTES_MIN
    ][-RATE_STEPS:]
    seconds = sum(record["seconds"] for record in large)
    return sum(record["bytes"] for record in large) / seconds if seconds > 0 else None


def _parse(path: Path, system_id: str) -> tuple[list[Record], int]:
    """The whole records of this cluster, and the length of all: what follows the last newline was never
    acknowledged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    whole = content[: content.rfind(b"\n") + 1]
    records: list[Record] = []
    damaged = 0
    for number, line in enumerate(whole.splitlines(), start=1):
        record = _record(line)
        if record is None:
            damaged = damaged or number
        elif record["system_id"] == system_id:
            records.append(record)
    if damaged:
        raise DatabaseError(
            f"{path}: line {damaged} is damaged; {_still_to_do(records)}move the file away"
        )
    return records, len(whole)


def _record(line: bytes) -> Record | None:
    """None where it is none."""
    try:
        record: Record = json.loads(line)
        event = msgspec.convert(record, _Any).event
        msgspec.convert(record, _FORMS.get(event, _Any))
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None
    return record


def _still_to_do(records: Sequence[Record]) -> str:
    """What only this file knows, in words for whoever is about to move it away."""
    deeds = [set_setting(*setting) for setting in _changed_settings(records).items()]
    if deeds:
        deeds.append("SELECT pg_reload_conf()")
    deeds += [
        f"REINDEX of the relation {place.oid} in {place.database}"
        for place in sorted(_begun(records, StepKind.ZERO_PAGES), key=str)
    ]
    return (
        f"by the others this is still to be done: {'; '.join(deeds)}. Do it, then " if deeds else ""
    )
