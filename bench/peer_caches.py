"""The prefix caches of SGLang and vLLM, from their own files, each behind one call a turn.

A turn is what their schedulers ask of the cache, and no more: find the cached prefix of the prompt, hold
it, and after the reply put the whole into the cache and let go. What they keep in objects on the way
(requests, tensors of slots) is theirs; the inputs come in the form that each is used to, made before.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.stand_ins import borrowed

PAGE_SIZE = 16


class SglangRadix:
    """`RadixCache` of SGLang, the Python tree over torch tensors of slots."""

    def __init__(self, site: Path, slots: int) -> None:
        import torch

        base = site / "sglang/srt/mem_cache"
        names = (
            "radix_cache",
            "base_prefix_cache",
            "cache_init_params",
            "events",
            "utils",
            "evict_policy",
        )
        real = {f"sglang.srt.mem_cache.{name}": base / f"{name}.py" for name in names}
        with borrowed(("sglang",), real) as import_module:
            self._module = import_module("sglang.srt.mem_cache.radix_cache")
        self._tree = self._module.RadixCache.create_simulated(page_size=PAGE_SIZE)
        # Which slots a sequence has makes no difference to the tree: all share these.
        self._slots = torch.arange(slots, dtype=torch.int64)
        rows = self._slots.unsqueeze(0)
        self._tree.req_to_token_pool = SimpleNamespace(
            req_to_token=rows, write=lambda where, slots: rows.__setitem__(where, slots)
        )
        self._tree.token_to_kv_pool_allocator = SimpleNamespace(
            free_segment=lambda slots, start_pos: None
        )

    def turn(self, prompt: array[int], whole: array[int]) -> int:
        """One turn as its scheduler asks for it; returns the tokens found.

        A checkpoint after the prompt's prefill (`checkpoint_kv_cache`, so that others share the prompt
        while the reply is made), and another when the reply is whole (`release_kv_cache`).
        """
        tree = self._tree
        hit, node = self._matched(prompt)
        request = SimpleNamespace(
            extra_key=None,
            cache_salt=None,
            priority=None,
            origin_input_ids=prompt,
            full_untruncated_fill_ids=whole,
            lock=tree.lock(node),
            kv=SimpleNamespace(
                req_pool_idx=0, swa_evict_floor=0, cache_inserted_len=hit, cache_protected_len=hit
            ),
        )
        # The page table of the request starts with these.
        tree.path_device_indices(node)
        tree.checkpoint(request, up_to=len(prompt))
        tree.checkpoint(request, up_to=len(whole))
        tree.unlock(request.lock)
        return hit

    def match_and_insert(self, prompt: array[int], whole: array[int]) -> int:
        """A turn of one match and one insert alone, without the checkpoint after the prompt."""
        module, tree = self._module, self._tree
        hit, node = self._matched(prompt)
        tree.inc_lock_ref(node)
        tree.path_device_indices(node)
        value = self._slots[: len(whole)]
        key = module.RadixKey(whole)
        tree.insert(module.InsertParams(key=key, value=value, inserted_len=hit))
        tree.dec_lock_ref(node)
        return hit

    def _matched(self, prompt: array[int]) -> tuple[int, Any]:
        module = self._module
        found = self._tree.match_prefix(module.MatchPrefixParams(key=module.RadixKey(prompt)))
        return found.device_prefix_len, found.last_device_node


class VllmBlocks:
    """Block hashing, `BlockPool` and `Request` of vLLM. `algorithm`: as its settings name it."""

    def __init__(self, site: Path, blocks: int, algorithm: str) -> None:
        real = {
            "vllm.v1.core.kv_cache_utils": site / "vllm/v1/core/kv_cache_utils.py",
            "vllm.v1.core.block_pool": site / "vllm/v1/core/block_pool.py",
            "vllm.v1.request": site / "vllm/v1/request.py",
            "vllm.v1.utils": site / "vllm/v1/utils.py",
            "vllm.utils.hashing": site / "vllm/utils/hashing.py",
        }
        structured = SimpleNamespace(from_sampling_params=lambda params: None)
        given: dict[str, dict[str, object]] = {
            "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda ids, _: len(ids)},
            "vllm.v1.structured_output.request": {"StructuredOutputRequest": structured},
        }
        with borrowed(("vllm", "cbor2"), real, given) as import_module:
            utils = import_module("vllm.v1.core.kv_cache_utils")
            pool = import_module("vllm.v1.core.block_pool")
            hash_function = import_module("vllm.utils.hashing").get_hash_fn_by_name(algorithm)
            self._request: Any = import_module("vllm.v1.request").Request
        utils.init_none_hash(hash_function)
        self._hasher = utils.get_request_block_hasher(PAGE_SIZE, hash_function)
        self._pool = pool.BlockPool(blocks, True, PAGE_SIZE)
        self._sampling = SimpleNamespace(
            max_tokens=64, extra_args=None, skip_reading_prefix_cache=None
        )

    def turn(self, prompt: list[int], reply: Sequence[int]) -> int:
        """One turn; returns the tokens found."""
        pool = self._pool
        request = self._request(
            "bench", prompt, self._sampling, None, arrival_time=0.0, block_hasher=self._hasher
        )
        blocks = []
        for block_hash in islice(request.block_hashes, (len(prompt) - 1) // PAGE_SIZE):
            cached = pool.get_cached_block(block_hash, [0])
            if not cached:
                break
            blocks.append(cached[0])
        hits = len(blocks)
        pool.touch(blocks)
        tokens = len(prompt) + len(reply)
        blocks += pool.get_new_blocks(-(-tokens // PAGE_SIZE) - hits)
        request.append_output_token_ids(reply)
        pool.cache_full_blocks(request, blocks, hits, tokens // PAGE_SIZE, PAGE_SIZE, 0)
        pool.free_blocks(reversed(blocks))
        return hits * PAGE_SIZE
