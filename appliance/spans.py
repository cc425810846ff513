"""Where requests spend their time, told to an OpenTelemetry collector; without one, nothing is done.

A trace is one request to the engine and has its id: what the log calls `engine_request_id`, without its
dashes. So server and engine tell of the same trace without passing anything on. Attributes are the
numbers and names that the log has. Never: text, token ids or keys; waits for the collector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from appliance.errors import ConfigError
from appliance.extras import install_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one request; times are seconds of `time.monotonic`.

    `request_id`: the engine's for it, or the HTTP request's own where it reached no engine.
    `moments`: when something happened in between. `failure`: a stable code.
    """

    name: str
    request_id: str
    started_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    moments: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class Tracer(Protocol):
    """Takes spans of one thread; `tell` never blocks, `close` waits for the last to be sent."""

    def tell(self, span: Span) -> None: ...
    def close(self) -> None: ...


class NoTracer:
    """Nobody listens."""

    def tell(self, span: Span) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing is open."""


ROOT = "server"
"""The service whose spans the others' are parts of."""


def tracer(endpoint: str | None, service: str) -> Tracer:
    """The tracer of a process, whose name is `service`.

    Raises ConfigError when an endpoint is set and its packages are not there.
    """
    if endpoint is None:
        return NoTracer()
    try:
        from appliance.otlp import OtlpTracer
    except ImportError as error:
        raise ConfigError(
            f"traces.endpoint needs packages that are not installed ({error.name}): "
            f"{install_command('traces')}"
        ) from error
    return OtlpTracer(endpoint, service, is_root=service == ROOT)
