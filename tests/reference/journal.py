"""A journal as a list in memory: slow to read again, and plain enough to be right by looking at it."""

from __future__ import annotations

from collections.abc import Sequence


class SlowJournal:
    """Entries with their numbers in order; `done` ones are gone."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self._next = 1

    def append(self, payloads: Sequence[bytes]) -> None:
        """Add entries behind the others."""
        for payload in payloads:
            self.entries.append((self._next, payload))
            self._next += 1

    def done(self, numbers: Sequence[int]) -> None:
        """Entries that need not be kept."""
        self.entries = [one for one in self.entries if one[0] not in numbers]

    def restarted(self) -> None:
        """Numbers go on behind the last that the file still holds."""
        self._next = max((number for number, _ in self.entries), default=0) + 1
