"""The whole decoder on fake tensors of a GPU: devices, shapes and types agree in every operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

from appliance.model import cuda_attention, kv_cache, weights
from appliance.model.config import read_config
from appliance.model.decoder import Decoder
from appliance.model.forms import FORMS, WeightDtype, WeightForm
from appliance.model.kv_cache import KVCache
from appliance.model.shape import ModelConfig
from appliance.model.varlen_kernel import known_refusal
from tests.model_fixtures import write_tiny_llama
from tests.unit.model.steps import Piece, step

DEVICE = torch.device("cuda", 0)
# Two of each kind: the mode computes with single numbers, and cannot on a GPU that is not there.
PROMPTS_AND_DECODES = step(
    [
        Piece(token_ids=range(3), start=6, pages=[5, 2, 7]),
        Piece(token_ids=range(3), start=0, pages=[4]),
        Piece(token_ids=[1], start=4, pages=[3, 6]),
        Piece(token_ids=[1], start=0, pages=[1]),
    ],
    page_size=4,
)


class NoCheckpoint:
    """Tensors without values; a real one's are looked at when they are loaded."""

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self._checkpoint = weights_checkpoint(directory, config)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self._checkpoint._entries[name].shape)


weights_checkpoint: Any = weights._Checkpoint


class Streams:
    """Notes what a cache asks of its stream of copies."""

    def __init__(self, device: torch.device) -> None:
        assert device == DEVICE
        self.notes: list[str] = []

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.notes.append("copies")
        yield

    def join(self) -> None:
        self.notes.append("join")

    def wait(self) -> None:
        self.notes.append("wait")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path)


@pytest.fixture
def fake_gpu(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    monkeypatch.setattr(weights, "_Checkpoint", NoCheckpoint)
    # A trial compares numbers, and there are none.
    offered = frozenset(signature(varlen.varlen_attn).parameters)
    monkeypatch.setattr(cuda_attention, "refusal", lambda kernel: known_refusal(kernel, offered))
    monkeypatch.setattr(kv_cache, "CopyStream", Streams)
    # Without cuDNN: choosing it asks the GPU's driver.
    with (
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
    ):
        yield mode


def forward(
    directory: Path, form: WeightForm, mode: FakeTensorMode, cache: KVCache
) -> torch.Tensor:
    config = read_config(directory)
    loaded = weights.load_weights(
        directory, config, DEVICE, make_linear=form.make_linear, make_table=form.make_table
    )
    batch = replace(
        PROMPTS_AND_DECODES,
        token_ids=mode.from_tensor(PROMPTS_AND_DECODES.token_ids),
        positions=mode.from_tensor(PROMPTS_AND_DECODES.positions),
        logit_rows=mode.from_tensor(PROMPTS_AND_DECODES.logit_rows),
    )
    return Decoder(config, loaded, fingerprint="", device=DEVICE).forward(batch, cache)


@pytest.mark.parametrize(
    ("weight_dtype", "kv"),
    [("bfloat16", torch.bfloat16), ("int8", torch.int8), ("float32", torch.float32)],
)
def test_a_step_gives_float_logits_on_the_gpu(
    directory: Path, fake_gpu: FakeTensorMode, weight_dtype: WeightDtype, kv: torch.dtype
) -> None:
    config = read_config(directory)
    cache = KVCache(config, pages=8, page_size=4, device=DEVICE, dtype=kv)
    logits = forward(directory, FORMS[weight_dtype], fake_gpu, cache)
    assert logits.shape == (8, config.vocab_size)
    assert (logits.dtype, logits.device) == (torch.float32, DEVICE)
    assert cache.data.device == DEVICE


def test_steps_and_copies_of_rows_begin_after_the_copies_of_pages(
    directory: Path, fake_gpu: FakeTensorMode
) -> None:
    config = read_config(directory)
    cache = KVCache(config, pages=8, page_size=4, device=DEVICE, dtype=torch.bfloat16)
    buffer = torch.empty(cache.page_content_bytes, dtype=torch.uint8)
    cache.read_page(1, buffer)
    cache.write_page(2, buffer)
    cache.copy_rows(2, 3, 2)
    cache.write_page(4, buffer)
    forward(directory, FORMS["bfloat16"], fake_gpu, cache)
    cache.finish_copies()
    streams = cache._copies
    assert isinstance(streams, Streams)
    assert streams.notes == ["copies", "copies", "join", "copies", "join", "wait"]
