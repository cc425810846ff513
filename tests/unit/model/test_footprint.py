"""How much a model takes: against `transformers`' counts and the cache's own memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.box import free_bytes
from appliance.model.decoder import load_model
from appliance.model.files import read_shape
from appliance.model.footprint import footprint, head_forms, parameters, weight_bytes
from appliance.model.kv_cache import ELEMENT_TYPES
from tests.family_fixtures import family_model, save_model
from tests.model_fixtures import tiny_model, write_directory, write_gguf, write_tiny_llama


@pytest.mark.parametrize(
    "name", ["llama, biased", "qwen2", "gemma3", "falcon, grouped", "gpt_bigcode"]
)
def test_parameters_are_as_many_as_transformers_counts(tmp_path: Path, name: str) -> None:
    model = family_model(name)
    config = read_shape(save_model(model, tmp_path))
    assert parameters(config) == model.num_parameters()
    assert weight_bytes(config, 32) == 4 * model.num_parameters()


def test_a_chat_takes_what_its_pages_take(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, max_position_embeddings=20_000)
    sizes = footprint(read_shape(directory), {"memory": 10_000_000, "disk": 1}, weight_bits=12)
    assert (sizes.chat_messages, sizes.chat_tokens) == (180, 9000)
    decoder = load_model(directory, "cpu", None)
    for form, dtype in zip(sizes.own, ELEMENT_TYPES.values(), strict=True):
        cache = decoder.new_cache(1, 16, dtype)
        assert form.token_bytes * 16 == cache.page_content_bytes
        assert form.chat_bytes == form.token_bytes * 9000
        assert form.chats == {"memory": 10_000_000 // form.chat_bytes, "disk": 0}
    assert [form.token_bytes for form in sizes.own] == [512, 256, 256, 160]


def test_a_chat_is_no_longer_than_the_model_can_look_at(tmp_path: Path) -> None:
    sizes = footprint(read_shape(write_tiny_llama(tmp_path)), {"memory": 512 * 256}, weight_bits=12)
    assert sizes.chat_tokens == 256
    assert sizes.own[0].chats == {"memory": 1}


def test_other_forms_differ_by_their_heads_alone(tmp_path: Path) -> None:
    sizes = footprint(read_shape(write_tiny_llama(tmp_path)), {"memory": 10**6}, weight_bits=12)
    told = {form.name: (form.kv_heads, form.token_bytes) for form in sizes.heads}
    assert told == {
        "multi-head": (4, 1024),
        "grouped-query": (2, 512),
        "multi-query": (1, 256),
    }


@pytest.mark.parametrize(
    ("heads", "kv_heads", "grouped"), [(32, 1, 4), (32, 32, 4), (9, 3, 3), (71, 1, 1), (1, 1, 1)]
)
def test_the_grouped_form_is_the_models_own_or_near_the_root_of_its_heads(
    tmp_path: Path, heads: int, kv_heads: int, grouped: int
) -> None:
    shape = read_shape(write_tiny_llama(tmp_path))
    forms = head_forms(replace(shape, heads=heads, kv_heads=kv_heads))
    assert forms == {"multi-head": heads, "grouped-query": grouped, "multi-query": 1}


def test_a_shape_needs_no_weights_and_a_gguf_file_has_the_same(tmp_path: Path) -> None:
    model = tiny_model()
    directory = write_directory(tmp_path / "model", model)
    (directory / "model.safetensors").unlink()
    shape = read_shape(directory)
    assert shape == read_shape(write_gguf(tmp_path / "model.gguf", model))


def test_weights_leave_less_room_where_they_lie_and_none_below_zero(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "later"
    free = free_bytes(folder, weights_bytes=0)
    taken = free_bytes(folder, weights_bytes=2**60)
    first = next(iter(free))
    assert list(free) == list(taken)
    assert list(free)[-2:] == ["memory", "disk"]
    assert free[first] > 0
    assert taken[first] == 0
    assert taken["disk"] > 0
