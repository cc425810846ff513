"""Every family against `transformers`: same logits, through chunks, decode steps and pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cosine_similarity

from appliance.model.attention import reference_attention, torch_attention
from appliance.model.config import read_config
from appliance.model.cpu_attention import CpuAttention
from appliance.model.decoder import Decoder, load_model
from appliance.model.weights import load_weights
from tests.family_fixtures import (
    FAMILIES,
    SCALINGS,
    family_model,
    prompt,
    random_model,
    save_model,
    whole_logits,
)
from tests.unit.model.steps import stepwise

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_logits_are_those_of_transformers_in_prefill_and_decode(
    tmp_path: Path, name: str
) -> None:
    model = family_model(name)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    token_ids = prompt(40)
    want = whole_logits(model, token_ids)
    got = stepwise(decoder, token_ids, [40])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
    got = stepwise(decoder, token_ids, [11, 3, 14])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "dynamic"])
def test_a_scaled_rotation_gives_the_logits_of_transformers_past_the_original_length(
    tmp_path: Path, name: str
) -> None:
    rope: dict[str, Any] = {"rope_theta": 10000.0, **SCALINGS[name]}
    model = random_model(**FAMILIES["llama"], rope_parameters=rope)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    token_ids = prompt(60)
    want = whole_logits(model, token_ids)
    torch.testing.assert_close(stepwise(decoder, token_ids, [29]), want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_in_int8_is_near_itself_in_float32(tmp_path: Path, name: str) -> None:
    directory = save_model(family_model(name), tmp_path)
    token_ids = prompt(40)
    want = stepwise(load_model(directory, "cpu", None), token_ids, [40])
    form = load_model(directory, "cpu", None, weight_dtype="int8")
    whole = stepwise(form, token_ids, [40])
    assert cosine_similarity(whole, want).min() > 0.98
    # Attention's last bits depend on the chunk; at an edge they move an activation by one number.
    got = stepwise(form, token_ids, [11, 3])
    torch.testing.assert_close(got, whole, atol=20 * TOLERANCE, rtol=0)


def grown_logits(model: Any, token_ids: list[int], start: int) -> torch.Tensor:
    """`transformers`' logits, the first `start` tokens in one pass and the others one by one."""
    with torch.inference_mode():
        out = model(torch.tensor([token_ids[:start]]), use_cache=True)
        rows, cache = [out.logits[0]], out.past_key_values
        for token_id in token_ids[start:]:
            out = model(torch.tensor([[token_id]]), cache=cache, use_cache=True)
            rows.append(out.logits[0])
    return torch.cat(rows)


def test_dynamic_scaling_is_that_of_transformers_growing_token_by_token(tmp_path: Path) -> None:
    rope = {"rope_theta": 10000.0, **SCALINGS["dynamic"]}
    model = random_model(
        **FAMILIES["llama"] | {"max_position_embeddings": 16, "rope_parameters": rope}
    )
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    assert decoder.config.context_tokens == 64
    token_ids = prompt(60)
    want = grown_logits(model, token_ids, 13)
    got = stepwise(decoder, token_ids, [13])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
    # And whatever was computed together: a cached key depends on its position alone.
    got = stepwise(decoder, token_ids, [60])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_global_layers_of_gemma3_scale_their_rotation_and_local_ones_do_not(
    tmp_path: Path,
) -> None:
    fields = FAMILIES["gemma3"] | {
        "rope_theta": 5000.0,
        "rope_local_base_freq": 700.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    model = random_model(**fields)
    # As `transformers` 5 writes it, and as the published configs are.
    directory = save_model(model, tmp_path)
    token_ids = prompt(40)
    want = whole_logits(model, token_ids)
    decoder = load_model(directory, "cpu", None)
    assert [layer.window for layer in decoder.config.per_layer] == [8] * 5 + [None]
    torch.testing.assert_close(stepwise(decoder, token_ids, [29]), want, atol=TOLERANCE, rtol=0)
    config = json.loads((directory / "config.json").read_text())
    del config["rope_parameters"], config["layer_types"]
    (directory / "config.json").write_text(json.dumps(config | fields))
    decoder = load_model(directory, "cpu", None)
    torch.testing.assert_close(stepwise(decoder, token_ids, [29]), want, atol=TOLERANCE, rtol=0)


def test_a_layer_may_read_the_keys_and_values_of_another(tmp_path: Path) -> None:
    """The oracle is `transformers` with the projections of the second layer replaced by the first's."""
    model = random_model(**FAMILIES["qwen3"] | {"num_hidden_layers": 3})
    directory = save_model(model, tmp_path)
    layers = model.model.layers
    layers[1].self_attn.k_norm = layers[0].self_attn.k_norm
    saved = {}
    for name in ("k_proj", "v_proj"):
        getattr(layers[0].self_attn, name).register_forward_hook(
            lambda _module, _inputs, out, name=name: saved.update({name: out})
        )
        getattr(layers[1].self_attn, name).register_forward_hook(
            lambda _module, _inputs, _out, name=name: saved[name]
        )
    config = read_config(directory)
    first, second, third = config.per_layer
    shared = replace(config, per_layer=(first, replace(second, kv_layer=0), third))
    assert shared.kv_layers == 2
    cpu = torch.device("cpu")
    weights = load_weights(directory, shared, cpu)
    token_ids = prompt(40)
    want = whole_logits(model, token_ids)
    for backend in (CpuAttention, torch_attention, reference_attention):
        decoder = Decoder(shared, weights, fingerprint="test", device=cpu, backend=backend)
        assert decoder.new_cache(1, 4).data.shape[0] == 2
        got = stepwise(decoder, token_ids, [11, 3, 24])
        torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_the_language_model_inside_gemma3s_image_model_is_found(tmp_path: Path) -> None:
    text = random_model(**FAMILIES["gemma3"])
    directory = save_model(text, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    wrapper = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [2, 0],
        "text_config": {name: config[name] for name in config if name != "eos_token_id"},
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    (directory / "config.json").write_text(json.dumps(wrapper))
    (directory / "generation_config.json").unlink()
    tensors = load_file(directory / "model.safetensors")
    token_ids = prompt(40)
    want = whole_logits(text, token_ids)
    for prefix, vision in (("language_model.model.", ""), ("model.language_model.", "model.")):
        renamed = {prefix + name.removeprefix("model."): t for name, t in tensors.items()}
        renamed[f"{vision}vision_tower.embeddings.weight"] = torch.ones(3)
        renamed[f"{vision}multi_modal_projector.weight"] = torch.ones(3)
        save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})
        decoder = load_model(directory, "cpu", None)
        assert decoder.config.eos_ids == (2, 0)
        got = stepwise(decoder, token_ids, [29])
        torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
