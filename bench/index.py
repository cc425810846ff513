"""Match and insert of one trace of chats: our prefix index, SGLang's RadixCache, vLLM's block hashing.

10, 100 and 1,000 chats of 80 turns (8,000 tokens) over one system prompt go on turn by turn; pages of 16
tokens, room for all. Every cache gets the same turns, round after round, one cache after the other. A
turn commits the prompt once it is computed, and all when the reply is whole, as our scheduler and
SGLang's do; "match and insert" is a turn without the first of these, of ours beside SGLang's. "Whole":
ours is sent the whole prompt, as the peers are. "Known": it goes on from the turn before.
The same in Rust alone: `cargo bench -p appliance-core --bench index`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import measure, peers
from bench.our_cache import OurIndex
from bench.peer_caches import PAGE_SIZE, SglangRadix, VllmBlocks
from bench.trace import SYSTEM_TOKENS, TURN_TOKENS, PythonTokens, Trace, TurnTokens

TURNS_BEFORE = 80
ROUNDS = {10: 4, 100: 4, 1_000: 2}
TURNS_TIMED_MIN = 200
"""A shorter timing is mostly that of cold code, after the other caches ran."""
ALONE = "SGLang match and insert"
PEERS = ("SGLang RadixCache", ALONE, "vLLM sha256", "vLLM xxhash")
WAYS = ("whole", "known")


def main() -> None:
    """Compare and print."""
    measure.one_core()
    site = peers.on_path()
    history = SYSTEM_TOKENS + TURNS_BEFORE * TURN_TOKENS
    print(f"chats of {history} tokens, {TURN_TOKENS} more a turn; best (median), time a turn")
    for chats, rounds in ROUNDS.items():
        timings = _measure(site, chats, rounds)
        for way in WAYS:
            for peer in PEERS:
                ours = _alone(way) if peer == ALONE else way
                measure.compare(f"index, {chats} chats, {ours}", timings[ours], peer, timings[peer])
        gc.collect()


def _measure(site: Path, chats: int, rounds: int) -> dict[str, measure.Timing]:
    trace = Trace(chats, seed=chats)
    repeats = -(-TURNS_TIMED_MIN // chats)
    # Half a turn more than is needed, for lengths above the average.
    tokens = chats * (SYSTEM_TOKENS + (TURNS_BEFORE + 2 * rounds * repeats + 2) * TURN_TOKENS)
    pages = tokens // PAGE_SIZE + 2 * chats
    caches = _caches(site, pages)
    spent: dict[str, list[float]] = {name: [] for name in caches}
    for number in range(rounds + 1):
        if number == 0:
            turns = trace.round(TURNS_BEFORE)
        else:
            turns = [turn for _ in range(repeats) for turn in trace.round()]
        inputs = [(turn, trace.python_tokens(turn)) for turn in turns]
        for name, call in caches.items():
            with measure.quiet_heap():
                started = time.perf_counter()
                hits = [call(turn, tokens) for turn, tokens in inputs]
                seconds = time.perf_counter() - started
            if number > 0:
                spent[name].append(seconds)
                _check_hits(name, turns, hits)
    return {name: measure.timing(seconds, chats * repeats) for name, seconds in spent.items()}


def _caches(site: Path, pages: int) -> dict[str, Callable[[TurnTokens, PythonTokens], int]]:
    sglang, alone = SglangRadix(site, pages * PAGE_SIZE), SglangRadix(site, pages * PAGE_SIZE)
    sha, xx = (VllmBlocks(site, pages, algorithm) for algorithm in ("sha256", "xxhash"))

    def sglang_turn(_: TurnTokens, tokens: PythonTokens) -> int:
        return sglang.turn(tokens.prompt_array, tokens.whole_array)

    def sglang_alone(_: TurnTokens, tokens: PythonTokens) -> int:
        return alone.match_and_insert(tokens.prompt_array, tokens.whole_array)

    def vllm(blocks: VllmBlocks) -> Callable[[TurnTokens, PythonTokens], int]:
        return lambda _, tokens: blocks.turn(tokens.prompt_list, tokens.reply_list)

    def ours(way: str, shares_prompts: bool) -> Callable[[TurnTokens, PythonTokens], int]:
        index = OurIndex(pages, PAGE_SIZE, shares_prompts=shares_prompts)
        ask = index.whole if way == "whole" else index.known
        return lambda turn, _: ask(turn)

    return {
        **{way: ours(way, shares_prompts=True) for way in WAYS},
        **{_alone(way): ours(way, shares_prompts=False) for way in WAYS},
        **dict(zip(PEERS, (sglang_turn, sglang_alone, vllm(sha), vllm(xx)), strict=True)),
    }


def _alone(way: str) -> str:
    return f"{way}, match and insert"


def _check_hits(name: str, turns: Sequence[TurnTokens], hits: Sequence[int]) -> None:
    """Each cache found the turn before: ours to the token, the peers to the page."""
    for turn, hit in zip(turns, hits, strict=True):
        expected = turn.known // PAGE_SIZE * PAGE_SIZE if name in PEERS else turn.known
        assert hit == expected, f"{name}: chat {turn.chat} found {hit} tokens of {expected}"


if __name__ == "__main__":
    main()
