"""What a step costs in seconds, learnt from the steps just done. Never: reads a clock, chooses work.

The model is a sum of five non-negative parts: a fixed one, one per decode and per key that a decode
reads, one per token of prefill and per key that such a token reads. It is fitted by least squares on
relative errors, with exponential forgetting (Ljung and Soderstrom, Theory and Practice of Recursive
Identification, 1983).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import mul

from appliance.engine.chunk import Chunk

PARTS = 5
FORGETTING = 0.97
"""Weight of a step after the next of its kind: about the last 30 steps count."""
OUTLIER = 2.0
"""A step counts as at most this many times what was expected: one hiccup must not teach much, and a
machine that did become four times slower is believed after some 100 steps."""
TRUSTED_STEPS = 4
"""Steps of a kind before an expectation of it may cut an observation."""
RIDGE = 1e-3
"""Of each part's own weight, added: parts that always grow together share the cost."""
SWEEPS = 12
SOLVE_ORDER = (3, 1, 0, 4, 2)
"""What the first steps cannot tell apart is put down to prefill: chunks then begin too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What of a step its time depends on; `keys` are the (query, key) pairs attention looks at."""

    decodes: int = 0
    decode_keys: int = 0
    prefill_tokens: int = 0
    prefill_keys: int = 0

    @property
    def parts(self) -> tuple[float, ...]:
        """The amounts in the order of the estimate's costs."""
        return (1.0, self.decodes, self.decode_keys, self.prefill_tokens, self.prefill_keys)


def shape_of(chunks: Iterable[Chunk]) -> StepShape:
    """The shape of a step that is not computed yet; a chunk of one token counts as a decode."""
    decodes = decode_keys = prefill_tokens = prefill_keys = 0
    for chunk in chunks:
        start = chunk.sequence.computed
        if chunk.count == 1:
            decodes += 1
            decode_keys += start + 1
        else:
            prefill_tokens += chunk.count
            prefill_keys += chunk.count * start + chunk.count * (chunk.count + 1) // 2
    return StepShape(
        decodes=decodes,
        decode_keys=decode_keys,
        prefill_tokens=prefill_tokens,
        prefill_keys=prefill_keys,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Seconds of each part, and the most tokens of prefill that a measured step had (0: none yet)."""

    costs: tuple[float, ...]
    prefill_tokens_measured: int

    def seconds(self, shape: StepShape) -> float:
        """The expected time of a step."""
        return math.fsum(map(mul, self.costs, shape.parts))

    def prefill_seconds(self, count: int, *, start: int) -> float:
        """The time that `count` tokens from position `start` on add to a step."""
        keys = count * start + count * (count + 1) / 2
        return self.costs[3] * count + self.costs[4] * keys

    def prefill_tokens(self, within_s: float, *, start: int, most: int) -> int:
        """How many tokens from position `start` on add no more than that time, up to `most`."""
        if within_s <= 0:
            return 0
        if self.prefill_seconds(most, start=start) <= within_s:
            return most
        square = self.costs[4] / 2
        linear = self.costs[3] + self.costs[4] * (start + 0.5)
        # The positive root of square n^2 + linear n = within_s, in the form that is stable for a
        # small square.
        root = math.sqrt(linear * linear + 4 * square * within_s)
        return int(2 * within_s / (linear + root))


@dataclass(slots=True)
class _Kind:
    """Weighted sums over the steps of one kind: amounts times amounts, and times seconds."""

    squares: list[list[float]] = field(
        default_factory=lambda: [[0.0] * PARTS for _ in range(PARTS)]
    )
    products: list[float] = field(default_factory=lambda: [0.0] * PARTS)
    steps: int = 0

    def add(self, parts: tuple[float, ...], seconds: float, *, scale: float) -> None:
        """A step of these amounts; its error counts in units of `scale` seconds."""
        weight = 1.0 / (scale * scale)
        for row, amount in enumerate(parts):
            share = weight * amount
            self.squares[row] = [
                old * FORGETTING + share * other
                for old, other in zip(self.squares[row], parts, strict=True)
            ]
            self.products[row] = self.products[row] * FORGETTING + share * seconds
        self.steps += 1

    def scale(self, factor: float) -> None:
        """As if each of its steps had taken that many times as long."""
        square = factor * factor
        self.squares = [[value / square for value in row] for row in self.squares]
        self.products = [product / factor for product in self.products]


class StepCost:
    """Learns the cost of steps.

    Those with and without prefill are remembered apart, so that an hour of decoding does not make it
    forget what a prefill costs. When decodes turn out slower or faster than they were, the memory of
    prefills is scaled alike: it is the machine that changed.
    """

    def __init__(self) -> None:
        self._plain = _Kind()
        self._mixed = _Kind()
        self._costs = [0.0] * PARTS
        self._prefill_tokens_measured = 0

    @property
    def estimate(self) -> CostEstimate | None:
        """What is known; None before the first step."""
        if self._plain.steps + self._mixed.steps == 0:
            return None
        return CostEstimate(
            costs=tuple(self._costs), prefill_tokens_measured=self._prefill_tokens_measured
        )

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of this shape took that long; a clock that stood still teaches nothing."""
        if seconds <= 0:
            return
        kind = self._mixed if shape.prefill_tokens else self._plain
        expected = self._expected(shape)
        scale = seconds
        if kind.steps >= TRUSTED_STEPS and expected > 0:
            seconds = min(seconds, OUTLIER * expected)
            # Errors relative to what was expected: relative to what came, fast steps would win.
            scale = min(expected, OUTLIER * seconds)
        kind.add(shape.parts, seconds, scale=scale)
        measured = max(self._prefill_tokens_measured, shape.prefill_tokens)
        self._prefill_tokens_measured = measured
        self._solve()
        if kind is self._plain and expected > 0:
            change = self._expected(shape) / expected
            change = min(max(change, 1 / OUTLIER), OUTLIER)
            self._mixed.scale(change)
            self._costs[3] *= change
            self._costs[4] *= change

    def _expected(self, shape: StepShape) -> float:
        return math.fsum(map(mul, self._costs, shape.parts))

    def _solve(self) -> None:
        """Non-negative least squares by coordinate descent, from the last solution on."""
        squares = [
            [one + other for one, other in zip(plain, mixed, strict=True)]
            for plain, mixed in zip(self._plain.squares, self._mixed.squares, strict=True)
        ]
        products = [
            one + other
            for one, other in zip(self._plain.products, self._mixed.products, strict=True)
        ]
        costs = self._costs
        for _ in range(SWEEPS):
            for part in SOLVE_ORDER:
                row = squares[part]
                own = row[part]
                if own > 0:
                    known = sum(map(mul, row, costs)) - own * costs[part]
                    costs[part] = max(0.0, (products[part] - known) / (own * (1 + RIDGE)))
