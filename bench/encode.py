"""Encoding 2,000 new chat messages: ours, `tokenizers` and `tiktoken`, on one core.

Every tokenizer has the same vocabulary, and the ids are compared first. "First pass": the tokenizer
has just been built, its caches of words are empty. "Warm": it has seen the same words before; ours
keeps no memo of texts here. "Memo" is the same message again, as a history is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from bench import measure, peers, workload

MESSAGES = 2_000
ROUNDS = 7
FIRST_PASSES = 4
MEMO_BYTES = 256 << 20


def our_encoder(
    memo_bytes: int,
) -> tuple[Callable[[str], bytes], Callable[[Sequence[str]], list[bytes]]]:
    """Single and batch call of ours, from a tokenizer just built."""
    from appliance._core import Tokenizer

    tokenizer = Tokenizer(workload.tokenizer_json(), memo_bytes_max=memo_bytes)
    return tokenizer.encode, tokenizer.encode_many


def tokenizers_encoder() -> tuple[
    Callable[[str], list[int]], Callable[[list[str]], list[list[int]]]
]:
    """The same of `tokenizers`; the fastest batch call it has, without offsets."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(workload.tokenizer_json().decode())
    tokenizer.encode_special_tokens = True

    def single(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def batch(texts: list[str]) -> list[list[int]]:
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    return single, batch


def tiktoken_encoding() -> Any:
    """A `tiktoken.Encoding` of the same vocabulary. Its ids are the ranks: of SmolLM2, the ids."""
    tiktoken: Any = import_module("tiktoken")
    model = json.loads(workload.tokenizer_json())["model"]
    letters = byte_letters()
    ranks = {bytes(letters[c] for c in token): rank for token, rank in _ordinary(model["vocab"])}
    # Digits stand alone, spaces before one too; the rest is the pattern of byte-level BPE.
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
    return tiktoken.Encoding(
        "bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}, explicit_n_vocab=None
    )


def _ordinary(vocabulary: dict[str, int]) -> list[tuple[str, int]]:
    letters = byte_letters()
    return [(token, rank) for token, rank in vocabulary.items() if all(c in letters for c in token)]


def byte_letters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a letter: itself where it is printable, else from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + index): byte for index, byte in enumerate(others)},
    }


def main() -> None:
    """Compare and print."""
    measure.one_core()
    peers.on_path()
    texts = workload.messages(MESSAGES, seed=1)
    chars = sum(len(text) for text in texts) / len(texts)
    print(f"{MESSAGES} messages of {chars:.0f} characters, one core; best (median), time a message")
    _check_ids(texts)
    _first_pass(texts)
    _warm(texts)


def _check_ids(texts: list[str]) -> None:
    ours, _ = our_encoder(0)
    theirs, _ = tokenizers_encoder()
    encoding = tiktoken_encoding()
    tokens = differing = 0
    for text in texts:
        ids = list(memoryview(ours(text)).cast("I"))
        assert ids == theirs(text), f"ids differ from tokenizers' on {text!r}"
        differing += ids != encoding.encode_ordinary(text)
        tokens += len(ids)
    print(f"{tokens / len(texts):.1f} tokens a message; ids equal tokenizers' on all texts", end="")
    print(f", tiktoken's on {len(texts) - differing}")


def _first_pass(texts: list[str]) -> None:
    def spent(encode: Callable[[str], object]) -> float:
        with measure.quiet_heap():
            return measure.seconds(lambda: _each(encode, texts))

    rounds: dict[str, list[float]] = {"ours": [], "tokenizers": [], "tiktoken": []}
    for _ in range(FIRST_PASSES):
        rounds["ours"].append(spent(our_encoder(0)[0]))
        rounds["tokenizers"].append(spent(tokenizers_encoder()[0]))
        rounds["tiktoken"].append(spent(tiktoken_encoding().encode_ordinary))
    timings = {name: measure.timing(found, len(texts)) for name, found in rounds.items()}
    for peer in ("tokenizers", "tiktoken"):
        measure.compare("encode, single, first pass", timings["ours"], peer, timings[peer])


def _warm(texts: list[str]) -> None:
    ours, ours_many = our_encoder(0)
    hit, hit_many = our_encoder(MEMO_BYTES)
    theirs, theirs_many = tokenizers_encoder()
    encoding = tiktoken_encoding()
    hit_many(texts)
    timings = measure.alternate(
        {
            "ours": lambda: _each(ours, texts),
            "tokenizers": lambda: _each(theirs, texts),
            "tiktoken": lambda: _each(encoding.encode_ordinary, texts),
            "ours batch": lambda: ours_many(texts),
            "tokenizers batch": lambda: theirs_many(texts),
            "tiktoken batch": lambda: encoding.encode_ordinary_batch(texts, num_threads=1),
            "memo": lambda: _each(hit, texts),
            "memo batch": lambda: hit_many(texts),
        },
        items=len(texts),
        rounds=ROUNDS,
    )
    for peer in ("tokenizers", "tiktoken"):
        measure.compare("encode, single, warm", timings["ours"], peer, timings[peer])
        batch = timings[f"{peer} batch"]
        measure.compare("encode, batch, warm", timings["ours batch"], peer, batch)
        measure.compare("encode, single, memo", timings["memo"], peer, timings[peer])
        measure.compare("encode, batch, memo", timings["memo batch"], peer, batch)


def _each(call: Callable[[str], object], texts: Sequence[str]) -> None:
    for text in texts:
        call(text)


if __name__ == "__main__":
    main()
