"""The stream decoder: whole characters, stop strings, and which tokens were delivered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from appliance._core import StreamDecoder, Tokenizer
from appliance.tokens import pack
from tests.reference.decoding import certain_text
from tests.small_tokenizers import byte_level_pieces, sentencepiece_pieces, tokenizer_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What came out: the text of each push, of the end, and the state behind it."""

    deltas: list[str]
    rest: str
    stopped: bool
    delivered_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.deltas) + self.rest


def stream(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> Streamed:
    decoder = StreamDecoder(tokenizer, stop=stop)
    deltas = [decoder.push(pack([token_id])) for token_id in ids]
    rest = decoder.finish()
    return Streamed(
        deltas=deltas,
        rest=rest,
        stopped=decoder.stopped,
        delivered_tokens=decoder.delivered_tokens,
    )


def stream_pieces(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> Streamed:
    text, ids = byte_level_pieces(pieces)
    return stream(Tokenizer(text.encode(), memo_bytes_max=0), ids, stop)


# Whole characters (case S05).


def test_a_character_of_several_tokens_comes_out_whole() -> None:
    pieces = ["ok ", "f09f", "9880", " ", "e4", "bda0", "f09f91a9e2808df09f", "91a7", "!"]
    data = [
        piece.encode() if piece in ("ok ", " ", "!") else bytes.fromhex(piece) for piece in pieces
    ]
    got = stream_pieces(data)
    assert got.deltas == ["ok ", "", "😀", " ", "", "你", "👩\u200d", "👧", "!"]
    assert got.rest == ""
    assert got.delivered_tokens == 9


def test_bytes_that_cannot_become_a_character_come_out_at_once() -> None:
    got = stream_pieces([b"\xf0\x9f", b"a", b"\xe4", b"\xe4\xbd", b"\xff", b"\xf0\x9f\x98"])
    assert got.deltas == ["", "\ufffda", "", "\ufffd", "\ufffd\ufffd", ""]
    assert got.rest == "\ufffd"
    assert got.delivered_tokens == 6


def test_every_short_run_of_bytes_is_decoded_as_python_decodes_it_and_holds_only_what_is_open() -> (
    None
):
    text, ids = byte_level_pieces([bytes([byte]) for byte in range(256)])
    tokenizer = Tokenizer(text.encode(), memo_bytes_max=0)
    edges = bytes.fromhex(
        "00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"
    )
    for length in (1, 2, 3):
        for run in itertools.product(edges, repeat=length):
            packed = pack([ids[byte] for byte in run])
            decoder = StreamDecoder(tokenizer)
            delta = decoder.push(packed)
            assert delta == certain_text(bytes(run), [], final=False)[0]
            whole = bytes(run).decode("utf-8", "replace")
            assert delta + decoder.finish() == whole == tokenizer.decode(packed)


def test_an_open_character_is_not_delivered_and_its_tokens_do_not_count() -> None:
    text, ids = byte_level_pieces([b"ab", b"c\xf0", b"\x9f", b"\x98\x80"])
    decoder = StreamDecoder(Tokenizer(text.encode(), memo_bytes_max=0))
    counts = []
    for token_id in ids:
        decoder.push(pack([token_id]))
        counts.append(decoder.delivered_tokens)
    assert counts == [1, 1, 1, 4]


# Stop strings (case S10).


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "tokens"),
    [
        ([b"ABC", b"DEF", b"G", b"HI", b"J", b"K"], ["DEFGHIJ"], "ABC", 1),
        ([b"fine\n", b"Us", b"er", b": next"], ["\nUser:"], "fine", 0),
        ([b"x", b"\xf0\x9f", b"\x98\x80", b"y"], ["😀"], "x", 1),
        ([b"aab", b"aabaaac"], ["aabaaa"], "aab", 1),
        ([b"ab", b"cd"], ["bcd", "cd"], "a", 0),
        ([b"ab", b"cd"], ["d", "cd"], "ab", 1),
        ([b"abc"], ["abcd", "bc"], "a", 0),
        ([b"a", b"a", b"a", b"b"], ["aab"], "a", 1),
        ([b"stop"], ["stop"], "", 0),
        ([b"\xff", b"x"], ["\ufffd"], "", 0),
    ],
)
def test_a_reply_ends_just_before_its_stop_string(
    pieces: list[bytes], stop: list[str], text: str, tokens: int
) -> None:
    got = stream_pieces(pieces, stop)
    assert (got.text, got.stopped, got.delivered_tokens) == (text, True, tokens)
    whole_text, ids = byte_level_pieces(pieces)
    at_once = StreamDecoder(Tokenizer(whole_text.encode(), memo_bytes_max=0), stop=stop)
    assert at_once.push(pack(ids)) == text
    assert at_once.push(pack(ids)) == ""
    assert at_once.finish() == ""
    assert at_once.delivered_tokens == tokens


