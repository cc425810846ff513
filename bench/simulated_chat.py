"""A chat with swipes, edits and rewinds: what its prompts find in the cache, by the rule of the cut.

400 turns in a window of 8,000 tokens; after a turn a swipe (35 %), an edit of the newest message (10 %)
or a rewind of one to four turns (5 %); a lorebook entry is called up in a quarter of the turns: frozen
into the history where it does not stand in the prompt already, or put before the character. Ours is the
product's own `fit` with its defaults, over its prefix index. prompt-poet's cut is its rule, in the same
chat format: whole parts go from the front until the surplus, rounded up to a whole step, is gone. Nobody
else uses the cache.

`hit`: of all prompt tokens, those that any earlier prompt or reply of the chat left behind. `latest`:
those that the latest one alone left, as in a server with one slot. Counts; nothing is timed.

    python -m bench.simulated_chat [SEEDS]
"""

from __future__ import annotations

import argparse
import random
import statistics
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from appliance._core import PrefixIndex
from appliance.chat.params import ChatLimits
from appliance.prompt.chat_format.chat_format import ChatFormat, End
from appliance.prompt.chat_format.render import render
from appliance.prompt.fit import fit
from appliance.prompt.messages import Prompt, PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.prompt.truncate import window
from appliance.tokens import TokenIds, count
from tests.unit.prompt.formats import format_of
from tests.unit.prompt.templates import CHATML

TURNS = 400
LIMIT = 8_000
"""Tokens a prompt may have: ours keeps its reserve for the reply beside them, prompt-poet knows none."""
LIMITS = ChatLimits()
SWIPES, EDITS, REWINDS = 0.35, 0.10, 0.05
REWIND_TURNS_MAX = 4
LORE = 0.25
SYSTEM_TOKENS = 600
ENTRY_TOKENS = (80, 160)
USER_TOKENS = (15, 85)
REPLY_TOKENS = (40, 160)
PAGE_SIZE = 16
PAGES = 120_000
NEAR_FULL = 0.25
"""A prompt of which less is found than this is computed nearly whole."""
OWNER = tenant_namespace("reader")
TOKENS = range(3, 49_152)
"""Those before are control tokens."""


class Placing(Enum):
    """Where the text of an active entry stands."""

    NONE = "no lore"
    FROZEN = "frozen"
    TOP = "at the top"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was said, and the entry that was active, if one was."""

    lore: PromptMessage | None
    user: PromptMessage
    reply: PromptMessage


Cut = Callable[[list[PromptMessage], list[PromptMessage]], Prompt]
"""From what is before the history, and the history, to a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Shares and means over the requests of one chat."""

    hit: float
    latest: float
    context: float
    near_full: float
    computed: float


class Chat:
    """A seeded chat that says the same under every policy."""

    def __init__(self, seed: int, placing: Placing, entries: int = 1) -> None:
        self._random = random.Random(seed)
        self._placing = placing
        self._entries = [
            self._message(f"entry {number}", "system", self._random.randint(*ENTRY_TOKENS), PUBLIC)
            for number in range(entries)
        ]
        self._system = self._message("system", "system", SYSTEM_TOKENS, PUBLIC)
        self.turns: list[Turn] = []
        self.standing: frozenset[str] = frozenset()
        """Names of the messages of the latest prompt."""

    def requests(self) -> Iterator[tuple[list[PromptMessage], list[PromptMessage], PromptMessage]]:
        """Each request: what is before the history, the history, the reply that it will get."""
        while len(self.turns) < TURNS:
            self.turns.append(self._turn())
            yield self._request()
            drawn = self._random.random()
            if drawn < SWIPES:
                last = self.turns.pop()
                self.turns.append(Turn(lore=last.lore, user=last.user, reply=self._reply()))
                yield self._request()
            elif drawn < SWIPES + EDITS:
                self.turns[-1] = self._turn()
                yield self._request()
            elif drawn < SWIPES + EDITS + REWINDS:
                gone = self._random.randint(1, REWIND_TURNS_MAX)
                del self.turns[max(len(self.turns) - gone, 1) :]

    def _request(self) -> tuple[list[PromptMessage], list[PromptMessage], PromptMessage]:
        history = []
        for turn in self.turns:
            if turn.lore is not None and self._placing is Placing.FROZEN:
                history.append(replace(turn.lore, namespace=OWNER))
            history += [turn.user, turn.reply]
        newest = self.turns[-1]
        front = [self._system]
        if newest.lore is not None and self._placing is Placing.TOP:
            front.insert(0, newest.lore)
        return front, history[:-1], newest.reply

    def _turn(self) -> Turn:
        # Drawn in any case, so that the chat says the same wherever the lore stands.
        entry = self._random.choice(self._entries)
        is_called = self._random.random() < LORE
        if self._placing is Placing.FROZEN and entry.name in self.standing:
            is_called = False  # it stands in the prompt already
        return Turn(
            lore=entry if is_called else None,
            user=self._message("user", "user", self._random.randint(*USER_TOKENS)),
            reply=self._reply(),
        )

    def _reply(self) -> PromptMessage:
        return self._message("reply", "assistant", self._random.randint(*REPLY_TOKENS))

    def _message(
        self, name: str, role: Role, tokens: int, namespace: bytes = OWNER
    ) -> PromptMessage:
        ids = array("I", (self._random.choice(TOKENS) for _ in range(tokens)))
        return PromptMessage(
            name=name,
            role=role,
            zone=Zone.CHARACTER if role == "system" else Zone.HISTORY,
            content="said",
            namespace=namespace,
            token_ids=ids.tobytes(),
        )


def ours(chat_format: ChatFormat, step: int) -> Cut:
    """The product's cut with its defaults, but for the step."""
    reserve = LIMITS.reply_reserve_tokens
    asked = window(limit=LIMIT + reserve, reserve=reserve, step=step)
    assert asked.room == LIMIT
    return lambda front, history: fit(chat_format, front, history, asked).prompt


