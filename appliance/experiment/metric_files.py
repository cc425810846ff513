"""The metrics there are: the program's own and an operator's, as files declare them.

A folder holds `metrics.yaml` and the SQL files that it names. Never: runs one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from appliance.errors import ConfigError
from appliance.experiment.metric import Direction, Group, Metric, Shape
from appliance.experiment.plain_yaml import plain_yaml
from appliance.unstorable import UNSTORABLE

METRICS_FILE = "metrics.yaml"
REPLIES = "replies"
"""The program's file of queries that counts the tokens of the first minutes, too."""

_SOURCE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?\Z")


class _Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `metrics.yaml`."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    title: Annotated[str, Meta(min_length=1, max_length=100)]
    unit: Annotated[str, Meta(min_length=1, max_length=40)]
    direction: Direction
    group: Group
    numerator: str
    denominator: str | None = None
    quantile: Annotated[float, Meta(gt=0, lt=1)] | None = None
    guardrail: Annotated[float, Meta(gt=0, le=10)] | None = None

    def metric(self) -> Metric:
        """The metric that it declares; raises ConfigError."""
        for field, text in (("title", self.title), ("unit", self.unit)):
            if UNSTORABLE.search(text) is not None:
                raise ConfigError(f"{self.name}: {field}: holds U+0000 or half of a character")
        for field, source in (("numerator", self.numerator), ("denominator", self.denominator)):
            if source is not None and _SOURCE.match(source) is None:
                raise ConfigError(
                    f"{self.name}: {field}: {source!r} is not of the form file.column"
                )
        if self.quantile is not None:
            if self.denominator is not None or "." in self.numerator:
                raise ConfigError(
                    f"{self.name}: a quantile is of observations: its numerator names a file alone, "
                    "and it has no denominator"
                )
            shape = Shape.QUANTILE
        else:
            shape = Shape.MEAN if self.denominator is None else Shape.RATIO
            if "." not in self.numerator or "." not in (self.denominator or "."):
                raise ConfigError(f"{self.name}: say which column of the file: file.column")
        return Metric(
            name=self.name,
            title=self.title,
            unit=self.unit,
            shape=shape,
            direction=self.direction,
            group=self.group,
            numerator=self.numerator,
            denominator=self.denominator,
            guardrail=self.guardrail,
            quantile=self.quantile,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Declarations by name, and the SQL of the files that they name."""

    by_name: Mapping[str, Metric]
    sql: Mapping[str, str]

    def of(self, *shapes: Shape) -> Iterator[Metric]:
        """Those of some shapes."""
        return (metric for metric in self.by_name.values() if metric.shape in shapes)

    def guarding(self) -> Metrics:
        """Those with a guardrail alone, and the files that they need."""
        by_name = {
            name: metric for name, metric in self.by_name.items() if metric.guardrail is not None
        }
        needed = _sources(by_name.values()) | {REPLIES}
        return Metrics(by_name=by_name, sql={name: self.sql[name] for name in sorted(needed)})


def load_metrics(own: Path | None = None) -> Metrics:
    """The program's metrics with those of an operator's folder, which may replace some by their names.

    Raises ConfigError naming the file and the entry.
    """
    found = _read(resources.files("appliance.experiment") / "metrics", "metrics", {})
    if own is None:
        return found
    more = _read(own, str(own), found.sql)
    return Metrics(by_name={**found.by_name, **more.by_name}, sql={**found.sql, **more.sql})


def _read(folder: Traversable, origin: str, known: Mapping[str, str]) -> Metrics:
    """The metrics of a folder, which may be over figures of the files that are `known`."""
    file = f"{origin}/{METRICS_FILE}"
    try:
        value = plain_yaml((folder / METRICS_FILE).read_text(encoding="utf-8"))
        declared = msgspec.convert(value, list[_Declared])
        metrics = [one.metric() for one in declared]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}") from error
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{file}: {name} is declared {names.count(name)} times")
    return Metrics(
        by_name={metric.name: metric for metric in metrics},
        sql={name: _sql(folder, origin, name, known) for name in sorted(_sources(metrics))},
    )


def _sources(metrics: Iterable[Metric]) -> set[str]:
    """The files that they name."""
    named = (source for one in metrics for source in (one.numerator, one.denominator) if source)
    return {source_of(source)[0] for source in named}


def _sql(folder: Traversable, origin: str, name: str, known: Mapping[str, str]) -> str:
    path = folder / f"{name}.sql"
    if name in known:
        if path.is_file():
            raise ConfigError(
                f"{origin}/{name}.sql: the program has a file of this name; take another"
            )
        return known[name]
    try:
        return path.read_text(encoding="utf-8").rstrip("; \t\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{origin}/{name}.sql: {why}") from error


def source_of(reference: str) -> tuple[str, str]:
    """(file, column) of a numerator or denominator; no column of observations."""
    file, _, column = reference.partition(".")
    return file, column
