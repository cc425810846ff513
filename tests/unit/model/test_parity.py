"""The real model against `transformers`, greedily, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from appliance.model.decoder import Decoder, load_model
from tests.unit.model.steps import Piece, step

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = [
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain why the sky is blue to a child of seven.",
    "List three differences between 1999 and 2024, with numbers.",
    "Schreibe zwei Sätze über Äpfel 🍎 und Birnen.",
]
NEW_TOKENS = 64
PAGE_SIZE = 16


@pytest.fixture(scope="module")
def decoder(smollm2_dir: Path) -> Decoder:
    return load_model(smollm2_dir, "cpu", None)


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_dir)


@pytest.fixture(scope="module")
def transformers_model(smollm2_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)


def greedy(decoder: Decoder, prompt: list[int]) -> list[int]:
    """Prefill in two chunks, then one token a step, until an end token or `NEW_TOKENS`."""
    pages = list(range(-(-(len(prompt) + NEW_TOKENS) // PAGE_SIZE)))[::-1]
    cache = decoder.new_cache(len(pages), PAGE_SIZE)
    pending, done, reply = prompt[: len(prompt) // 2], 0, list[int]()
    decoder.forward(step([Piece(token_ids=pending, start=0, pages=pages)], page_size=16), cache)
    pending, done = prompt[len(pending) :], len(pending)
    while len(reply) < NEW_TOKENS and (not reply or reply[-1] not in decoder.config.eos_ids):
        piece = Piece(token_ids=pending, start=done, pages=pages)
        logits = decoder.forward(step([piece], page_size=PAGE_SIZE), cache)
        done += len(pending)
        pending = [int(logits[-1].argmax())]
        reply += pending
    return reply


@pytest.mark.parametrize("text", PROMPTS)
def test_greedy_replies_are_those_of_transformers_token_for_token(
    decoder: Decoder, tokenizer: Any, transformers_model: Any, text: str
) -> None:
    messages = [{"role": "user", "content": text}]
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    prompt = encoded["input_ids"][0].tolist()
    reply = greedy(decoder, prompt)
    assert len(reply) == NEW_TOKENS or reply[-1] in decoder.config.eos_ids
    # Each token is the best one after those before it: what its own greedy decoding gives, in one pass.
    with torch.inference_mode():
        logits = transformers_model(torch.tensor([prompt + reply])).logits[0]
    assert reply == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_the_model_knows_the_capital_of_france(decoder: Decoder, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": PROMPTS[0]}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert "Paris" in tokenizer.decode(greedy(decoder, prompt))


def test_the_real_tokenizer_splits_numbers_into_digits_and_joins_common_words(
    tokenizer: Any,
) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("The year 1999.")) == [
        "The",
        "Ġyear",
        "Ġ",
        "1",
        "9",
        "9",
        "9",
        ".",
    ]
