"""Copies of pages between a GPU and pinned host memory, beside the steps. Never: which page, or when.

Owns a stream, and the order between its copies and the steps on the current stream. A caller that
moves pages calls `before_step` once ahead of every step that may write to or read from moved pages.
"""

from __future__ import annotations

import torch

from appliance.model.kv_cache import KVCache


class PageCopies:
    """`read_page` and `write_page` of a `KVCache` on a CUDA device, without waiting for them.

    Buffers are pinned, uint8 [page content bytes], and must live until `wait` or the next
    `before_step` that has been reached by the device.
    """

    def __init__(self, cache: KVCache) -> None:
        device = cache.data.device
        assert device.type == "cuda"
        self._data = cache.data
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device

    def read_page(self, page: int, buffer: torch.Tensor) -> None:
        """Begin to copy a page to host memory, after the steps that were begun before."""
        self._copy(buffer, page, to_host=True)

    def write_page(self, page: int, buffer: torch.Tensor) -> None:
        """Begin to set a page from host memory, after the steps that were begun before."""
        self._copy(buffer, page, to_host=False)

    def before_step(self) -> None:
        """Have the device start what comes next only when all copies begun so far are done.

        So no row is written into a page that still moves out, and none read that is not back yet.
        """
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def wait(self) -> None:
        """Block until all copies are done, so that buffers may be read or given back."""
        self._stream.synchronize()

    def _copy(self, buffer: torch.Tensor, page: int, *, to_host: bool) -> None:
        assert buffer.is_pinned()
        part = self._data[:, :, page]
        place = buffer.view(part.dtype).view(part.shape)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.inference_mode():
            if to_host:
                place.copy_(part, non_blocking=True)
            else:
                part.copy_(place, non_blocking=True)
