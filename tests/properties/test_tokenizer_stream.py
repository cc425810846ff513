"""The stream decoder against its slow reference, on random ids, cuts and stop strings."""

from __future__ import annotations

import random

import pytest

from appliance._core import StreamDecoder, Tokenizer
from appliance.tokens import pack
from tests.reference.decoding import certain_text, tokens_inside
from tests.small_tokenizers import (
    BYTE_PIECES,
    NAMES,
    Name,
    byte_level_pieces,
    sentencepiece_pieces,
    tokenizer_json,
)

REPLIES = 1500


@pytest.mark.parametrize("name", NAMES)
def test_deltas_join_to_the_decoded_whole(name: Name) -> None:
    tokenizer = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=0)
    dice = random.Random(f"whole {name}")
    for _ in range(REPLIES):
        ids = dice.choices(range(tokenizer.vocab_size), k=dice.randrange(20))
        decoder = StreamDecoder(tokenizer)
        text, start = "", 0
        while start < len(ids):
            end = min(len(ids), start + dice.randrange(1, 4))
            text += decoder.push(pack(ids[start:end]))
            assert tokenizer.decode(pack(ids)).startswith(text)
            start = end
        text += decoder.finish()
        assert text == tokenizer.decode(pack(ids))
        assert decoder.delivered_tokens == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_behind_a_prompt_is_the_decoded_whole_without_the_prompt(name: Name) -> None:
    tokenizer = Tokenizer(tokenizer_json(name).encode(), memo_bytes_max=0)
    dice = random.Random(f"prompt {name}")
    for _ in range(REPLIES // 3):
        prompt = tokenizer.encode(dice.choice(["Say it: ", "x", "\u2581", " ", "a\u2581", ""]))
        ids = pack(dice.choices(range(tokenizer.vocab_size), k=dice.randrange(8)))
        decoder = StreamDecoder(tokenizer)
        before = decoder.push(prompt)
        after = decoder.push(ids) + decoder.finish()
        assert before == tokenizer.decode(prompt)
        assert after == tokenizer.decode(prompt + ids)[len(before) :]


def random_case(dice: random.Random) -> tuple[list[bytes], list[str]]:
    """Few letters, so that stop strings, their beginnings and broken characters are common."""
    text = "".join(dice.choices("aab \n😀é\ufffd", k=dice.randrange(1, 14)))
    stop = []
    for _ in range(dice.randrange(4)):
        start = dice.randrange(len(text))
        found = text[start : start + dice.randrange(1, 6)]
        stop.append("".join(dice.choices("aab\ufffd", k=3)) if dice.random() < 0.3 else found)
    data = bytearray(text.encode())
    for _ in range(dice.choice([0, 0, 1, 3])):
        data.insert(dice.randrange(len(data)), dice.choice([0x80, 0xC3, 0xE4, 0xED, 0xF0, 0xFF]))
    pieces, start = [], 0
    while start < len(data):
        end = min(len(data), start + dice.randrange(1, 5))
        pieces.append(bytes(data[start:end]))
        start = end
    return pieces, stop


def test_each_delta_is_all_that_is_certain_and_no_more() -> None:
    dice = random.Random("certain")
    for _ in range(REPLIES):
        pieces, stop = random_case(dice)
        text, ids = byte_level_pieces(pieces)
        decoder = StreamDecoder(Tokenizer(text.encode(), memo_bytes_max=0), stop=stop)
        delivered, data = "", b""
        for piece, token_id in zip(pieces, ids, strict=True):
            delivered += decoder.push(pack([token_id]))
            data += piece
            assert (delivered, decoder.stopped) == certain_text(data, stop, final=False)
            assert decoder.delivered_tokens == tokens_inside(pieces, delivered)
            if decoder.stopped:
                break
        delivered += decoder.finish()
        assert (delivered, decoder.stopped) == certain_text(data, stop, final=True)
        expected = tokens_inside(pieces, delivered) if decoder.stopped else len(pieces)
        assert decoder.delivered_tokens == expected


def test_byte_pieces_and_text_pieces_mix() -> None:
    text_pieces = ["\u2581a", "b", "\u2581", "\uc7a0", "\u2581\u2581"]
    text, ids = sentencepiece_pieces([*text_pieces, *BYTE_PIECES], "strip")
    tokenizer = Tokenizer(text.encode(), memo_bytes_max=0)
    dice = random.Random("mixed")
    for _ in range(REPLIES):
        reply = dice.choices(ids[:5] + [ids[5 + byte] for byte in "é😀 ".encode()], k=10)
        decoder = StreamDecoder(tokenizer)
        streamed = "".join(decoder.push(pack([token_id])) for token_id in reply)
        streamed += decoder.finish()
        data = b"".join(tokenizer.token_bytes(token_id) for token_id in reply)
        assert streamed == data.removeprefix(b" ").decode("utf-8", "replace")
        assert streamed == tokenizer.decode(pack(reply))
