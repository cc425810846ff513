"""Drives a real loop over a real model and index, and checks every invariant after every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path

import torch

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.invariants import check_engine
from appliance.engine.loop import EngineLoop, LoopSettings
from appliance.engine.sequence import Sequence, State
from appliance.engine.tier_files import open_disk
from appliance.engine.tiers import Tiers
from appliance.engine.trace import TraceWriter
from appliance.model.decoder import Decoder
from appliance.wire.frames import (
    Admitted,
    Finished,
    Frame,
    Generate,
    Node,
    Priority,
    Sampling,
    TokenLogprobs,
    Tokens,
)
from tests.reference.uncached import uncached_logits

GREEDY = Sampling(temperature=0.0, logprobs=20)
TOLERANCE = 1e-4
INT8_TOLERANCE = 0.1
"""A rounding of float32 can move a number of an int8 row by one. Measured on the tiny model: cutting a
prompt differently, without any cache, moves a log-probability by up to 0.054, and half of all replies by
less than 0.00001."""
STEPS_MAX = 5000
CONNECTION = 1


class Driver:
    """An engine loop whose events are recorded by request id."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        pages: int = 64,
        page_size: int = 16,
        running_max: int = 8,
        waiting_max: int = 64,
        step_tokens_max: int = 64,
        context_tokens_max: int | None = None,
        host_slots: int = 0,
        pin_pages_max: int = 0,
        disk_slots: int = 0,
        kv_slots: Path | None = None,
        kv_dtype: torch.dtype = torch.float32,
        waiting_per_tenant_max: int | None = None,
        step_ms_max: float | None = None,
        trace: TraceWriter | None = None,
    ) -> None:
        self.decoder = decoder
        self.page_size = page_size
        self.cache = decoder.new_cache(pages, page_size, kv_dtype)
        self.disk = None
        if kv_slots is not None:
            self.disk = open_disk(kv_slots, disk_slots, self.cache, decoder.fingerprint)
        self.index = PrefixIndex(
            page_size=page_size,
            pages=pages,
            pin_pages_max=pin_pages_max,
            host_slots=host_slots,
            disk_slots=disk_slots,
        )
        self.tiers = Tiers(self.index, self.cache, host_slots=host_slots, disk=self.disk)
        self.events: dict[str, list[Frame]] = {}
        self.requests: dict[str, Generate] = {}
        self.prompts: dict[str, list[int]] = {}
        self.now = 0.0
        self.loop = EngineLoop(
            decoder,
            self.cache,
            self.index,
            LoopSettings(
                context_tokens_max=context_tokens_max
                or min(pages * page_size, decoder.config.context_tokens),
                running_max=running_max,
                waiting_max=waiting_max,
                step_tokens_max=step_tokens_max,
                waiting_per_tenant_max=waiting_per_tenant_max,
                step_ms_max=step_ms_max,
            ),
            tiers=self.tiers,
            instance="engine",
            clock=lambda: self.now,
            send=self._record,
            remember=lambda sequence, written: self.remember(sequence, written),
            trace=trace,
        )
        self.remember: Callable[[Sequence, int], None] = lambda _sequence, _written: None
        self._ids = (f"r{number}" for number in itertools.count(1))

    def _record(self, connection: int, frame: Frame) -> None:
        assert isinstance(frame, Admitted | Tokens | Finished)
        self.events.setdefault(frame.request_id, []).append(frame)

    def submit(
        self,
        prompt: Items[int],
        *,
        new_tokens_max: int = 8,
        sampling: Sampling = GREEDY,
        stop: Items[int] = (),
        closing: Items[int] = (),
        namespace: bytes = b"tenant",
        stretches: list[tuple[bytes, int]] | None = None,
        connection: int = CONNECTION,
        request_id: str | None = None,
        after: Node | None = None,
        conversation: bytes = b"",
        tenant: bytes = b"",
        priority: Priority = "interactive",
        deadline_ms: int | None = None,
    ) -> str:
        """Queue a request for a prompt, of which what follows `after` is sent; returns its id."""
        request_id = request_id or next(self._ids)
        self.prompts[request_id] = list(prompt)
        request = Generate(
            request_id=request_id,
            after=after,
            conversation=conversation,
            token_ids=tokens.pack(prompt[0 if after is None else after.tokens :]),
            stretches=stretches or [(namespace, len(prompt))],
            sampling=sampling,
            new_tokens_max=new_tokens_max,
            stop_token_ids=list(stop),
            closing=tokens.pack(closing),
            tenant=tenant,
            priority=priority,
            deadline_ms=deadline_ms,
        )
        self.requests[request_id] = request
        self.loop.submit(connection, request)
        return request_id

    def cancel(self, request_id: str, keep_tokens: int, connection: int = CONNECTION) -> None:
        self.loop.cancel(connection, request_id, keep_tokens)
        self.check()

    def step(self) -> None:
        self.now += 0.01
        self.loop.step()
        self.check()

    def check(self) -> None:
        check_engine(self.loop.sequences, self.index, self.page_size)

    def finish(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(STEPS_MAX):
            if self.loop.is_idle:
                return
            self.step()
        raise AssertionError(f"still busy after {STEPS_MAX} steps")

    def run(self, prompt: Items[int], **options: object) -> str:
        """Submit one request and finish everything; returns its id."""
        request_id = self.submit(prompt, **options)  # type: ignore[arg-type]
        self.finish()
        return request_id

    def count(self, state: State) -> int:
        return len(self.loop.sequences[state])

    def admitted(self, request_id: str) -> Admitted | None:
        found = [e for e in self.events.get(request_id, []) if isinstance(e, Admitted)]
        assert len(found) <= 1
        return found[0] if found else None

    def hit(self, request_id: str) -> int:
        admitted = self.admitted(request_id)
        assert admitted is not None
        return admitted.prefix_hit_tokens

    def finished(self, request_id: str) -> Finished | None:
        events = self.events.get(request_id, [])
        found = [event for event in events if isinstance(event, Finished)]
        assert len(found) <= 1
        if found:
            assert events[-1] is found[0], "an event came after Finished"
        return found[0] if found else None

    def error_code(self, request_id: str) -> str | None:
        finished = self.finished(request_id)
        assert finished is not None
        return finished.error_code

    def reason(self, request_id: str) -> str:
        finished = self.finished(request_id)
        assert finished is not None
        return finished.reason

    def node(self, request_id: str) -> Node:
        finished = self.finished(request_id)
        assert finished is not None
        assert finished.node is not None
        return finished.node

    def reply(self, request_id: str) -> list[int]:
        return [
            token_id
            for event in self.events.get(request_id, [])
            if isinstance(event, Tokens)
            for token_id in tokens.unpack(event.token_ids)
        ]

    def logprobs(self, request_id: str) -> list[TokenLogprobs]:
        return [
            entry
            for event in self.events.get(request_id, [])
            if isinstance(event, Tokens)
            for entry in event.logprobs or []
        ]

    def compare_with_recomputation(self, request_id: str) -> None:
        """The reply and its log-probabilities equal those of a forward pass without any cache."""
        prompt = self.prompts[request_id]
        reply = self.reply(request_id)
        if not reply:
            return
        dtype = self.cache.data.dtype
        tolerance = INT8_TOLERANCE if dtype == torch.int8 else TOLERANCE
        logits = uncached_logits(self.decoder, prompt + reply, dtype)
        rows = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        for place, (token_id, row) in enumerate(zip(reply, rows, strict=True)):
            assert float(row.max() - row[token_id]) < tolerance, (
                f"{request_id}: token {place} is {token_id}, not {int(row.argmax())}"
            )
        for entry, row in zip(self.logprobs(request_id), rows, strict=True):
            for token_id, logprob in [(entry.token_id, entry.logprob), *entry.top]:
                assert abs(float(row[token_id]) - logprob) < tolerance
