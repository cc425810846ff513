"""Spans to an OpenTelemetry collector, by OTLP over HTTP, from a thread of the SDK's.

The only module that needs the extra `traces`. Never: waits for the collector; what does not fit into the
queue meanwhile is dropped.
"""

from __future__ import annotations

import hashlib
import secrets
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from appliance.spans import Span

QUEUE_MAX = 2048
EXPORT_TIMEOUT_S = 2.0
ATTRIBUTE_LETTERS_MAX = 256
TRACE_BYTES, SPAN_BYTES = 16, 8


class OtlpTracer:
    """A tracer of one process; `is_root`: its span of a request is the one that the others hang from."""

    def __init__(self, endpoint: str, service: str, *, is_root: bool) -> None:
        self._ids = _NextIds()
        self._is_root = is_root
        # Nothing is taken from the environment: what is told, and to whom, is in the settings.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({"service.name": f"appliance-{service}"}),
            id_generator=self._ids,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=ATTRIBUTE_LETTERS_MAX),
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX))
        self._tracer = self._provider.get_tracer("appliance")

    def tell(self, span: Span) -> None:
        """Put it into the queue."""
        trace, root = ids_of(span.request_id)
        context = Context()
        if not self._is_root:
            parent = SpanContext(trace, root, True, TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(parent), context)
        self._ids.trace = trace
        self._ids.span = root if self._is_root else secrets.randbits(8 * SPAN_BYTES) or 1
        # From seconds of `time.monotonic` to those since 1970.
        shift_s = time.time() - time.monotonic()

        def at_ns(at_s: float) -> int:
            return int((at_s + shift_s) * 1e9)

        told = self._tracer.start_span(
            span.name,
            context=context,
            kind=SpanKind.SERVER if self._is_root else SpanKind.INTERNAL,
            attributes={"request_id": span.request_id, **span.attributes},
            start_time=at_ns(span.started_s),
        )
        for name, moment_s in span.moments.items():
            told.add_event(name, timestamp=at_ns(moment_s))
        if span.failure is not None:
            told.set_status(StatusCode.ERROR, span.failure)
        told.end(end_time=at_ns(span.ended_s))

    def close(self) -> None:
        """Send what is left, for `EXPORT_TIMEOUT_S` and a little more at most."""
        self._provider.shutdown()


class _NextIds:
    """The numbers that the next span gets, in the form in which the SDK asks for them."""

    trace = 1
    span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span

    def is_trace_id_random(self) -> bool:
        return True


def ids_of(request_id: str) -> tuple[int, int]:
    """The trace's number, and that of its root span: a UUID is its own trace id."""
    bare = request_id.replace("-", "")
    is_uuid = len(bare) == 2 * TRACE_BYTES and all(c in "0123456789abcdef" for c in bare)
    digest = hashlib.blake2b(request_id.encode(), digest_size=TRACE_BYTES + SPAN_BYTES).digest()
    trace = int(bare, 16) if is_uuid else int.from_bytes(digest[:TRACE_BYTES])
    return trace or 1, int.from_bytes(digest[TRACE_BYTES:]) or 1
