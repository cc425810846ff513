"""Which families there are, by the `model_type` of their configs. Never: how one is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from appliance.model.families import falcon, gemma, gpt_bigcode, llama, qwen
from appliance.model.fields import Fields
from appliance.model.shape import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`architecture`: the only class name accepted; `parse`: (config, generation config) -> shape."""

    architecture: str
    parse: Callable[[Fields, dict[str, Any]], ModelConfig]


FAMILIES = {
    "llama": Family(architecture="LlamaForCausalLM", parse=llama.parse_llama),
    "mistral": Family(architecture="MistralForCausalLM", parse=llama.parse_mistral),
    "qwen2": Family(architecture="Qwen2ForCausalLM", parse=qwen.parse_qwen2),
    "qwen3": Family(architecture="Qwen3ForCausalLM", parse=qwen.parse_qwen3),
    "gemma": Family(architecture="GemmaForCausalLM", parse=gemma.parse_gemma),
    "gemma2": Family(architecture="Gemma2ForCausalLM", parse=gemma.parse_gemma2),
    "gemma3_text": Family(architecture="Gemma3ForCausalLM", parse=gemma.parse_gemma3),
    "gemma3": Family(
        architecture="Gemma3ForConditionalGeneration", parse=gemma.parse_gemma3_wrapper
    ),
    "falcon": Family(architecture="FalconForCausalLM", parse=falcon.parse_falcon),
    "gpt_bigcode": Family(
        architecture="GPTBigCodeForCausalLM", parse=gpt_bigcode.parse_gpt_bigcode
    ),
}
