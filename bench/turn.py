"""The control path of one turn through the Python door: what server and engine pay in calls to Rust.

A new message is encoded, the turn goes on from the known node (or, sent whole, from the first token), a
40-token reply passes the stream decoder token by token, append and commit, release. 10 and 1,000
resident chats of 9,000 tokens, and ten chats of growing histories for the slope. The same in Rust alone,
with 10,000 chats: `cargo bench -p appliance-core --bench turn`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from appliance._core import StreamDecoder, Tokenizer
from bench import measure, workload
from bench.our_cache import OurIndex
from bench.trace import SYSTEM_TOKENS, TURN_TOKENS, Trace, TurnTokens

PAGE_SIZE = 16
HISTORY = 9_000
REPLY_TOKENS = 40
RESIDENT = {10: 12, 1_000: 3}
"""Chats, and rounds of one turn each."""
HISTORIES = (1_024, 2_048, 4_096, 9_000, 16_384, 32_768)
MEMO_BYTES = 64 << 20
SEEDS = count(100)
"""Of messages: no two rounds have the same, which the memo would know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What the turns say: a tokenizer, and a reply's tokens one by one."""

    tokenizer: Tokenizer
    reply: Sequence[bytes]

    @classmethod
    def load(cls) -> Text:
        """With the demo model's vocabulary."""
        tokenizer = Tokenizer(workload.tokenizer_json(), memo_bytes_max=MEMO_BYTES)
        ids = b"".join(tokenizer.encode_many(workload.messages(4, seed=3)))
        reply = [ids[4 * index : 4 * index + 4] for index in range(REPLY_TOKENS)]
        return cls(tokenizer=tokenizer, reply=reply)

    def encode(self, message: str) -> None:
        """A message; a new one is not in the memo."""
        self.tokenizer.encode(message, b"tenant:1")

    def decode(self) -> None:
        """The reply, as it comes."""
        decoder = StreamDecoder(self.tokenizer)
        for token in self.reply:
            decoder.push(token)
        decoder.finish()


def main() -> None:
    """Measure and print."""
    measure.one_core()
    text = Text.load()
    print("one turn through the Python door; best (median), time a turn, turns a second")
    _parts(text)
    for chats, rounds in RESIDENT.items():
        for way in ("whole", "known"):
            figure = f"turn, {chats} chats of {HISTORY} tokens, {way}"
            measure.report(figure, _turns(text, way, chats, HISTORY, rounds))
    slope = {tokens: _turns(text, "known", 10, tokens, 12) for tokens in HISTORIES}
    for tokens, found in slope.items():
        measure.report(f"turn, 10 chats of {tokens} tokens, known", found)
    shortest, longest = slope[HISTORIES[0]].best, slope[HISTORIES[-1]].best
    print(f"from {HISTORIES[0]} to {HISTORIES[-1]} tokens: {longest / shortest:.2f} times")


def _parts(text: Text) -> None:
    messages = iter(workload.messages(4_000, seed=4))

    def encode() -> None:
        for _ in range(100):
            text.encode(next(messages))

    def decode() -> None:
        for _ in range(100):
            text.decode()

    timings = measure.alternate({"encode": encode, "decode": decode}, items=100, rounds=40)
    measure.report("turn, encode alone", timings["encode"])
    measure.report(f"turn, {REPLY_TOKENS} tokens of a reply decoded alone", timings["decode"])


def _turns(text: Text, way: str, chats: int, history: int, rounds: int) -> measure.Timing:
    trace = Trace(chats, seed=history)
    grown = history + (2 * rounds + 4) * TURN_TOKENS
    index = OurIndex(chats * (grown // PAGE_SIZE + 2), PAGE_SIZE)
    call: Callable[[TurnTokens], int] = index.known if way == "known" else index.whole
    for turn in trace.round((history - SYSTEM_TOKENS) // TURN_TOKENS):
        call(turn)
    spent = []
    for _ in range(rounds):
        turns = trace.round()
        messages = workload.messages(chats, seed=next(SEEDS))
        with measure.quiet_heap():
            started = time.perf_counter()
            for turn, message in zip(turns, messages, strict=True):
                text.encode(message)
                hit = call(turn)
                text.decode()
                assert hit == turn.known
            spent.append(time.perf_counter() - started)
    return measure.timing(spent, chats)


if __name__ == "__main__":
    main()
