"""A stream of copies beside a GPU's steps, and the order between the two. Never: which page, or when.

Copies begin after all steps begun before them, and a step begins after all copies begun before it: so no
row is written into a page that is still on its way out, and none read that is not back yet. Between
themselves copies keep their order, which makes a place in host memory free for the next copy at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CopyStream:
    """One for a cache. Steps run on the device's current stream."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda"
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Copies enqueued within go to the stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Have the device do what comes next only after all copies so far; the CPU does not wait."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def wait(self) -> None:
        """Block until all copies are done, so that the CPU may use their buffers."""
        self._stream.synchronize()
