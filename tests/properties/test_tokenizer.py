"""Tokenizers of each kind against the crate's own package, on random texts of mixed scripts."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from appliance._core import Tokenizer
from appliance.tokens import pack, unpack
from tests.reference.decoding import decode_pieces
from tests.small_tokenizers import NAMES, Name, oracle, tokenizer_json

TEXTS = 600

_ALPHABETS = (
    "abcdefghij ABC",
    "the of and ing er ",
    "0123456789",
    " \t\n\r\u00a0\u3000\u200b",
    ".,;:!?'\"()[]{}<>|/\\_-=+*#@",
    "áéíóúñçßøåæ\u0301\u0308",
    "αβγδεабвгдеёж",
    "אבגדהابتثجحहिन्दीไทย",
    "中文字符测试日本語テキスト한국어。、",
    "😀🙂👩👧🇨🇩\u200d\ufe0f",
    "\u0000\u0001\u007f\u0085\u2028\ufeff\u202e\ufffd\U0010ffff",
    "\u2581Ġ",
)
_NAMES = ("<|im_end|>", "<|im_start|>", "</s>", "<s>", "<unk>", "<0x0A>", "<0xEA>", "<|endoftext|>")


def random_text(dice: random.Random, *, names: bool) -> str:
    parts = []
    for _ in range(dice.randrange(8)):
        if names and dice.random() < 0.15:
            parts.append(dice.choice(_NAMES))
        else:
            parts.append("".join(dice.choices(dice.choice(_ALPHABETS), k=dice.randrange(9))))
    return "".join(parts)


def texts_of(name: Name, *, names: bool) -> list[str]:
    dice = random.Random(f"texts of {name}")
    return [random_text(dice, names=names) for _ in range(TEXTS)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_those_of_the_crates_package(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=1 << 20)
    theirs = oracle(name)
    # The crate's unigram model turns a control token's name into the token: there we differ.
    for text in texts_of(name, names=not name.startswith("unigram")):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert list(unpack(ours.encode(text))) == expected, text
    theirs.encode_special_tokens = False
    for text in texts_of(name, names=True):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert list(unpack(ours.encode_template(text))) == expected, text


@pytest.mark.parametrize("name", ["byte-level", "llama3", "sentencepiece", "gemma"])
def test_ids_equal_those_of_the_transformers_fast_tokenizer(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=1 << 20)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=oracle(name), clean_up_tokenization_spaces=False
    )
    for text in texts_of(name, names=True):
        expected = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert list(unpack(ours.encode(text))) == expected, text


@pytest.mark.parametrize("name", NAMES)
def test_no_content_gives_a_control_token(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=1 << 20)
    unknown = ours.token_id("<unk>")
    for text in texts_of(name, names=True):
        ids = unpack(ours.encode(text))
        assert all(ours.token_bytes(token_id) for token_id in ids if token_id != unknown), text


@pytest.mark.parametrize("name", ["byte-level", "llama3", "gemma", "sentencepiece"])
def test_decoding_undoes_encoding(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=1 << 20)
    # SentencePiece writes a space and its mark alike: a mark in a text comes back as a space.
    marks = str.maketrans({} if name in ("byte-level", "llama3") else {"\u2581": " "})
    for text in texts_of(name, names=True):
        ids = ours.encode(text)
        assert ours.decode(ids) == text.translate(marks)
        ours.remember(b"tenant", text.translate(marks), ids)


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_decode_as_their_pieces_say(name: Name) -> None:
    ours = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=1 << 20)
    theirs = oracle(name)
    dice = random.Random(f"ids of {name}")
    for _ in range(TEXTS):
        ids = dice.choices(range(ours.vocab_size), k=dice.randrange(12))
        text = ours.decode(pack(ids))
        assert text == decode_pieces(name, [str(theirs.id_to_token(index)) for index in ids])
        if "\ufffd" not in text:  # the crate replaces a whole run of byte pieces, not its bad part
            assert text == theirs.decode(ids, skip_special_tokens=True)
        joined = b"".join(ours.token_bytes(token_id) for token_id in ids)
        assert joined.decode("utf-8", "replace").endswith(text)
