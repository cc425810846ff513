"""A matrix that is still rows of a mapped file, a part at a time. Never: which file or what for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch


class Stack:
    """The rows of all `parts`, one below the other; each row float32 of shape `row`.

    A part may have its rows spread over several leading axes, and any float type. `device` is where
    they are wanted.
    """

    __slots__ = ("_parts", "device", "row", "rows")

    def __init__(
        self, parts: list[torch.Tensor], row: tuple[int, ...], device: torch.device
    ) -> None:
        self._parts = parts
        self.row = row
        self.device = device
        self.rows = sum(part.numel() for part in parts) // math.prod(row)

    def whole(self) -> torch.Tensor:
        """Float32 [rows, *row] in memory of its own, on the device."""
        stacked = torch.empty((self.rows, *self.row), dtype=torch.float32)
        at = 0
        for part in self._parts:
            end = at + part.numel() // math.prod(self.row)
            stacked[at:end].view(part.shape).copy_(part)
            at = end
        return stacked.to(self.device)

    def blocks(self, rows_max: int) -> Iterator[torch.Tensor]:
        """The rows in order, float32 [some, *row] on the CPU, at most `rows_max` at once."""
        for part in self._parts:
            rows = part.reshape(-1, *self.row)
            for first in range(0, len(rows), rows_max):
                yield rows[first : first + rows_max].float()
