"""The verdict on a run of faults, as a table for people and as JSON. Never: measures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bench.survival.chats import Account, Promise

SHOWN_WRONG_MAX = 20


class Outcome(Enum):
    """Of a run: every promise was tried and held; one was broken; or none was, but not all were tried."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_PROVED = "NOT PROVED"

    @property
    def exit_code(self) -> int:
        """0, 1 and 2."""
        return list(Outcome).index(self)


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Of one kind: how often it was done; of those that came alone, seconds until users were answered,
    and until every part was ready again."""

    done: int = 0
    answered_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What a run found. `kills`: how many were wanted; `faults`: of each promise, the sentences that say
    how it was broken."""

    seed: int
    kills: int
    account: Account
    killed: int = 0
    seconds: float = 0.0
    checked_calm: int = 0
    checked_turns: int = 0
    made_again: int = 0
    recoveries: dict[str, Recovery] = field(default_factory=lambda: defaultdict(Recovery))
    faults: dict[Promise, list[str]] = field(
        default_factory=lambda: {promise: [] for promise in Promise}
    )
    not_done: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """What the run has shown."""
        if any(self.faults.values()):
            return Outcome.FAILED
        return Outcome.NOT_PROVED if self.not_done else Outcome.PASSED

    def close(self, *, kinds: Iterable[str]) -> None:
        """Sort what the chats found wrong under the promises, and name what was not tried of `kinds` and
        of the rest."""
        done = {name for name, one in self.recoveries.items() if one.done}
        tried = {
            f"{self.kills} kills ({self.killed} were done)": self.killed >= self.kills,
            "a stored turn against what was told": self.checked_turns > 0,
            "a reply made again without a cache": self.made_again > 0,
            "a look at what is held": self.checked_calm > 0,
            **{kind: kind in done for kind in kinds},
        }
        self.not_done += [sentence for sentence, is_done in tried.items() if not is_done]
        for broken in self.account.wrong:
            self.faults[broken.promise].append(f"{broken.conversation}: {broken.sentence}")

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        return {
            "outcome": self.outcome.value,
            "seed": self.seed,
            "kills": self.kills,
            "killed": self.killed,
            "seconds": round(self.seconds, 1),
            "acknowledged": self.account.acknowledged,
            "conversations": len(self.account.chats),
            "endings": dict(self.account.endings),
            "checked_calm": self.checked_calm,
            "checked_turns": self.checked_turns,
            "made_again": self.made_again,
            "faults": {promise.value: told for promise, told in self.faults.items()},
            "not_done": self.not_done,
            "recoveries": {
                name: {"done": one.done, "answered_s": one.answered_s, "whole_s": one.whole_s}
                for name, one in self.recoveries.items()
            },
        }

    def lines(self) -> list[str]:
        """The report."""
        rounds = sum(one.done for one in self.recoveries.values())
        shown = [
            f"seed {self.seed}: {rounds} faults, {self.killed} processes killed in {self.seconds:.0f} s; "
            f"{self.account.acknowledged} turns acknowledged in {len(self.account.chats)} conversations",
            "attempts: "
            + ", ".join(f"{name} {count}" for name, count in self.account.endings.most_common()),
            "",
            f"{'fault':<20}{'done':>6}{'alone':>7}   {'users answered after, s':<28}every part ready, s",
            f"{'':<20}{'':>6}{'':>7}   {'median':>8}{'p95':>8}{'max':>8}    "
            f"{'median':>8}{'p95':>8}{'max':>8}",
        ]
        for name, one in sorted(self.recoveries.items()):
            shown.append(
                f"{name:<20}{one.done:>6}{len(one.whole_s):>7}   {_row(one.answered_s)}    "
                f"{_row(one.whole_s)}"
            )
        shown.append("")
        shown.append(
            f"proved: {self.checked_turns} stored turns against what was told, {self.made_again} replies "
            f"made again without a cache, {self.checked_calm} times no page, sequence or stream held"
        )
        for promise, sentences in self.faults.items():
            shown.append(f"{promise.value}: {len(sentences) or 'none'}")
            shown += [f"    {sentence}" for sentence in sentences[:SHOWN_WRONG_MAX]]
        shown += [f"not done: {sentence}" for sentence in self.not_done]
        shown.append(self.outcome.value)
        return shown


def _row(values: Sequence[float]) -> str:
    if not values:
        return f"{'-':>8}{'-':>8}{'-':>8}"
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median(ordered):>8.2f}{p95:>8.2f}{ordered[-1]:>8.2f}"
