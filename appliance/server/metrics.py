"""The server's own counters, in a registry of its own. Owns their names; never asks engine or
database."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from appliance.process_start import STARTED_AT_S
from appliance.prompt.messages import Role
from appliance.server.storage import Storage
from appliance.store.write_gate import Writes

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
        Gauge(
            "appliance_start_time_seconds",
            "When the server was started, in seconds since 1970.",
            registry=self.registry,
        ).set(STARTED_AT_S)

    def watch_streams(self, running: Callable[[], int]) -> None:
        """Where the number of running replies is read at each scrape."""
        self._streams.set_function(running)

    def watch_coverage(self, shares: Callable[[], Mapping[Role, float]]) -> None:
        """Where the index coverage by role is read at each scrape."""
        self.registry.register(_CoverageGauge(shares))

    def watch_storage(self, storage: Storage) -> None:
        """Where the state of journal and writers is read at each scrape."""
        self.registry.register(_StorageGauges(storage))

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

    def exposition(self, engines: Mapping[str, Mapping[str, float] | None]) -> bytes:
        """The Prometheus text of everything, with the gauges of each engine (None: it is away)."""
        text = generate_latest(self.registry)
        gauges = CollectorRegistry()
        gauges.register(_EngineGauges(engines))
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


class _StorageGauges:
    """The journal's depth and age, and what was written at the price of how many transactions."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def collect(self) -> list[Metric]:
        state = self._storage.state()
        tallies = dict(zip(("direct", "journal"), self._storage.tallies(), strict=True))
        batches = CounterMetricFamily(
            "appliance_write_batches",
            "Committed batches of turns or new conversations: one transaction ID each.",
            labels=["from"],
        )
        turns = CounterMetricFamily(
            "appliance_turns_written", "Finished turns in those batches.", labels=["from"]
        )
        for source, tally in tallies.items():
            batches.add_metric([source], tally.batches)
            turns.add_metric([source], tally.turns)
        writes = GaugeMetricFamily(
            "appliance_database_writes",
            "1 for how the database takes writes: open, closed or maintenance.",
            labels=["state"],
        )
        for one in Writes:
            writes.add_metric([one.value], float(one is state.writes))
        gauges = {
            "entries": ("Turns and new conversations that wait for the database.", state.entries),
            "bytes": ("Bytes of the journal in use.", state.bytes),
            "bytes_max": ("Bytes that the journal may use.", state.bytes_max),
            "oldest_seconds": ("How long the oldest entry waits.", state.oldest_s),
        }
        return [
            batches,
            turns,
            writes,
            *(
                GaugeMetricFamily(f"appliance_journal_{name}", about, value=value)
                for name, (about, value) in gauges.items()
            ),
        ]


class _EngineGauges:
    """The engines' answers as gauges `appliance_engine_*`; of several, each has the label `engine`."""

    def __init__(self, engines: Mapping[str, Mapping[str, float] | None]) -> None:
        self._engines = engines

    def collect(self) -> list[GaugeMetricFamily]:
        up = self._family("up", "Whether the engine answers.")
        families = [up]
        for engine, values in self._engines.items():
            self._add(up, engine, float(bool(values)))
        for name in sorted({name for values in self._engines.values() for name in values or ()}):
            family = self._family(name, "As told by the engine.")
            for engine, values in self._engines.items():
                if values and name in values:
                    self._add(family, engine, values[name])
            families.append(family)
        return families

    def _family(self, name: str, about: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"appliance_engine_{name}", about, labels=self._labels)

    def _add(self, family: GaugeMetricFamily, engine: str, value: float) -> None:
        family.add_metric([engine] if self._labels else [], value)

    @property
    def _labels(self) -> list[str]:
        return ["engine"] if len(self._engines) > 1 else []
