"""A loop over a decoder that computes nothing and takes the time a cost model says, on its own clock.

Everything but the model's arithmetic is real: the loop, the prefix index, the page accounting.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from appliance import tokens
from appliance.engine.sequence import State
from appliance.engine.step_cost import StepShape
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import Sampling, Tokens
from tests.unit.engine.driver import Driver

CONTEXT_TOKENS = 8192
GREEDY = Sampling(temperature=0.0)

SMALL_CPU = (0.020, 0.003, 2e-6, 0.0019, 5e-7)
"""Seconds as a 135M model takes on two cores: fixed, a decode, its key, a token of prefill, its key."""


class TimedDecoder(Decoder):
    """The decoder given, without its arithmetic: every logit is 0, so token 0 is chosen."""

    def __init__(self, decoder: Decoder, spend: Callable[[StepShape], None]) -> None:
        vars(self).update(vars(decoder))
        self.config = replace(decoder.config, context_tokens=CONTEXT_TOKENS)
        self.spend = spend

    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        self.spend(shape_of(batch))
        return torch.zeros(len(batch.logit_rows), self.config.vocab_size)


def shape_of(batch: StepBatch) -> StepShape:
    """What the cost model looks at, read from the decoder's own input."""
    starts = tokens.unpack(batch.query_starts)
    decodes = decode_keys = prefill_tokens = prefill_keys = 0
    for place, context in enumerate(tokens.unpack(batch.context_lens)):
        count = starts[place + 1] - starts[place]
        if count == 1:
            decodes += 1
            decode_keys += context
        else:
            prefill_tokens += count
            prefill_keys += count * (context - count) + count * (count + 1) // 2
    return StepShape(
        decodes=decodes,
        decode_keys=decode_keys,
        prefill_tokens=prefill_tokens,
        prefill_keys=prefill_keys,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One step: when it ended, its work and its seconds."""

    at: float
    shape: StepShape
    seconds: float


class Simulation:
    """One engine under a load; `noise` is the spread of a step's time around its cost."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        costs: tuple[float, ...] = SMALL_CPU,
        noise: float = 0.1,
        seed: int = 1,
        pages: int = 4096,
        running_max: int = 16,
        waiting_max: int = 256,
        waiting_per_tenant_max: int | None = None,
        step_ms_max: float | None = None,
    ) -> None:
        self.steps: list[Took] = []
        self.first_token_at: dict[str, float] = {}
        self._silent: set[str] = set()
        self._random = random.Random(seed)
        self._costs = costs
        self._noise = noise
        self.driver = Driver(
            TimedDecoder(decoder, self._spend),
            pages=pages,
            running_max=running_max,
            waiting_max=waiting_max,
            waiting_per_tenant_max=waiting_per_tenant_max,
            step_tokens_max=512,
            context_tokens_max=CONTEXT_TOKENS,
            step_ms_max=step_ms_max,
        )

    def _spend(self, shape: StepShape) -> None:
        cost = sum(c * amount for c, amount in zip(self._costs, shape.parts, strict=True))
        seconds = cost * self._random.uniform(1 - self._noise, 1 + self._noise)
        self.driver.now += seconds
        self.steps.append(Took(at=self.driver.now, shape=shape, seconds=seconds))

    @property
    def now(self) -> float:
        return self.driver.now

    def ask(self, prompt_tokens: int, new_tokens: int, **options: object) -> str:
        """A request whose prompt nobody else has."""
        prompt = [self._random.randrange(1, 64) for _ in range(prompt_tokens)]
        request_id = self.driver.submit(
            prompt,
            new_tokens_max=new_tokens,
            sampling=GREEDY,
            **options,  # type: ignore[arg-type]
        )
        self._silent.add(request_id)
        return request_id

    def step(self) -> None:
        self.driver.loop.step()
        for request_id in list(self._silent):
            events = self.driver.events.get(request_id, [])
            if any(isinstance(event, Tokens) for event in events):
                self._silent.remove(request_id)
                self.first_token_at[request_id] = self.now

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if is_done():
                self.driver.check()
                return
            self.step()
        raise AssertionError("it never came to that")

    def finish(self) -> None:
        self.run_until(lambda: self.driver.loop.is_idle)

    def wait_for_first_token(self, request_id: str) -> float:
        """Seconds from now until the reply begins."""
        began = self.now
        self.run_until(lambda: request_id in self.first_token_at)
        return self.first_token_at[request_id] - began

    def running(self, tenant: bytes) -> int:
        members = self.driver.loop.sequences[State.RUNNING]
        return sum(sequence.tenant == tenant for sequence in members)

    def tokens_of(self, tenant: bytes) -> int:
        """How many tokens the replies of a tenant have."""
        asked = self.driver.requests.items()
        return sum(len(self.driver.reply(r)) for r, of in asked if of.tenant == tenant)

    def decode_seconds(self) -> list[float]:
        """The times of the steps in which replies grew."""
        return [took.seconds for took in self.steps if took.shape.decodes]
