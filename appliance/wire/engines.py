"""The server's engines as one: each request goes to the engine that holds its conversation.

Owns which engine has which request. Never: sends a request again, or moves one that was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

from appliance.errors import Conflict, EngineUnavailable
from appliance.wire.client import EngineClient
from appliance.wire.frames import AdminAnswer, AdminQuestion, Generate, Hello, Stats
from appliance.wire.pending import Event
from appliance.wire.routing import EngineLoad, conversation_key, preference, route, route_key

log = logging.getLogger("appliance.wire")


class Engines:
    """Clients of one or more engines, started and closed together. Use as `async with`.

    An engine that is down or has no room in its queue is passed over: its conversations go to another
    one, which computes them anew, and come back with their next request once it is there again.
    """

    def __init__(self, clients: Mapping[str, EngineClient], *, public: bytes) -> None:
        """`clients` by the engine's name; `public` is the namespace of text that all share."""
        assert clients
        self._clients = dict(clients)
        self._public = public
        # The engine of each request whose events are read, and how many of an engine's still wait.
        self._placed: dict[str, EngineClient] = {}
        self._waiting = dict.fromkeys(self._clients, 0)

    async def __aenter__(self) -> Self:
        for client in self._clients.values():
            client.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    @property
    def hello(self) -> Hello | None:
        """What the connected engine with the smallest context said; None while there is none.

        A prompt that fits into that context can go to any of them.
        """
        said = [client.hello for client in self._clients.values()]
        return min(
            (hello for hello in said if hello is not None),
            key=lambda hello: hello.context_tokens_max,
            default=None,
        )

    @property
    def ready(self) -> bool:
        """Whether `generate` would reach an engine now."""
        return any(self.ready_by_name.values())

    @property
    def ready_by_name(self) -> dict[str, bool]:
        """Which engines are connected."""
        return {name: client.ready for name, client in self._clients.items()}

    async def generate(
        self, request: Generate, *, seen_tokens: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send a request to its engine and yield its events, `Finished` last.

        As `EngineClient.generate`; raises EngineUnavailable when no engine is connected.
        """
        if request.request_id in self._placed:
            raise Conflict("this request_id is already in use", param="request_id")
        name = self._choose(request)
        client = self._placed[request.request_id] = self._clients[name]
        self._waiting[name] += 1
        is_waiting = True
        try:
            async with aclosing(client.generate(request, seen_tokens=seen_tokens)) as events:
                async for event in events:
                    if is_waiting:
                        is_waiting = False
                        self._waiting[name] -= 1
                    yield event
        finally:
            if is_waiting:
                self._waiting[name] -= 1
            del self._placed[request.request_id]

    def cancel(self, request_id: str, keep_tokens: int) -> None:
        """Stop a request where it runs; see `EngineClient.cancel`."""
        client = self._placed.get(request_id)
        if client is not None:
            client.cancel(request_id, keep_tokens)

    async def ask_each(self, *, timeout_s: float) -> dict[str, Stats | None]:
        """The statistics of each engine; None for one that does not answer in time."""

        async def ask(client: EngineClient) -> Stats | None:
            try:
                return await client.ask(timeout_s=timeout_s)
            except EngineUnavailable:
                return None

        answers = await asyncio.gather(*(ask(client) for client in self._clients.values()))
        return dict(zip(self._clients, answers, strict=True))

    async def question(
        self, conversation: bytes, question: AdminQuestion, *, timeout_s: float
    ) -> AdminAnswer:
        """The answer of the engine that a conversation's requests go to while nothing is in their way.

        Raises as `EngineClient.question`.
        """
        loads = [self._load(name, client.hello) for name, client in self._clients.items()]
        own = preference(conversation_key(conversation), loads)[0]
        return await self._clients[own.name].question(question, timeout_s=timeout_s)

    async def question_each(
        self, question: AdminQuestion, *, timeout_s: float
    ) -> list[AdminAnswer]:
        """The answers of all engines. Raises EngineUnavailable, once all have answered that do, with the
        names of those that do not: they may have missed the question, and the others have not."""
        clients = self._clients.values()
        answers = await asyncio.gather(
            *(client.question(question, timeout_s=timeout_s) for client in clients),
            return_exceptions=True,
        )
        away = []
        for name, answer in zip(self._clients, answers, strict=True):
            if isinstance(answer, EngineUnavailable):
                away.append(name)
            elif isinstance(answer, BaseException):
                raise answer
        if away:
            raise EngineUnavailable(
                f"No answer from {', '.join(away)} (of {len(self._clients)} engines): ask again once "
                "it is back; the others have done what was asked."
            )
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _choose(self, request: Generate) -> str:
        if len(self._clients) == 1:
            return next(iter(self._clients))
        loads = [self._load(name, client.hello) for name, client in self._clients.items()]
        hello = self.hello
        if hello is None:
            raise EngineUnavailable("The engine is starting; try again in a moment.")
        key = route_key(request, page_size=hello.page_size, public=self._public)
        chosen, own = route(key, loads), preference(key, loads)[0]
        assert chosen is not None
        if chosen is not own:
            log.info(
                "engine_passed_over",
                extra={
                    "request_id": request.request_id,
                    "engine": own.name,
                    "to": chosen.name,
                    "cause": "full" if own.is_up else "down",
                },
            )
        return chosen.name

    def _load(self, name: str, hello: Hello | None) -> EngineLoad:
        return EngineLoad(
            name=name,
            is_up=hello is not None,
            waiting=self._waiting[name],
            waiting_max=0 if hello is None else hello.waiting_max,
        )
