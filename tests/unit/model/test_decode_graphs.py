"""Captured decode steps without a GPU: a capture that calls the function again, over the same buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import varlen

from appliance.model.batch import StepBatch
from appliance.model.config import read_config
from appliance.model.cuda_attention import cuda_attention
from appliance.model.decode_graphs import bucket_sizes
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.model.varlen_kernel import refusal
from appliance.model.weights import load_weights
from tests.model_fixtures import write_tiny_llama
from tests.reference.varlen import slow_varlen
from tests.unit.model.steps import Piece, step

PAGE_SIZE, PAGES = 4, 24
CPU = torch.device("cpu")


class Captured:
    """Runs a function once, as a capture does, and again at each replay; counts by size."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.replays: list[int] = []

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        result = compute()
        size = len(result)
        self.sizes.append(size)

        def replay() -> torch.Tensor:
            self.replays.append(size)
            # The same tensor each time: what is still in use of the last replay is overwritten.
            return result.copy_(compute())

        return replay


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    monkeypatch.setattr(varlen, "varlen_attn", slow_varlen)
    refusal.cache_clear()
    config = read_config(write_tiny_llama(tmp_path))
    weights = load_weights(tmp_path, config, CPU)
    yield Decoder(config, weights, fingerprint="test", device=CPU, backend=cuda_attention)
    refusal.cache_clear()


def filled(decoder: Decoder) -> KVCache:
    cache = decoder.new_cache(PAGES, PAGE_SIZE, torch.bfloat16)
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(3)))
    return cache


def decodes(contexts: list[int]) -> StepBatch:
    """One new token of each sequence, each with pages of its own."""
    pages = iter(range(PAGES - 1, 0, -1))
    pieces = []
    for number, context in enumerate(contexts):
        own = [next(pages) for _ in range(-(-context // PAGE_SIZE))]
        pieces.append(Piece(token_ids=[7 + number], start=context - 1, pages=own))
    return step(pieces, page_size=PAGE_SIZE)


def test_sizes_are_powers_of_two_up_to_the_first_with_room() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(2) == [1, 2]
    assert bucket_sizes(5) == [1, 2, 4, 8]
    assert bucket_sizes(8) == [1, 2, 4, 8]


def test_replayed_steps_give_the_logits_and_the_cache_of_steps_that_are_not(
    decoder: Decoder,
) -> None:
    captured, plain = filled(decoder), filled(decoder)
    capture = Captured()
    decoder.capture_decodes(captured, capture, sequences_max=5, context_tokens_max=12)
    assert capture.sizes == [8, 4, 2, 1]
    # What the captures wrote: row 0 of page 0, of nobody.
    captured.data[:, :, 0] = plain.data[:, :, 0]
    kept = []
    for contexts in ([6, 3, 9], [1], [12, 12, 5, 2, 7], [4, 4], [2, 9, 9, 1]):
        batch = decodes(contexts)
        replayed = decoder.forward(batch, captured)
        expected = decoder.forward(batch, plain)
        torch.testing.assert_close(replayed, expected)
        torch.testing.assert_close(captured.data, plain.data)
        kept.append((replayed, expected))
    for replayed, expected in kept:
        torch.testing.assert_close(replayed, expected)
    assert capture.replays == [4, 1, 8, 2, 4]


def test_prompts_long_contexts_many_sequences_and_other_caches_are_computed_uncaptured(
    decoder: Decoder,
) -> None:
    cache, capture = filled(decoder), Captured()
    decoder.capture_decodes(cache, capture, sequences_max=2, context_tokens_max=8)
    prompt = step([Piece(token_ids=range(3), start=0, pages=[1])], page_size=PAGE_SIZE)
    for batch in (prompt, decodes([9]), decodes([1, 1, 1])):
        decoder.forward(batch, cache)
    decoder.forward(decodes([2]), filled(decoder))
    assert capture.replays == []
    decoder.forward(decodes([8, 2]), cache)
    assert capture.replays == [2]


def test_a_step_that_wants_no_logits_of_a_sequence_gets_none(decoder: Decoder) -> None:
    cache = filled(decoder)
    decoder.capture_decodes(cache, Captured(), sequences_max=4, context_tokens_max=8)
    batch = decodes([5, 3, 8])
    every = decoder.forward(batch, cache)
    some = StepBatch(
        **{name: getattr(batch, name) for name in StepBatch.__slots__ if name != "logit_rows"},
        logit_rows=torch.tensor([2]),
    )
    torch.testing.assert_close(decoder.forward(some, cache), every[2:])


def test_nothing_is_captured_where_a_layer_gathers_pages(decoder: Decoder) -> None:
    capture = Captured()
    cache = decoder.new_cache(PAGES, PAGE_SIZE)
    decoder.capture_decodes(cache, capture, sequences_max=4, context_tokens_max=8)
    assert capture.sizes == []
