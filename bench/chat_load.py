"""A load of chats: who says what, how many at once, how long the answers took. Never: sends anything."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench import workload

CHARACTERS = 4
CHARACTER_WORDS = 300
MESSAGE_WORDS = 25
REPLY_WORDS = 35
"""Of an assistant's message in the history that a chat begins with."""
DECODE_ROUNDS = 3


class Failure(Exception):
    """An answer that did not come, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """`history`: messages before the first turn. `system`: one text instead of the characters'."""

    chats: int = 64
    at_once: int = 8
    turns: int = 6
    new_tokens: int = 48
    history: int = 0
    system: str | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One message: seconds to its first text and to its end; counts are None where the server tells none.

    `pieces` are the chunks that held text.
    """

    turn: int
    first_s: float
    whole_s: float
    pieces: int
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    new_tokens: int | None

    @property
    def count(self) -> int:
        """Tokens of the answer, as told or by its pieces."""
        return self.pieces if self.new_tokens is None else self.new_tokens


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What came of a load. `retries`: requests sent again because an idle connection had been closed.

    `asked_tokens`: how long each answer was to be.
    """

    asked_tokens: int
    seconds: float = 0.0
    retries: int = 0
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """Answers that did not come, or not whole."""
        return len(self.errors) + self.short

    @property
    def short(self) -> int:
        """Answers that ended early, where the server says how long they are."""
        return sum(a.new_tokens not in (None, self.asked_tokens) for a in self.answers)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return len(self.answers) / self.seconds

    def lines(self) -> list[str]:
        """The figures, as they are printed."""
        if not self.answers:
            return [f"no answer; {self._failures()}"]
        later = [answer for answer in self.answers if answer.turn >= 2] or self.answers
        first = [answer.first_s for answer in later]
        whole = [answer.whole_s for answer in self.answers]
        generated = [answer.count for answer in self.answers]
        return [
            f"{self.rate:.2f} messages/s "
            f"({len(self.answers)} in {self.seconds:.1f} s, "
            f"{sum(generated) / len(generated):.1f} tokens each), "
            f"{sum(generated) / self.seconds:.0f} new tokens/s",
            f"from turn 2 on: first token p50 {statistics.median(first):.2f} s, "
            f"p95 {_percentile(first, 0.95):.2f} s",
            f"whole message p50 {statistics.median(whole):.2f} s, "
            f"p95 {_percentile(whole, 0.95):.2f} s",
            f"cached of the prompt tokens: {_share(self.answers)}, from turn 2 on {_share(later)}",
            self._failures(),
        ]

    def _failures(self) -> str:
        shown = "".join(f"\n    {error}" for error in self.errors[:5])
        return f"{len(self.errors)} errors, {self.short} short, {self.retries} retries{shown}"


@dataclass(slots=True, kw_only=True, eq=False)
class Talk:
    """One chat so far. `conversation`: what a server that stores it calls it, once it does."""

    messages: list[dict[str, str]]
    conversation: str | None = None


class Answerer(ABC):
    """Whatever answers chats: a server, or an engine alone."""

    @abstractmethod
    async def answer(self, talk: Talk, new_tokens: int, *, turn: int, result: LoadResult) -> Answer:
        """The answer to the last message, greedy and of so many tokens.

        Raises `Failure`; what had to be sent again it adds to `result.retries`.
        """

    async def load(self, shape: LoadShape, result: LoadResult | None = None) -> LoadResult:
        """All chats, so many at once; a `result` given is filled meanwhile."""
        result = result or LoadResult(asked_tokens=shape.new_tokens)
        chats = iter(range(shape.chats))
        characters = _characters(shape)

        async def work() -> None:
            for chat in chats:
                await self._chat(chat, characters[chat % CHARACTERS], shape, result)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(shape.at_once)))
        result.seconds = time.perf_counter() - started
        return result

    async def decode_rate(self, new_tokens: int) -> float:
        """Tokens a second of one stream after its first, the median of a few."""
        result = LoadResult(asked_tokens=new_tokens)
        rates = []
        for number in range(DECODE_ROUNDS):
            question = f"Tell me a long story, number {number}, about a dragon and a tavern."
            talk = Talk(messages=[{"role": "user", "content": question}])
            answer = await self.answer(talk, new_tokens, turn=1, result=result)
            rates.append((answer.count - 1) / max(answer.whole_s - answer.first_s, 1e-9))
        return statistics.median(rates)

    async def _chat(self, chat: int, character: str, shape: LoadShape, result: LoadResult) -> None:
        source = random.Random(shape.seed * 1_000_003 + chat)
        talk = Talk(messages=[{"role": "system", "content": character}])
        for index in range(shape.history):
            role, words = ("user", MESSAGE_WORDS) if index % 2 == 0 else ("assistant", REPLY_WORDS)
            talk.messages.append({"role": role, "content": workload.english(source, words)})
        for turn in range(1, shape.turns + 1):
            content = workload.english(source, MESSAGE_WORDS)
            talk.messages.append({"role": "user", "content": content})
            try:
                answer = await self.answer(talk, shape.new_tokens, turn=turn, result=result)
            except Failure as error:
                result.errors.append(f"chat {chat}, turn {turn}: {error}")
                return
            result.answers.append(answer)
            talk.messages.append({"role": "assistant", "content": answer.text or "..."})


def _characters(shape: LoadShape) -> list[str]:
    if shape.system is not None:
        return [shape.system] * CHARACTERS
    source = random.Random(shape.seed)
    return [f"You are {workload.english(source, CHARACTER_WORDS - 2)}." for _ in range(CHARACTERS)]


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _share(answers: Iterable[Answer]) -> str:
    told = [(a.cached_tokens, a.prompt_tokens) for a in answers]
    known = [(c, p) for c, p in told if c is not None and p is not None]
    if not known:
        return "not told"
    return f"{sum(c for c, _ in known) / max(sum(p for _, p in known), 1):.2f}"
