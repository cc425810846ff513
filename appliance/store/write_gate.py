"""Whether the database takes writes now, as far as this process knows. Owns the state and its log lines.

Never: asks the database; who wrote or read says how it went.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable

from appliance.store.retry import reason

log = logging.getLogger("appliance.store")

READS_AWAY_S = 1.0
"""How long a read that found the database away speaks for the reads after it."""


class Writes(enum.Enum):
    """OPEN: the database takes writes. CLOSED: it did not, and is tried now and then. MAINTENANCE: it is
    not to be written to, because its operator repairs it."""

    OPEN = "open"
    CLOSED = "closed"
    MAINTENANCE = "maintenance"


class WriteGate:
    """`in_maintenance` is asked at each look; `clock` is in seconds."""

    def __init__(
        self, *, in_maintenance: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._in_maintenance = in_maintenance
        self._clock = clock
        self._reads_away_until = clock()
        self.closed_for: str | None = None

    @property
    def writes(self) -> Writes:
        """How it stands."""
        if self._in_maintenance():
            return Writes.MAINTENANCE
        return Writes.OPEN if self.closed_for is None else Writes.CLOSED

    @property
    def are_reads_away(self) -> bool:
        """Whether a read found the database away a moment ago."""
        return self._clock() < self._reads_away_until

    def close(self, error: BaseException) -> None:
        """A write failed, and those after it would."""
        if self.closed_for is None:
            log.warning("database_takes_no_writes", extra={"reason": reason(error)})
        self.closed_for = reason(error)

    def open(self) -> None:
        """A write went through, or is to be tried again."""
        if self.closed_for is not None:
            log.info("database_takes_writes", extra={"after": self.closed_for})
        self.closed_for = None

    def reads_failed(self) -> None:
        """A read found the database away."""
        self._reads_away_until = self._clock() + READS_AWAY_S
