"""A load of chats on one engine in this process: no sockets, no text. Never: other measurements."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.loop import EngineLoop, LoopSettings
from appliance.engine.tiers import Tiers
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import Admitted, Finished, Frame, Generate, Sampling, Tokens

TENANT = b"tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`chats` conversations of `turns` messages each, `at_once` of them at a time.

    `first_tokens` begin a chat, `message_tokens` each further message, `reply_tokens` each reply.
    `host_slots`: pages of host memory for what the cache evicts.
    """

    chats: int
    turns: int
    at_once: int
    first_tokens: int
    message_tokens: int
    reply_tokens: int
    host_slots: int

    @property
    def chat_tokens(self) -> int:
        """Length of a chat at its end."""
        return self.first_tokens + self.turns * (self.message_tokens + self.reply_tokens)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a load gave; seconds to first token of turns after the first are in `waits_s`."""

    seconds: float = 0.0
    messages: int = 0
    new_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    restored_pages: float = 0
    waits_s: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The figures to print."""
        return [
            f"chats: {self.messages / self.seconds:,.1f} messages/s, "
            f"{self.new_tokens / self.seconds:,.0f} new tokens/s",
            f"chats: time to first token from turn 2 on {statistics.median(self.waits_s) * 1e3:.2f} ms "
            f"(median), {self.hit_tokens / self.prompt_tokens:.1%} of prompt tokens found",
            f"chats: {self.restored_pages:,.0f} pages came back from host memory",
        ]


class _Chat:
    """One conversation, and the request that is under way."""

    def __init__(self, number: int, load: Load, vocab_size: int) -> None:
        self._random = random.Random(number)
        self._load = load
        self._vocab_size = vocab_size
        self._number = number
        self.ids = self._words(load.first_tokens)
        self.turns_left = load.turns
        self.turn = 0
        self.sent_at = 0.0
        self.is_answered = False

    def next_request(self) -> Generate:
        self.turn += 1
        self.turns_left -= 1
        self.is_answered = False
        self.ids += self._words(self._load.message_tokens)
        self.sent_at = time.perf_counter()
        return Generate(
            request_id=str(self._number),
            token_ids=tokens.pack(self.ids),
            stretches=[(TENANT, len(self.ids))],
            sampling=Sampling(temperature=0),
            new_tokens_max=self._load.reply_tokens,
            stop_token_ids=[],
            conversation=str(self._number).encode(),
        )

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(3, self._vocab_size) for _ in range(count)]


class _Driver:
    """Keeps `at_once` chats going and counts what comes back."""

    def __init__(self, decoder: Decoder, load: Load) -> None:
        self.outcome = Outcome()
        self._chats = [
            _Chat(number, load, decoder.config.vocab_size) for number in range(load.chats)
        ]
        self._idle = list(range(load.chats))
        self._active: set[int] = set()

    def receive(self, _: int, event: Frame) -> None:
        assert isinstance(event, Admitted | Tokens | Finished)
        number, outcome = int(event.request_id), self.outcome
        chat = self._chats[number]
        if isinstance(event, Admitted):
            outcome.prompt_tokens += event.prompt_tokens
            outcome.hit_tokens += event.prefix_hit_tokens
        elif isinstance(event, Tokens):
            chat.ids += tokens.unpack(event.token_ids)
            outcome.new_tokens += 1
            if not chat.is_answered and chat.turn > 1:
                outcome.waits_s.append(time.perf_counter() - chat.sent_at)
            chat.is_answered = True
        else:
            assert event.reason == "length", event
            outcome.messages += 1
            self._active.remove(number)
            if chat.turns_left > 0:
                self._idle.append(number)

    def feed(self, loop: EngineLoop, at_once: int) -> bool:
        """Start chats' next turns, those first that wait longest; False when all is done."""
        while self._idle and len(self._active) < at_once:
            number = self._idle.pop(0)
            self._active.add(number)
            loop.submit(1, self._chats[number].next_request())
        return bool(self._active)


def run_load(decoder: Decoder, cache: KVCache, load: Load) -> Outcome:
    """Run all chats to their end over an empty cache."""
    index = PrefixIndex(
        page_size=cache.page_size, pages=cache.pages, host_slots=load.host_slots, disk_slots=0
    )
    tiers = Tiers(index, cache, host_slots=load.host_slots)
    driver = _Driver(decoder, load)
    loop = EngineLoop(
        decoder,
        cache,
        index,
        LoopSettings(
            context_tokens_max=decoder.config.context_tokens,
            running_max=load.at_once,
            waiting_max=load.chats,
            step_tokens_max=512,
        ),
        tiers=tiers,
        instance="bench",
        clock=time.perf_counter,
        send=driver.receive,
    )
    started = time.perf_counter()
    while driver.feed(loop, load.at_once):
        loop.step()
    driver.outcome.seconds = time.perf_counter() - started
    driver.outcome.restored_pages = tiers.stats()["tier_restored_pages"]
    return driver.outcome
