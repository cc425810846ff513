"""A model directory's `config.json` as a `ModelConfig`. Never: tensors, tokenizers, torch.

Each family has its own parser. Everything that would change the arithmetic and is not implemented is
refused by name instead of being ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.families.registry import FAMILIES
from appliance.model.fields import Fields, read_json, shown
from appliance.model.rope import check_rotation
from appliance.model.shape import ModelConfig

__all__ = ["ModelConfig", "parse_config", "read_config"]


def read_config(directory: Path) -> ModelConfig:
    """The config of a model directory; raises ModelError for what is missing or unsupported.

    `auto_map` is ignored: code in a model directory is never run.
    """
    path = directory / "config.json"
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise ModelError(f"{path}: not a JSON object")
    generation: Any = {}
    if (directory / "generation_config.json").exists():
        generation = read_json(directory / "generation_config.json")
        if not isinstance(generation, dict):
            raise ModelError(f"{directory / 'generation_config.json'}: not a JSON object")
    return parse_config(fields, generation, str(path))


def parse_config(fields: dict[str, Any], generation: dict[str, Any], source: str) -> ModelConfig:
    """`ModelConfig` from the fields of `config.json` and `generation_config.json`.

    `source` names the file in messages. Raises ModelError.
    """
    name = fields.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        supported = ", ".join(repr(known) for known in FAMILIES)
        raise ModelError(
            f"{source}: model_type {shown(name)} is not supported; supported: {supported}"
        )
    architectures = fields.get("architectures")
    if architectures is not None and architectures != [family.architecture]:
        raise ModelError(
            f"{source}: architectures {shown(architectures)} is not supported; "
            f"supported: [{family.architecture!r}]"
        )
    if fields.get("quantization_config") is not None:
        raise ModelError(f"{source}: quantization_config is not supported; use unquantized weights")
    config = family.parse(Fields(fields, source), generation)
    for layer in config.per_layer:
        if layer.rope is not None:
            check_rotation(layer.rope, config.head_dim, source)
    return config
