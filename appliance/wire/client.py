"""The server's side of the engine's socket (asyncio). Never: sees text, or sends a request again.

One connection carries all requests. When it is lost, requests in flight fail with EngineUnavailable
and the client connects again, forever. Nothing grows without a bound: a request whose events are not
read is cancelled, and an engine that reads nothing is given no more requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import msgspec

from appliance.errors import Conflict, EngineUnavailable, Overloaded
from appliance.wire.frames import (
    PROTOCOL,
    AdminAnswer,
    AdminQuestion,
    Ask,
    Cancel,
    EngineFrame,
    Finished,
    Frame,
    FrameSplitter,
    Generate,
    Hello,
    Stats,
    decode_from_engine,
    encode,
)
from appliance.wire.pending import Event, Pending

log = logging.getLogger("appliance.wire")

Answer = Stats | AdminAnswer

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 2.0
HELLO_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 30.0
WATCH_EVERY_S = 1.0
FROZEN_AFTER_S = 30.0
"""An engine answers between two steps; a step takes a second or two, on a crowded machine ten."""
EVENTS_MAX = 1024
"""Events of one request that wait to be read, before the request is cancelled."""

WRITE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes the engine has not read yet, before new requests are refused."""


NOBODY_LISTENS = "nobody listens there"


class EngineClient:
    """A connection to one engine that heals itself. Use as `async with`, or `start` and `close`."""

    def __init__(
        self,
        socket_path: Path,
        *,
        events_max: int = EVENTS_MAX,
        frozen_after_s: float = FROZEN_AFTER_S,
        jitter: random.Random | None = None,
    ) -> None:
        self._path = socket_path
        self._frozen_after_s = frozen_after_s
        self._events_max = events_max
        self._jitter = jitter or random.Random()
        self._link: _Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._fault = NOBODY_LISTENS
        self._ask_numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect; returns at once."""
        assert self._keeper is None
        self._keeper = asyncio.create_task(self._keep_connected(), name="engine-client")

    async def close(self) -> None:
        """Disconnect, which cancels all requests in flight in the engine, and stop connecting."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    @property
    def hello(self) -> Hello | None:
        """What the connected engine said of itself; None while there is none."""
        return None if self._link is None else self._link.hello

    @property
    def ready(self) -> bool:
        """Whether `generate` would reach an engine now."""
        return self._link is not None

    @property
    def fault(self) -> str:
        """What the last attempt to connect met, for a person; of no meaning while `ready`."""
        return self._fault

    async def wait_ready(self) -> Hello:
        """Wait, without a bound, until an engine is connected."""
        while (hello := self.hello) is None:
            await self._is_ready.wait()
        return hello

    async def generate(
        self, request: Generate, *, seen_tokens: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send a request and yield its events, `Finished` last.

        Closed early (or its task cancelled), the request is cancelled in the engine, once; of the
        reply, `seen_tokens()` tokens stay cached (those yielded so far when it is None), unless
        `cancel` said otherwise before. Raises
        EngineUnavailable when no engine is connected or the connection is lost, Overloaded when the
        engine reads nothing, Conflict when the request_id is in use.
        """
        link = self._connected()
        pending = link.open(request)
        try:
            while True:
                event = await pending.next_event()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            link.finish(request.request_id, None if seen_tokens is None else seen_tokens())

    def cancel(self, request_id: str, keep_tokens: int) -> None:
        """Stop a request, keeping the first `keep_tokens` of its reply in the cache.

        Its iterator goes on to `Finished`. Only the first call for a request counts; for one that is
        unknown or finished nothing happens.
        """
        if self._link is not None:
            self._link.cancel(request_id, keep_tokens)

    async def ask(self, *, check: bool = False, timeout_s: float = ASK_TIMEOUT_S) -> Stats:
        """The engine's statistics; with `check` its page accounting is proved first.

        Raises EngineUnavailable when there is no engine or it does not answer in time.
        """
        stats = await self._answer(Ask(request_id=self._ask_id(), check=check), timeout_s)
        assert isinstance(stats, Stats)
        return stats

    async def question(self, question: AdminQuestion, *, timeout_s: float) -> AdminAnswer:
        """The engine's answer to an operator's question; its `request_id` is given here.

        Raises as `ask`.
        """
        asked = msgspec.structs.replace(question, request_id=self._ask_id())
        answer = await self._answer(asked, timeout_s)
        assert not isinstance(answer, Stats)
        return answer

    def _ask_id(self) -> str:
        return f"ask-{next(self._ask_numbers)}"

    async def _answer(self, question: Ask | AdminQuestion, timeout_s: float) -> Answer:
        link = self._connected()
        try:
            async with asyncio.timeout(timeout_s):
                return await link.ask(question)
        except TimeoutError as error:
            raise EngineUnavailable(
                "The engine did not answer in time; try again in a moment."
            ) from error
        finally:
            link.forget_ask(question.request_id)

    def _connected(self) -> _Link:
        if self._link is None:
            raise EngineUnavailable("The engine is starting; try again in a moment.")
        return self._link

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            link = await self._connect()
            if link is not None:
                failures = 0
                await self._use(link)
            ceiling_s = min(BACKOFF_MIN_S * 2**failures, BACKOFF_MAX_S)
            # Full jitter, but never a busy loop: servers that lost one engine come back spread out.
            await asyncio.sleep(self._jitter.uniform(BACKOFF_MIN_S / 2, ceiling_s))
            failures = min(failures + 1, 16)

    async def _connect(self) -> _Link | None:
        """A link that said Hello, or None."""
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_unix_connection(
                lambda: _Link(self._events_max), str(self._path)
            )
        except OSError as error:
            is_nobody = isinstance(error, FileNotFoundError | ConnectionError)
            self._fault = NOBODY_LISTENS if is_nobody else f"it cannot be asked: {error.strerror}"
            return None
        self._fault = "it listens and says nothing: it stands still"
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await asyncio.shield(link.greeted)
        except TimeoutError:
            hello = None
        except asyncio.CancelledError:
            await link.close()
            raise
        if hello is not None and hello.protocol == PROTOCOL:
            return link
        theirs = None if hello is None else hello.protocol
        told = "another protocol" if theirs is None else f"protocol {theirs}"
        self._fault = f"it is of another version: it speaks {told}, this program {PROTOCOL}"
        log.error("engine_not_usable", extra={"protocol": theirs, "expected": PROTOCOL})
        await link.close()
        return None

    async def _use(self, link: _Link) -> None:
        """Serve requests over a link until it is lost."""
        assert link.hello is not None
        log.info("engine_connected", extra={"engine_pid": link.hello.pid})
        self._link = link
        self._is_ready.set()
        watching = asyncio.create_task(self._watch(link))
        try:
            await asyncio.shield(link.lost)
        finally:
            watching.cancel()
            self._link = None
            self._is_ready.clear()
            await link.close()
        log.warning("engine_lost", extra={"engine_pid": link.hello.pid})

    async def _watch(self, link: _Link) -> None:
        """Give a link up whose engine lives and does nothing: its streams would wait for ever."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                await self.ask(timeout_s=self._frozen_after_s)
            except EngineUnavailable:
                break
        log.error("engine_frozen", extra={"silent_s": self._frozen_after_s})
        await link.close()


class _Link(asyncio.Protocol):
    """One connection, from connect to loss."""

    def __init__(self, events_max: int) -> None:
        loop = asyncio.get_running_loop()
        self.hello: Hello | None = None
        self.greeted: asyncio.Future[Hello | None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._events_max = events_max
        self._splitter = FrameSplitter()
        self._requests: dict[str, Pending] = {}
        # Cancelled and not read any more, but the engine's Finished is still to come.
        self._ending: set[str] = set()
        self._asks: dict[str, asyncio.Future[Answer]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        error = EngineUnavailable(
            "The engine was lost and is starting again; try again in a moment."
        )
        for pending in self._requests.values():
            pending.fail(error)
        for answer in self._asks.values():
            if not answer.done():
                answer.set_exception(error)
        if not self.greeted.done():
            self.greeted.set_result(None)
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                self._handle(decode_from_engine(body))
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("bad_engine_frame", extra={"error": type(error).__name__})
            self._transport.abort()

    async def close(self) -> None:
        """Close at once and wait until it is done."""
        if not self.lost.done():
            self._transport.abort()
            await asyncio.shield(self.lost)

    def open(self, request: Generate) -> Pending:
        """Send a request and begin to collect its events."""
        if request.request_id in self._requests or request.request_id in self._ending:
            raise Conflict("this request_id is already in use", param="request_id")
        self._check_open()
        if self._transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            raise Overloaded("the engine does not take requests")
        pending = self._requests[request.request_id] = Pending(self._events_max)
        self._send(request)
        return pending

    def cancel(self, request_id: str, keep_tokens: int) -> None:
        """Send `Cancel`, unless it was sent or the request is finished."""
        pending = self._requests.get(request_id)
        if pending is not None and not pending.is_cancelled and not pending.is_finished:
            pending.is_cancelled = True
            self._send(Cancel(request_id=request_id, keep_tokens=keep_tokens))

    def finish(self, request_id: str, keep_tokens: int | None) -> None:
        """Nobody reads this request any more; None keeps the tokens that were read."""
        read_tokens = self._requests[request_id].yielded_tokens
        self.cancel(request_id, read_tokens if keep_tokens is None else keep_tokens)
        if not self._requests.pop(request_id).is_finished:
            self._ending.add(request_id)

    async def ask(self, ask: Ask | AdminQuestion) -> Answer:
        """Send a question and wait for its answer."""
        self._check_open()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asks[ask.request_id] = answer
        self._send(ask)
        return await answer

    def forget_ask(self, request_id: str) -> None:
        """The answer, should it still come, is dropped."""
        self._asks.pop(request_id, None)

    def _check_open(self) -> None:
        if self.lost.done() or self._transport.is_closing():
            raise EngineUnavailable(
                "The engine was lost and is starting again; try again in a moment."
            )

    def _send(self, frame: Frame) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode(frame))

    def _handle(self, frame: EngineFrame) -> None:
        if isinstance(frame, Hello):
            self.hello = frame
            if not self.greeted.done():
                self.greeted.set_result(frame)
        elif isinstance(frame, Answer):
            answer = self._asks.get(frame.request_id)
            if answer is not None and not answer.done():
                answer.set_result(frame)
        else:
            if isinstance(frame, Finished):
                self._ending.discard(frame.request_id)
            pending = self._requests.get(frame.request_id)
            if pending is not None and not pending.put(frame):
                self.cancel(frame.request_id, pending.queued_tokens)
