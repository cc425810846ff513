"""Joins the step loop to the socket: frames become calls, events become bytes. Never: computes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from appliance._core import PrefixIndex
from appliance.engine import answers
from appliance.engine.admin import EngineAdmin
from appliance.engine.audit import Auditor
from appliance.engine.connections import Arrival, Connections, Disconnected, Received
from appliance.engine.invariants import check_engine
from appliance.engine.limits import EngineLimits
from appliance.engine.loop import EngineLoop
from appliance.engine.request_spans import RequestSpans
from appliance.engine.runner import DeviceLost, Runner
from appliance.engine.tier_files import open_disk
from appliance.engine.tiers import Tiers
from appliance.engine.trace import TraceWriter
from appliance.errors import GenerationFailed, ShuttingDown
from appliance.model.decoder import Decoder
from appliance.service_manager import NO_MANAGER, ServiceManager
from appliance.spans import NoTracer, Tracer
from appliance.wire.frames import (
    PROTOCOL,
    AdminQuestion,
    Ask,
    Cancel,
    Frame,
    Hello,
    Stats,
    encode,
)

log = logging.getLogger("appliance.engine")

FLUSH_S = 2.0
"""How long the last events may take to reach a server that reads slowly."""

SAVE_S = 5.0
"""How long the end may take to bring the cache to disk; half of what a supervisor waits."""

MARGIN_S = 10.0
"""What the service manager may wait beyond the sum of those: the last step, and the process's own end."""

EXIT_DRAINED = 0
EXIT_DEVICE_LOST = 1


