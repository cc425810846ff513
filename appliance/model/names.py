"""The names of a family's tensors, by role. Never: shapes, data.

All are module names of the Hugging Face state dict, without `.weight` and `.bias`.
"""

from __future__ import annotations

from dataclasses import dataclass

IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old checkpoints store this table; it is computed from the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """Defaults are those of llama; None for what a family does not have.

    `layer` is the prefix of the layer's own names, with its number at {}. `qkv` replaces q, k and v.
    `mlp_norm` None: the MLP shares the attention's norm. `renamed`: prefixes that files may use instead
    of the names here; `ignored_prefixes` and `ignored_suffixes`: tensors that are not needed.
    """

    embedding: str = "model.embed_tokens"
    positions: str | None = None
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    qkv: str | None = None
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    q_norm: str | None = None
    k_norm: str | None = None
    output: str = "self_attn.o_proj"
    post_attention_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    gate: str | None = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    post_mlp_norm: str | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    ignored_prefixes: tuple[str, ...] = ()
    ignored_suffixes: tuple[str, ...] = (IGNORED_SUFFIX,)

    def canonical(self, name: str) -> str | None:
        """The name here of a tensor of a file; None when it is to be ignored."""
        if name.startswith(self.ignored_prefixes) or name.endswith(self.ignored_suffixes):
            return None
        for theirs, ours in self.renamed:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name