def test_the_beginning_of_a_stop_string_waits_and_is_not_lost_at_the_end() -> None:
    got = stream_pieces([b"a\nUs", b"e", b"ful", b"\nUser"], ["\nUser:"])
    assert got.deltas == ["a", "", "\nUseful", ""]
    assert got.rest == "\nUser"
    assert not got.stopped
    assert got.delivered_tokens == 4


def test_tokens_of_held_text_are_not_delivered() -> None:
    text, ids = byte_level_pieces([b"a", b"\n", b"Us", b"x"])
    decoder = StreamDecoder(Tokenizer(text.encode(), memo_bytes_max=0), stop=["\nUser:"])
    counts = []
    for token_id in ids:
        decoder.push(pack([token_id]))
        counts.append(decoder.delivered_tokens)
    assert counts == [1, 1, 1, 4]


def test_an_unfinished_character_at_the_end_may_complete_a_stop_string() -> None:
    got = stream_pieces([b"ab", b"\xf0\x9f"], ["b\ufffd"])
    assert (got.text, got.stopped, got.delivered_tokens) == ("a", True, 0)


# SentencePiece.


def test_only_the_first_token_of_a_reply_loses_its_space() -> None:
    for decoder in ("strip", "metaspace"):
        text, ids = sentencepiece_pieces(["\u2581I", "\u2581am", "\u2581", "!"], decoder)
        got = stream(Tokenizer(text.encode(), memo_bytes_max=0), ids)
        assert got.deltas == ["I", " am", " ", "!"]
        assert got.delivered_tokens == 4


def test_a_text_that_goes_on_keeps_the_space_when_its_ids_are_pushed_first() -> None:
    text, ids = sentencepiece_pieces(["Once", "\u2581upon"], "strip")
    decoder = StreamDecoder(Tokenizer(text.encode(), memo_bytes_max=0))
    assert decoder.push(pack(ids[:1])) == "Once"
    assert decoder.push(pack(ids[1:])) == " upon"


def test_byte_pieces_of_two_characters_join() -> None:
    pieces = ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"] * 2
    text, ids = sentencepiece_pieces(pieces, "strip")
    got = stream(Tokenizer(text.encode(), memo_bytes_max=0), ids)
    assert got.deltas == ["", "", "", "🙂", "", "", "", "🙂"]


# Control tokens and bad input.


def test_a_control_token_adds_no_text_and_is_delivered_with_what_is_before_it() -> None:
    tokenizer = Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0)
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    (letter,) = tokenizer.encode("x")[::4]
    got = stream(tokenizer, [end, letter, end])
    assert (got.text, got.deltas, got.delivered_tokens) == ("x", ["", "x", ""], 3)
    got = stream(tokenizer, [letter, end, letter, letter], ["xx"])
    assert (got.text, got.stopped, got.delivered_tokens) == ("", True, 0)


def test_bad_input_is_a_value_error_and_changes_nothing() -> None:
    tokenizer = Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0)
    with pytest.raises(ValueError, match="stop string is empty"):
        StreamDecoder(tokenizer, stop=["ok", ""])
    decoder = StreamDecoder(tokenizer)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        decoder.push(tokenizer.encode("lost") + pack([tokenizer.vocab_size]))
    with pytest.raises(ValueError, match="whole number of u32"):
        decoder.push(b"\x00")
    assert decoder.push(tokenizer.encode("kept")) == "kept"
    assert decoder.finish() == ""
    with pytest.raises(ValueError, match="finished"):
        decoder.push(tokenizer.encode("late"))


# Time.


def test_a_token_costs_the_same_however_long_the_reply_is() -> None:
    tokenizer = Tokenizer(tokenizer_json("byte-level").encode(), memo_bytes_max=0)
    ids = tokenizer.encode("naïve 😀 text, " * 8000)
    tokens = [ids[start : start + 4] for start in range(0, len(ids), 4)]

    def seconds(count: int) -> float:
        decoder = StreamDecoder(tokenizer, stop=["\nUser:", "naïve text"])
        started = time.thread_time()
        for token in tokens[:count]:
            decoder.push(token)
        return time.thread_time() - started

    short = min(seconds(len(tokens) // 8) for _ in range(3))
    whole = min(seconds(len(tokens)) for _ in range(3))
    # Eight times the tokens: decoding the whole reply for each would take 64 times as long.
    assert whole < 20 * short + 0.02
