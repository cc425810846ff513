"""What a plan is to reach and may do: the operator's numbers, checked once. Never: reads a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from appliance.dbops.limits import LAGGING_FACTOR, STOP_AGE, WARN_AGE
from appliance.errors import ConfigError

GIB = 1 << 30
LAST_STAGE = 3
WORKERS_MAX = 2
"""On one box more do not read faster, and they leave nothing for the chats."""

RATE_ASSUMED = 50 * 1_000_000
"""Bytes a second, until measured: PostgreSQL 15 froze 48 to 55 MB/s and 18 155 to 197 on two shared
cores and a virtual disk, so that an estimate errs on the long side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Raises ConfigError when a number is outside of its range; the message names both."""

    headroom: int = 100_000_000
    """IDs that are to be left after stage 1: well out of the warnings, which begin at 37 million."""
    comfortable_age_max: int = 500_000_000
    """No relation is older after stage 2; less where autovacuum's own settings ask for less."""
    members_share_first: float = 0.5
    members_share_last: float = 0.25
    """Of the member space in use after stages 1 and 2. Above half, autovacuum turns aggressive."""
    last_stage: int = LAST_STAGE
    workers: int = WORKERS_MAX
    lock_timeout_ms: int = 5000
    rate_bytes_per_s: int = RATE_ASSUMED
    disk_floor_bytes: int = 5 * GIB
    """Free bytes at which the run stops; a tenth of the file system where that is less."""
    cost_delay_ms: float = 2
    """`vacuum_cost_delay` of stages 2 and 3, beside traffic. Stage 1 does not pause."""
    maintenance: bool = False
    """Whether there is a server whose turns can wait in its journal during stage 1."""
    single_user: bool = False
    """Whether the server may be stopped for the one deed that needs single-user mode."""

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name}: {value} is not from {least} to {most}", param=name)
        if self.members_share_last > self.members_share_first:
            raise ConfigError(
                f"members_share_last ({self.members_share_last}) must not be above "
                f"members_share_first ({self.members_share_first})",
                param="members_share_last",
            )
        assert {name for name, _, _ in _RANGES} <= {field.name for field in fields(self)}

    @property
    def stage1_age(self) -> int:
        """From this age on a relation holds writes back, or soon will."""
        return STOP_AGE - self.headroom

    def stage2_age(self, freeze_age_max: int) -> int:
        """From this age on a relation is older than `autovacuum_freeze_max_age` should let it become."""
        return min(self.comfortable_age_max, int(LAGGING_FACTOR * freeze_age_max), self.stage1_age)


_RANGES: tuple[tuple[str, float, float], ...] = (
    # Below the margin of the warnings every write would still log one; above, a plan is never partial.
    ("headroom", STOP_AGE - WARN_AGE, 1_500_000_000),
    ("comfortable_age_max", 10_000_000, 1_500_000_000),
    ("members_share_first", 0.05, 0.9),
    ("members_share_last", 0.01, 0.9),
    ("last_stage", 1, LAST_STAGE),
    ("workers", 1, WORKERS_MAX),
    ("lock_timeout_ms", 100, 600_000),
    ("rate_bytes_per_s", 100_000, 100_000_000_000),
    ("disk_floor_bytes", 0, 1 << 50),
    ("cost_delay_ms", 0, 100),
)
