"""The server's own counters, in a registry of its own. Owns their names; never asks the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from appliance.prompt.messages import Role

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts requests, first tokens and tokens; `exposition` renders them for a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "appliance_requests",
            "Finished HTTP requests.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._ttft = Histogram(
            "appliance_ttft_seconds",
            "From a request's arrival to the first text of its reply.",
            buckets=_TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self._tokens = Counter(
            "appliance_tokens",
            "Tokens of prompts found in the cache, tokens of prompts computed, tokens generated.",
            ["kind"],
            registry=self.registry,
        )
        self._streams = Gauge(
            "appliance_streams_running",
            "Requests that are generating or waiting to.",
            registry=self.registry,
        )

    def watch_streams(self, running: Callable[[], int]) -> None:
        """Where the number of running replies is read at each scrape."""
        self._streams.set_function(running)

    def watch_coverage(self, shares: Callable[[], Mapping[Role, float]]) -> None:
        """Where the index coverage by role is read at each scrape."""
        self.registry.register(_CoverageGauge(shares))

    def count_request(self, *, method: str, route: str, status: int) -> None:
        """One HTTP request ended."""
        self._requests.labels(method=method, route=route, status=str(status)).inc()

    def count_first_text(self, seconds: float) -> None:
        """A reply's first text went out this long after its request came in."""
        self._ttft.observe(seconds)

    def count_tokens(self, *, prompt: int, cached: int, new: int) -> None:
        """A reply ended: tokens of its prompt, how many of them were cached, tokens generated."""
        self._tokens.labels(kind="prompt_cached").inc(cached)
        self._tokens.labels(kind="prompt_computed").inc(prompt - cached)
        self._tokens.labels(kind="generated").inc(new)

    def exposition(self, engine: Mapping[str, float] | None) -> bytes:
        """The Prometheus text of everything, with the engine's gauges (None: the engine is away)."""
        text = generate_latest(self.registry)
        gauges = CollectorRegistry()
        gauges.register(_EngineGauges(engine))
        return text + generate_latest(gauges)


class _CoverageGauge:
    """The share of a turn's tokens that the next turn found in the cache, by role."""

    def __init__(self, shares: Callable[[], Mapping[Role, float]]) -> None:
        self._shares = shares

    def collect(self) -> list[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "appliance_index_coverage",
            "Share of a turn's tokens that the next turn found in the cache.",
            labels=["role"],
        )
        for role, share in self._shares().items():
            gauge.add_metric([role], share)
        return [gauge]


class _EngineGauges:
    """One answer of the engine as gauges `appliance_engine_*`."""

    def __init__(self, values: Mapping[str, float] | None) -> None:
        self._values = values

    def collect(self) -> list[GaugeMetricFamily]:
        up = GaugeMetricFamily(
            "appliance_engine_up", "Whether the engine answers.", value=float(bool(self._values))
        )
        values = sorted((self._values or {}).items())
        return [up] + [
            GaugeMetricFamily(f"appliance_engine_{name}", "As told by the engine.", value=value)
            for name, value in values
        ]
