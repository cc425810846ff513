"""Compares cached K/V with recomputed ones, and names what is wrong. Never: computes or drops any.

What a content alone can tell is named; where it cannot, the cause is `wrong_content`, and the position
says the rest.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache


class Cause(enum.Enum):
    """What an audit found to be wrong.

    coverage: tokens that a finished sequence wrote are not in the index.
    unwritten_row: a row that was never written: all zeros, or the last of the path, inside a page.
    swapped_pages: the page holds what belongs into another page of the same path.
    foreign_page: the page holds what also stands in a page that is not on this path.
    stale_page: no row of the path fits, from its first token on, as after a change of the weights.
    damaged_page: the page came from a lower tier, and is not what was put there.
    wrong_content: the page holds something else.
    wrong_logits: every row fits, and yet the logits differ: the fault is not in the cache.
    """

    COVERAGE = "coverage"
    UNWRITTEN_ROW = "unwritten_row"
    SWAPPED_PAGES = "swapped_pages"
    FOREIGN_PAGE = "foreign_page"
    STALE_PAGE = "stale_page"
    DAMAGED_PAGE = "damaged_page"
    WRONG_CONTENT = "wrong_content"
    WRONG_LOGITS = "wrong_logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far recomputed values may be from cached ones.

    row: largest difference within a row of K or V (one layer, head and position), as a share of the
    row's largest magnitude. logits: largest difference of two logits.
    """

    row: float
    logits: float


EXACT = Tolerance(row=1e-3, logits=1e-2)
"""Float32 throughout: the same sums in another order, a few units in the last place a layer."""

ROUNDED = Tolerance(row=0.1, logits=1.0)
"""Anything in bfloat16 or int8: a value next to a border of rounding falls to either side, and what it
moves adds up over the layers. What belongs to another place or another model differs by far more."""


def tolerance_of(decoder: Decoder, cache: KVCache) -> Tolerance:
    """What this model's recomputations may differ by from what this cache holds."""
    is_exact = cache.data.dtype == torch.float32 and not decoder.is_rounded
    return EXACT if is_exact else ROUNDED


class PageComparison:
    """The pages of a path against recomputed ones; page k of `cached` belongs to page k of `own`."""

    def __init__(
        self,
        cache: KVCache,
        cached: Sequence[int],
        own: Sequence[int],
        *,
        tokens: int,
        tolerance: Tolerance,
    ) -> None:
        """`tokens`: how many positions of the path are compared."""
        self._cache = cache
        self._row_tolerance = tolerance.row
        self._page_size = cache.page_size
        self._cached = list(cached)
        self._own = list(own)
        self._tokens = tokens
        self._is_wrong: list[torch.Tensor] = []
        self.row_difference = 0.0

    @property
    def first_wrong(self) -> int | None:
        """The first position compared so far whose row is wrong."""
        if not self._is_wrong:
            return None
        wrong = torch.cat(self._is_wrong).nonzero().flatten().tolist()
        return wrong[0] if wrong else None

    def compare(self, first: int, last: int) -> None:
        """Compare pages `[first, last)`; to be called in order, from page 0 on."""
        count = min(last * self._page_size, self._tokens) - first * self._page_size
        pages = slice(first, last)
        difference = self._differences(self._cached[pages], self._own[pages])[:count]
        # Not `> tolerance`: a row that is not a number is wrong.
        self._is_wrong.append(~(difference <= self._row_tolerance))
        self.row_difference = max(self.row_difference, largest(difference))

    def cause(self) -> Cause:
        """Why the first wrong row is wrong; every page has been compared."""
        position = self.first_wrong
        assert position is not None
        wrong = torch.cat(self._is_wrong)
        place, row = divmod(position, self._page_size)
        if not self._rows([self._cached[place]])[row].any():
            return Cause.UNWRITTEN_ROW
        if row == 0:
            if self._belongs_elsewhere(place):
                return Cause.SWAPPED_PAGES
            if self._stands_elsewhere(self._cached[place], self._known_rows(place)):
                return Cause.FOREIGN_PAGE
        if bool(wrong.all()):
            return Cause.STALE_PAGE
        # A page that is used again holds rows of others where nothing was written yet.
        is_end = bool(wrong[position:].all()) and self._tokens - position < self._page_size
        return Cause.UNWRITTEN_ROW if is_end and row > 0 else Cause.WRONG_CONTENT

    def _known_rows(self, place: int) -> int:
        return min(self._page_size, self._tokens - place * self._page_size)

    def _belongs_elsewhere(self, place: int) -> bool:
        """Whether the page fits another place of the path."""
        for other, own in enumerate(self._own):
            rows = min(self._known_rows(other), self._known_rows(place))
            if other == place or rows <= 0:
                continue
            # One layer tells most pages apart, at a fraction of the cost of all.
            for layers in (1, len(self._cache.data)):
                found = self._differences([self._cached[place]], [own], layers)[:rows]
                if not bool((found <= self._row_tolerance).all()):
                    break
            else:
                return True
        return False

    def _stands_elsewhere(self, page: int, rows: int) -> bool:
        """Whether the same numbers stand in a page that is not on this path."""
        data = self._cache.data
        keys = data[0, 0, :, :, :rows]
        same = (keys == keys[page]).flatten(1).all(1)
        mine = {*self._cached, *self._own}
        return any(
            other not in mine
            and bool((data[:, :, other, :, :rows] == data[:, :, page, :, :rows]).all())
            for other in same.nonzero().flatten().tolist()
        )

    def _differences(
        self, cached: Sequence[int], own: Sequence[int], layers: int | None = None
    ) -> torch.Tensor:
        """The largest difference at each position, float32 [positions], as a share of its row."""
        mine, theirs = self._rows(cached, layers), self._rows(own, layers)
        largest = theirs.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
        return ((mine - theirs).abs().amax(-1) / largest).amax(-1)

    def _rows(self, pages: Sequence[int], layers: int | None = None) -> torch.Tensor:
        """Rows by position of the first layers, float32 [positions, layers * 2 * kv_heads, head_dim]."""
        table = torch.tensor(pages, dtype=torch.int64, device=self._cache.data.device)
        rows = []
        for layer in range(layers or len(self._cache.data)):
            for side in self._cache.gather(layer, table):
                pages_of, heads, size, width = side.shape
                rows.append(side.transpose(1, 2).reshape(pages_of * size, heads, width))
        return torch.cat(rows, dim=1)


def largest(differences: torch.Tensor) -> float:
    """The largest of float32 differences; the largest number there is where one is none."""
    most = torch.finfo(torch.float32).max
    return float(differences.nan_to_num(nan=most, posinf=most).max())