def poet(chat_format: ChatFormat, step: int) -> Cut:
    """prompt-poet's cut: a surplus is rounded up to whole steps, parts go from the front."""
    header = count(render(chat_format, [_probe(chat_format)], End.REPLY).token_ids)
    header -= _size(chat_format, _probe(chat_format))

    def cut(front: list[PromptMessage], history: list[PromptMessage]) -> Prompt:
        sizes = [_size(chat_format, message) for message in history]
        total = header + sum(sizes) + sum(_size(chat_format, message) for message in front)
        needed = -(-max(total - LIMIT, 0) // step) * step
        dropped = removed = 0
        while removed < needed and dropped < len(sizes):
            removed += sizes[dropped]
            dropped += 1
        return render(chat_format, [*front, *history[dropped:]], End.REPLY)

    return cut


def _probe(chat_format: ChatFormat) -> PromptMessage:
    ids = chat_format.tokenizer.encode("said")
    return PromptMessage(
        name="probe", role="user", zone=Zone.HISTORY, content="said", namespace=OWNER, token_ids=ids
    )


def _size(chat_format: ChatFormat, message: PromptMessage) -> int:
    assert message.token_ids is not None
    return count(message.token_ids) + chat_format.overhead[message.role]


def measured(chat: Chat, cut: Cut) -> Result:
    """One chat under one policy."""
    index = PrefixIndex(pages=PAGES, page_size=PAGE_SIZE)
    hits, latest, sizes = [], [], []
    before: TokenIds = b""
    for front, history, reply in chat.requests():
        prompt = cut(front, history)
        chat.standing = frozenset(message.name for message in prompt.messages)
        assert prompt.tokens <= LIMIT
        assert reply.token_ids is not None
        left = prompt.token_ids + reply.token_ids
        hits.append(_found(index, prompt, left))
        latest.append(min(_shared(before, prompt.token_ids), prompt.tokens - 1))
        sizes.append(prompt.tokens)
        before = left
    return Result(
        hit=sum(hits) / sum(sizes),
        latest=sum(latest) / sum(sizes),
        context=statistics.fmean(sizes),
        near_full=statistics.fmean(
            hit < NEAR_FULL * size for hit, size in zip(hits, sizes, strict=True)
        ),
        computed=(sum(sizes) - sum(hits)) / len(sizes),
    )


def _found(index: PrefixIndex, prompt: Prompt, left: TokenIds) -> int:
    """Admit a prompt, leave it and its reply behind; gives the tokens found."""
    lease = index.admit(prompt.token_ids, prompt.stretches, count(left))
    assert lease is not None, "there is room for all"
    hit = lease.hit_tokens
    lease.append(left[len(prompt.token_ids) :])
    lease.commit(count(left))
    lease.release()
    return hit


def _shared(left: TokenIds, right: TokenIds) -> int:
    size = min(len(left), len(right))
    one = np.frombuffer(left[:size], dtype=np.uint32)
    other = np.frombuffer(right[:size], dtype=np.uint32)
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if differ.size else size // 4


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "seeds", type=int, nargs="?", default=3, help="chats of each kind (default: 3)"
    )
    seeds = parser.parse_args().seeds
    chat_format = format_of(CHATML)
    step = LIMITS.truncation_step_tokens
    policies: dict[str, Cut] = {
        f"ours, step {step:,}": ours(chat_format, step),
        "ours, step 1,024": ours(chat_format, 1_024),
        "ours, step 512": ours(chat_format, 512),
        "prompt-poet, step 500": poet(chat_format, 500),
        "prompt-poet, step 2,000": poet(chat_format, 2_000),
    }
    books = [(Placing.NONE, 1), (Placing.FROZEN, 1), (Placing.FROZEN, 8), (Placing.TOP, 1)]
    print(f"{TURNS} turns, prompts of at most {LIMIT} tokens, {seeds} seeds")
    print(f"{'':46} {'hit':>6} {'latest':>6} {'context':>8} {'near full':>9} {'computed':>8}")
    for placing, entries in books:
        about = "" if placing is Placing.NONE else f"{entries} of lore "
        for name, cut in policies.items():
            found = [measured(Chat(seed, placing, entries), cut) for seed in range(1, seeds + 1)]
            print(
                f"{about + placing.value + ': ' + name:46} {_mean(found, 'hit'):6.3f} "
                f"{_mean(found, 'latest'):6.3f} {_mean(found, 'context'):8.0f} "
                f"{_mean(found, 'near_full'):9.3f} {_mean(found, 'computed'):8.0f}",
                flush=True,
            )


def _mean(results: list[Result], name: str) -> float:
    return statistics.fmean(getattr(result, name) for result in results)


if __name__ == "__main__":
    main()
