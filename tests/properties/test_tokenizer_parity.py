"""Ids against those of the `transformers` fast tokenizer: 100,000 random texts, every README around.

The real SmolLM2 vocabulary and small trained ones: byte-level with GPT-2's and with GPT-4's split,
SentencePiece with byte pieces. `transformers` is asked through its backend, in batches.
"""

from __future__ import annotations

import random
import re
import site
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from appliance._core import Tokenizer
from appliance.tokens import pack
from tests.properties.test_tokenizer import random_text
from tests.small_tokenizers import Name, oracle, tokenizer_json
from tests.threads import turns_while

TEXTS = 100_000
README_CHARS_MAX = 3_000_000


@cache
def random_texts() -> list[str]:
    dice = random.Random("parity")
    return [random_text(dice, names=True) for _ in range(TEXTS)]


@cache
def readme_pieces() -> list[str]:
    """Paragraphs with the white space behind them, and the files they are from, up to a size."""
    pieces: list[str] = []
    chars = 0
    for directory in map(Path, site.getsitepackages()):
        for path in sorted(directory.rglob("*")):
            if path.suffix not in (".md", ".rst") and path.name != "METADATA":
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            chars += len(text)
            if chars > README_CHARS_MAX:
                return pieces
            pieces += [text, *re.findall(r".+?(?:\n\s*\n|\Z)", text, re.DOTALL)]
    return pieces


def compare(ours: Tokenizer, theirs: PreTrainedTokenizerFast, texts: Sequence[str]) -> None:
    backend = theirs.backend_tokenizer
    backend.encode_special_tokens = True  # what `split_special_tokens=True` sets
    for start in range(0, len(texts), 10_000):
        batch = texts[start : start + 10_000]
        expected = backend.encode_batch_fast(batch, add_special_tokens=False)
        found = ours.encode_many(batch)
        for text, encoding, token_ids in zip(batch, expected, found, strict=True):
            assert token_ids == pack(encoding.ids), text


@pytest.mark.parametrize("name", ["byte-level", "llama3", "sentencepiece", "gemma"])
def test_a_trained_vocabulary_gives_the_ids_of_transformers(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=0)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=oracle(name), clean_up_tokenization_spaces=False
    )
    assert ours.is_fast is (name in ("byte-level", "llama3"))
    compare(ours, theirs, random_texts())
    compare(ours, theirs, readme_pieces())


@pytest.mark.model
def test_the_real_vocabulary_gives_the_ids_of_transformers(smollm2_dir: Path) -> None:
    ours = Tokenizer((smollm2_dir / "tokenizer.json").read_bytes(), memo_bytes_max=0)
    theirs = AutoTokenizer.from_pretrained(smollm2_dir)
    assert ours.is_fast
    compare(ours, theirs, random_texts())
    compare(ours, theirs, readme_pieces())
    dice = random.Random("call")
    for text in dice.choices(random_texts(), k=2000):
        ids = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ours.encode(text) == pack(ids), text


def test_other_threads_run_while_a_batch_is_encoded() -> None:
    ours = Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0)
    batch = ["Ünïcödé wörds, 1234 " * 400] * 500
    # With the GIL held until the end there would be one turn or two.
    assert turns_while(lambda: ours.encode_many(batch)) > 10
