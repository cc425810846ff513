"""Samples of a running product, and whether a series of them is flat. Never: starts or loads anything."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from appliance.config import KIB, MIB
from bench.survival.units import Units

FLAT_SHARE = 0.03
FLOORS: Mapping[str, float] = {
    "memory": 6 * MIB,
    "descriptors": 6,
    "threads": 2,
    "processes": 2,
    "pages": 100,
}
"""Less than this is no growth, whatever its share; pages in use differ by the chats of the moment."""

PAGES = ("pages_cached", "pages_leased", "pages_host", "pages_disk")


ASKED = frozenset(f"engine {name}" for name in PAGES)
"""Series that the engine tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a series grows by design, and how far: as a value, or with each turn."""

    why: str
    value_max: float | None = None
    a_turn_max: float | None = None

    def holds(self, value: float, a_turn: float) -> bool:
        """Whether the growth is no more than it explains."""
        return (self.value_max is None or value <= self.value_max) and (
            self.a_turn_max is None or a_turn <= self.a_turn_max
        )


EXPLAINED: Mapping[str, Explanation] = {
    "postgres shared": Explanation(
        why="the database's pages in shared_buffers (128 MiB) and what sessions share",
        value_max=192 * MIB,
    ),
    "database": Explanation(
        why="two messages a turn with their token ids and indexes", a_turn_max=8 * KIB
    ),
    "WAL": Explanation(why="kept for recovery, up to max_wal_size (1 GiB)", value_max=1024 * MIB),
}
"""Series that grow by design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values by the name of their series at one moment of the day."""

    wave: int
    turns: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A series in the wave before the last and in the last: medians, their difference, the verdict."""

    name: str
    before: float
    last: float
    a_turn: float
    is_flat: bool
    explanation: str | None
    is_whole: bool = True
    """Whether most samples of both waves have it."""

    @property
    def passed(self) -> bool:
        """Flat, or growing by design."""
        return self.is_flat or self.explanation is not None


def sample(units: Units, data_dir: Path, engine: Mapping[str, float]) -> dict[str, float]:
    """What each unit takes now: memory that is its own and shared, descriptors, threads; the disk."""
    values: dict[str, float] = defaultdict(float)
    for unit, process in units.processes():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            own, shared = _memory(process.pid)
            descriptors, threads = process.num_fds(), process.num_threads()
            values[f"{unit} memory"] += own
            values[f"{unit} shared"] += shared
            values[f"{unit} descriptors"] += descriptors
            values[f"{unit} threads"] += threads
            values[f"{unit} processes"] += 1
    values["database"] = sum(_sizes(data_dir / "postgres" / "base"))
    values["WAL"] = sum(_sizes(data_dir / "postgres" / "pg_wal"))
    values["journal"] = sum(_sizes(data_dir / "journal"))
    values |= {f"engine {name}": engine[name] for name in PAGES if name in engine}
    return dict(values)


def judge(samples: Sequence[Sample], last_wave: int) -> list[Judged]:
    """Each series of the last wave against the one before it; nothing when one of them has no sample.

    What an engine was asked for and did not tell is not known; a process that is not there takes nothing.
    """
    last = [one for one in samples if one.wave == last_wave]
    before = [one for one in samples if one.wave == last_wave - 1]
    if not last or not before:
        return []
    turns = statistics.median(one.turns for one in last) - statistics.median(
        one.turns for one in before
    )
    judged = []
    for name in sorted({name for one in (*before, *last) for name in one.values}):
        is_asked = name in ASKED
        old, old_share = _median(name, before, is_asked=is_asked)
        new, new_share = _median(name, last, is_asked=is_asked)
        a_turn = (new - old) / max(turns, 1)
        floor = next((value for word, value in FLOORS.items() if word in name), 0.0)
        explanation = EXPLAINED.get(name)
        is_explained = explanation is not None and explanation.holds(new, a_turn)
        judged.append(
            Judged(
                name=name,
                before=old,
                last=new,
                a_turn=a_turn,
                is_flat=new - old <= max(floor, FLAT_SHARE * old),
                explanation=explanation.why if explanation and is_explained else None,
                is_whole=min(old_share, new_share) > 0.5,
            )
        )
    return judged


def _median(name: str, wave: Sequence[Sample], *, is_asked: bool) -> tuple[float, float]:
    """Of a series in one wave; and the share of samples that tell it."""
    told = [one.values[name] for one in wave if name in one.values]
    if not is_asked:
        return statistics.median([*told, *[0.0] * (len(wave) - len(told))]), 1.0
    return statistics.median(told or [0.0]), len(told) / len(wave)


def _memory(pid: int) -> tuple[int, int]:
    """proc_pid_smaps(5): bytes that are a process's own, and its share of shared memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return int(fields["Pss_Anon"].split()[0]) * 1024, int(fields["Pss_Shmem"].split()[0]) * 1024


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        # Files come and go meanwhile.
        with contextlib.suppress(OSError):
            if path.is_file():
                yield path.stat().st_size