class EngineService:
    """A loaded engine and its socket."""

    def __init__(
        self,
        decoder: Decoder,
        limits: EngineLimits,
        connections: Callable[[Hello], Connections],
        *,
        pid: int,
        drain_s: float,
        kv_slots: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        trace: TraceWriter | None = None,
        manager: ServiceManager = NO_MANAGER,
        tracer: Tracer | None = None,
    ) -> None:
        """Allocates the cache and warms the decoder; `connections` gets the finished `Hello`.

        `kv_slots`: the disk tier's file, if there may be one. `manager` hears when it serves, that its
        loop turns, and when it stops; `tracer` of each request. Raises ConfigError when it cannot be had.
        """
        cache = decoder.new_cache(limits.pages, limits.page_size, limits.kv_dtype)
        Runner(decoder, cache).warm_up(
            sequences_max=limits.loop.running_max, context_tokens_max=limits.loop.context_tokens_max
        )
        disk = None
        if kv_slots is not None:
            disk = open_disk(kv_slots, limits.disk_slots, cache, decoder.fingerprint)
        self._index = _new_index(limits, disk_slots=0 if disk is None else disk.slots)
        self._tiers = Tiers(self._index, cache, host_slots=limits.host_slots, disk=disk)
        self._page_size = limits.page_size
        self._pages_for_a_request = -(-limits.loop.context_tokens_max // limits.page_size)
        self._outbox: dict[int, bytearray] = {}
        self._spans = RequestSpans(tracer or NoTracer(), clock)
        self._auditor = Auditor(
            decoder,
            cache,
            self._index,
            self._tiers,
            tokens_per_minute=limits.audit_tokens_per_minute,
            clock=clock,
        )
        instance = uuid4().hex
        self._admin = EngineAdmin(
            self._index,
            self._tiers,
            self._auditor,
            instance=instance,
            model_fingerprint=decoder.fingerprint,
            page_size=limits.page_size,
            send=self._put,
        )
        self._loop = EngineLoop(
            decoder,
            cache,
            self._index,
            limits.loop,
            tiers=self._tiers,
            instance=instance,
            clock=clock,
            send=self._put,
            remember=self._auditor.remember,
            trace=trace,
        )
        self._clock = clock
        self._manager = manager
        self._drain_s = drain_s
        self._drain_until: float | None = None
        self._connections = connections(_hello(decoder, limits, pid))

    def stop(self) -> None:
        """Drain and end; a second call ends at once. For other threads and signal handlers."""
        self._connections.ask_stop()

    def serve(self) -> int:
        """Listen and run until `stop`; returns the exit code. Raises ConfigError before listening."""
        self._connections.open()
        log.info("engine_ready")
        self._manager.ready("serving")
        exit_code = EXIT_DEVICE_LOST
        try:
            self._run()
            exit_code = EXIT_DRAINED
            return exit_code
        except DeviceLost:
            log.critical("device_lost")
            return exit_code
        finally:
            self._loop.fail_all(
                GenerationFailed("the engine failed on this request")
                if self._drain_until is None
                else ShuttingDown("the engine is shutting down")
            )
            self._connections.send(self._outbox)
            self._connections.close(FLUSH_S)
            self._auditor.give_way()
            if exit_code == EXIT_DRAINED:
                self._tiers.save(SAVE_S)
            self._tiers.close()

    def _run(self) -> None:
        while True:
            for arrival in self._connections.receive(self._patience_s()):
                self._handle(arrival)
            self._manager.alive()
            if self._drain_until is not None and (
                self._loop.is_idle or self._clock() >= self._drain_until
            ):
                return
            self._audit()
            self._loop.step()
            outbox, self._outbox = self._outbox, {}
            self._connections.send(outbox)

    def _patience_s(self) -> float | None:
        """How long to wait for an arrival: not at all while there is work."""
        if not self._loop.is_idle or self._drain_until is not None:
            return 0.0
        waits = (self._auditor.wait_s(), self._manager.feed_every_s)
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _audit(self) -> None:
        """Idle time is the audit's; its pages are the requests' when they get scarce."""
        if self._loop.is_idle and self._drain_until is None:
            self._auditor.step()
        elif self._auditor.holds_pages:
            pages = self._index.stats()
            if pages["pages_free"] + pages["pages_evictable"] < self._pages_for_a_request:
                self._auditor.give_way()

    def _handle(self, arrival: Arrival) -> None:
        if isinstance(arrival, Received):
            self._handle_frame(arrival)
        elif isinstance(arrival, Disconnected):
            self._loop.disconnect(arrival.connection)
        elif self._drain_until is None:
            log.info("engine_draining", extra={"drain_s": self._drain_s})
            self._manager.stopping("draining", within_s=self._drain_s + FLUSH_S + SAVE_S + MARGIN_S)
            self._drain_until = self._clock() + self._drain_s
            self._connections.stop_listening()
            self._loop.refuse_waiting()
        else:
            self._drain_until = self._clock()

    def _handle_frame(self, received: Received) -> None:
        connection, frame = received.connection, received.frame
        if isinstance(frame, Cancel):
            self._loop.cancel(connection, frame.request_id, frame.keep_tokens)
        elif isinstance(frame, Ask):
            self._put(connection, self._answer(frame))
        elif isinstance(frame, AdminQuestion):
            self._admin.answer(connection, frame)
        elif self._drain_until is None:
            self._spans.arrived(connection, frame)
            self._loop.submit(connection, frame)
        else:
            error = ShuttingDown("the engine is shutting down")
            self._put(connection, answers.refused(frame.request_id, error))

    def _answer(self, ask: Ask) -> Stats:
        failure = None
        if ask.check:
            self._auditor.give_way()
            try:
                check_engine(self._loop.sequences, self._index, self._page_size)
            except AssertionError as error:
                log.error("check_failed", extra={"failure": str(error)})
                failure = str(error) or "an invariant is broken"
        values = self._loop.stats() | self._tiers.stats() | self._auditor.values
        return Stats(request_id=ask.request_id, values=values, check_failure=failure)

    def _put(self, connection: int, frame: Frame) -> None:
        self._spans.sent(connection, frame)
        self._outbox.setdefault(connection, bytearray()).extend(encode(frame))


def _new_index(limits: EngineLimits, *, disk_slots: int) -> PrefixIndex:
    return PrefixIndex(
        page_size=limits.page_size,
        pages=limits.pages,
        pin_pages_max=limits.pin_pages_max,
        host_slots=limits.host_slots,
        disk_slots=disk_slots,
    )


def _hello(decoder: Decoder, limits: EngineLimits, pid: int) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        pid=pid,
        model_fingerprint=decoder.fingerprint,
        vocab_size=decoder.config.vocab_size,
        context_tokens_max=limits.loop.context_tokens_max,
        page_size=limits.page_size,
        pages_total=limits.pages,
        waiting_max=limits.loop.waiting_max,
        device=str(decoder.device),
    )
