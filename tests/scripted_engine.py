"""An engine that says what a test tells it, over the real wire protocol on a real unix socket.

For cases that need an exact script of tokens, failures or delays. Computes nothing and caches nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance import tokens
from appliance.wire.frames import (
    PROTOCOL,
    Admitted,
    Ask,
    Cancel,
    Done,
    Finished,
    Frame,
    FrameSplitter,
    Generate,
    Hello,
    Node,
    PurgeAll,
    Stats,
    TokenLogprobs,
    Tokens,
    decode_from_server,
    encode,
)

FINGERPRINT = "5c" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one request gets: waits in seconds, token ids, and how it ends after them.

    After `token_ids` the last one is repeated when `forever`, a request `fails` with that code, or the
    reply goes on with a stop token. One that is not admitted gets its end at once. With `leaves_node` the
    engine knows where a reply ended, and takes a request that goes on from there.
    """

    token_ids: tuple[int, ...] = ()
    forever: bool = False
    fails: str | None = None
    retry_after_s: int | None = None
    is_admitted: bool = True
    prefill_s: float = 0.0
    token_s: float = 0.0
    prefix_hit_tokens: int = 0
    leaves_node: bool = False


class ScriptedEngine:
    """Serves one socket. `script` is used by requests that arrive from then on."""

    def __init__(
        self,
        socket_path: Path,
        *,
        vocab_size: int,
        context_tokens: int = 2048,
        running_max: int = 64,
    ) -> None:
        self.script = Script()
        self.choose: Callable[[Generate], Script] = lambda _: self.script
        self.generated: list[Generate] = []
        self.started: list[str] = []
        self.cancelled: dict[str, int] = {}
        self.purges = 0
        self.new_tokens = 0
        self.running = 0
        self.waiting = 0
        self._path = socket_path
        self._slots = asyncio.Semaphore(running_max)
        self._hello = Hello(
            protocol=PROTOCOL,
            pid=os.getpid(),
            model_fingerprint=FINGERPRINT,
            vocab_size=vocab_size,
            context_tokens_max=context_tokens,
            page_size=16,
            pages_total=4096,
            waiting_max=64,
            device="script",
        )
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._connection, self._path)

    async def stop(self) -> None:
        """Close the socket and every connection, as a killed engine does."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        with suppress(FileNotFoundError):
            self._path.unlink()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        splitter = FrameSplitter()
        mine: set[str] = set()
        writer.write(encode(self._hello))
        try:
            while data := await reader.read(65536):
                for body in splitter.feed(data):
                    self._handle(decode_from_server(body), writer, mine)
        except ConnectionError:
            return
        finally:
            self._writers.discard(writer)
            for request_id in mine:
                if request_id in self._tasks:
                    self._tasks[request_id].cancel()
            writer.close()

    def _handle(self, frame: Frame, writer: asyncio.StreamWriter, mine: set[str]) -> None:
        if isinstance(frame, Generate):
            self.generated.append(frame)
            mine.add(frame.request_id)
            run = asyncio.ensure_future(self._run(frame, self.choose(frame), writer))
            self._tasks[frame.request_id] = run
            run.add_done_callback(lambda _: self._never_began(frame, writer))
        elif isinstance(frame, Cancel):
            self.cancelled[frame.request_id] = frame.keep_tokens
            task = self._tasks.get(frame.request_id)
            if task is not None:
                task.cancel()
        elif isinstance(frame, PurgeAll):
            self.purges += 1
            writer.write(encode(Done(request_id=frame.request_id, pages=self.purges)))
        else:
            assert isinstance(frame, Ask)
            values = {"running": float(self.running), "new_tokens": float(self.new_tokens)}
            writer.write(encode(Stats(request_id=frame.request_id, values=values)))

    def _never_began(self, request: Generate, writer: asyncio.StreamWriter) -> None:
        """A task that is cancelled before its first step runs nothing, not even its `finally`."""
        if self._tasks.pop(request.request_id, None) is not None:
            _write(
                writer, Finished(request_id=request.request_id, reason="cancelled", new_tokens=0)
            )

    async def _run(self, request: Generate, script: Script, writer: asyncio.StreamWriter) -> None:
        sent = 0
        ending = Finished(request_id=request.request_id, reason="cancelled", new_tokens=0)
        self.waiting += 1
        try:
            async with self._slots:
                self.started.append(request.request_id)
                self.running += 1
                try:
                    async for frame in _frames(request, script):
                        if isinstance(frame, Tokens):
                            sent += 1
                            self.new_tokens += 1
                        if isinstance(frame, Finished):
                            ending = frame
                        else:
                            _write(writer, frame)
                finally:
                    self.running -= 1
        except asyncio.CancelledError:
            ending = Finished(request_id=request.request_id, reason="cancelled", new_tokens=sent)
        finally:
            self.waiting -= 1
            del self._tasks[request.request_id]
            _write(writer, ending)


def _write(writer: asyncio.StreamWriter, frame: Frame) -> None:
    if not writer.transport.is_closing():
        writer.write(encode(frame))


async def _frames(request: Generate, script: Script) -> AsyncIterator[Frame]:
    request_id = request.request_id
    if script.is_admitted:
        yield Admitted(
            request_id=request_id,
            prompt_tokens=tokens.count(request.token_ids),
            prefix_hit_tokens=script.prefix_hit_tokens,
            queue_wait_ms=0.0,
        )
    await asyncio.sleep(script.prefill_s)
    sent = 0
    pending = list(script.token_ids)
    while sent < request.new_tokens_max:
        if pending:
            token_id = pending.pop(0)
        elif script.forever:
            token_id = script.token_ids[-1]
        elif script.fails is not None:
            yield Finished(
                request_id=request_id,
                reason="failed",
                new_tokens=sent,
                error_code=script.fails,
                error_message="RuntimeError('boom /srv/secret/path')",
                retry_after_s=script.retry_after_s,
            )
            return
        else:
            token_id = request.stop_token_ids[0]
        if token_id in request.stop_token_ids:
            node = _node(request, sent) if script.leaves_node else None
            yield Finished(request_id=request_id, reason="stop", new_tokens=sent, node=node)
            return
        yield Tokens(
            request_id=request_id,
            token_ids=tokens.pack([token_id]),
            logprobs=_logprobs(request, token_id),
        )
        sent += 1
        await asyncio.sleep(script.token_s)
    yield Finished(request_id=request_id, reason="length", new_tokens=sent)


def _node(request: Generate, new_tokens: int) -> Node:
    """The end of a reply that ended by itself: prompt, reply and what closes it."""
    before = 0 if request.after is None else request.after.tokens
    asked = tokens.count(request.token_ids) + tokens.count(request.closing)
    return Node(instance="scripted", number=1, tokens=before + asked + new_tokens)


def _logprobs(request: Generate, token_id: int) -> list[TokenLogprobs] | None:
    alternatives = request.sampling.logprobs
    if alternatives is None:
        return None
    top = [(token_id, -0.25)] * min(alternatives, 1)
    return [TokenLogprobs(token_id=token_id, logprob=-0.25, top=top)]
