"""The engine in this process, without sockets, server or database: what it does with the cores alone.

Never: chooses what is asked; prompts are made by the product's own code.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from appliance._core import PrefixIndex, set_kernel_threads
from appliance.chat.reply import remember
from appliance.config import EngineConfig
from appliance.engine.limits import fit_limits
from appliance.engine.loop import EngineLoop
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.kv_cache import bytes_per_page, kv_type
from appliance.prompt.chat_format.chat_format import End
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.chat_format.render import render
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import tenant_namespace
from appliance.wire.frames import Admitted, Finished, Frame, Generate, Sampling, Tokens
from bench.chat_load import Answer, Answerer, Failure, LoadResult, Talk

CONNECTION = 1
NAMESPACE = tenant_namespace("bench")


@dataclass(slots=True, kw_only=True, eq=False)
class _Live:
    started: float
    done: asyncio.Future[Finished]
    first_s: float | None = None
    reply: bytearray = field(default_factory=bytearray)
    prompt_tokens: int = 0
    hit_tokens: int = 0


class EngineAlone(Answerer):
    """A loop of steps. `steps`: seconds of each that computed a token of an answer."""

    def __init__(self, model: Path, config: EngineConfig) -> None:
        """`config.threads` must be set."""
        assert config.threads is not None
        shape = read_config(model)
        limits = fit_limits(
            config,
            model_context_tokens=shape.context_tokens,
            bytes_per_page=bytes_per_page(
                shape, config.page_size, kv_type(config.kv_dtype, on_gpu=False)
            ),
            cores=config.threads,
        )
        set_kernel_threads(limits.threads)
        decoder = load_model(model, config.device, limits.threads, weight_dtype=config.weight_dtype)
        self.steps: list[float] = []
        self._text = ModelText.load(model, now=datetime.now(UTC))
        self._live: dict[str, _Live] = {}
        self._ids = (f"r{number}" for number in count(1))
        self._loop = EngineLoop(
            decoder,
            decoder.new_cache(limits.pages, limits.page_size, limits.kv_dtype),
            PrefixIndex(page_size=limits.page_size, pages=limits.pages),
            limits.loop,
            instance="alone",
            clock=time.monotonic,
            send=self._receive,
        )

    async def run(self) -> None:
        """Step for as long as this task is not cancelled."""
        while True:
            if not self._loop.is_idle:
                sampled = self._loop.counters.new_tokens
                started = time.perf_counter()
                self._loop.step()
                if self._loop.counters.new_tokens > sampled:
                    self.steps.append(time.perf_counter() - started)
            await asyncio.sleep(0)

    async def answer(self, talk: Talk, new_tokens: int, *, turn: int, result: LoadResult) -> Answer:
        """Without stop tokens: it goes on to its last token."""
        prompt = render(self._text.chat_format, _prompt_messages(talk), End.REPLY)
        request = Generate(
            request_id=next(self._ids),
            token_ids=prompt.token_ids,
            stretches=list(prompt.stretches),
            sampling=Sampling(temperature=0),
            new_tokens_max=new_tokens,
            stop_token_ids=[],
            closing=prompt.closing,
        )
        live = _Live(started=time.perf_counter(), done=asyncio.get_running_loop().create_future())
        self._live[request.request_id] = live
        self._loop.submit(CONNECTION, request)
        finished = await live.done
        if finished.reason == "failed":
            raise Failure(f"{finished.error_code}: {finished.error_message}")
        whole_s = time.perf_counter() - live.started
        text = self._text.tokenizer.decode(bytes(live.reply))
        remember(self._text.tokenizer, NAMESPACE, text, bytes(live.reply))
        return Answer(
            turn=turn,
            first_s=whole_s if live.first_s is None else live.first_s,
            whole_s=whole_s,
            pieces=finished.new_tokens,
            text=text,
            prompt_tokens=live.prompt_tokens,
            cached_tokens=live.hit_tokens,
            new_tokens=finished.new_tokens,
        )

    def _receive(self, _connection: int, frame: Frame) -> None:
        if isinstance(frame, Admitted):
            live = self._live[frame.request_id]
            live.prompt_tokens, live.hit_tokens = frame.prompt_tokens, frame.prefix_hit_tokens
        elif isinstance(frame, Tokens):
            live = self._live[frame.request_id]
            live.reply += frame.token_ids
            if live.first_s is None:
                live.first_s = time.perf_counter() - live.started
        elif isinstance(frame, Finished):
            self._live.pop(frame.request_id).done.set_result(frame)


def _prompt_messages(talk: Talk) -> list[PromptMessage]:
    roles: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
    return [
        PromptMessage(
            name=f"messages[{index}]",
            role=roles[message["role"]],
            zone=Zone.CHARACTER if message["role"] == "system" else Zone.HISTORY,
            content=message["content"],
            namespace=NAMESPACE,
        )
        for index, message in enumerate(talk.messages)
    ]
