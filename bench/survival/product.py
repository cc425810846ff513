"""A product to be tried hard: its configuration and its units. Never: starts a load or breaks one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config import (
    MIB,
    Config,
    DatabaseConfig,
    EngineConfig,
    ModelSource,
    Paths,
    ServerConfig,
    dump_config,
)
from bench.survival.units import ENTRY, Unit, Units

SERVER_WATCHDOG_S = 4.0
ENGINE_WATCHDOG_S = 6.0
"""15 and 120 s on a box, whose steps may be long and whose cores may be busy."""
SERVER = ServerConfig(drain_s=5, ping_interval_s=2, tokenizer_memo_bytes=4 * MIB)
"""The memo of texts is full early: what fills is no leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is run. `engine_program` in place of the real engine gets the socket's path as argument."""

    model: Path
    engine: EngineConfig
    database: DatabaseConfig = field(default_factory=DatabaseConfig)
    engine_program: str | None = None


def config_of(recipe: Recipe, folder: Path, data_dir: Path) -> Config:
    """The settings; sockets are in `folder`, and all that is kept is in `data_dir`."""
    run_dir = folder / "run"
    for place in (run_dir, data_dir):
        place.mkdir(exist_ok=True)
    return Config(
        model=ModelSource(path=recipe.model, name="survivor"),
        paths=Paths(data_dir=data_dir, run_dir=run_dir),
        server=SERVER,
        engine=recipe.engine,
        database=recipe.database,
    )


def units_of(recipe: Recipe, config: Config, folder: Path, environment: Mapping[str, str]) -> Units:
    """The three units over a configuration file in `folder`, in the order in which they are stopped."""
    path = folder / "appliance.toml"
    path.write_text(dump_config(config))
    named = ("--config", str(path))
    engine: tuple[str, ...] = (*ENTRY, "engine", *named)
    if recipe.engine_program is not None:
        engine = ("-m", recipe.engine_program, str(config.paths.engine_socket))
    return Units(
        (
            Unit(name="server", arguments=(*ENTRY, "server", *named), watchdog_s=SERVER_WATCHDOG_S),
            Unit(name="engine", arguments=engine, watchdog_s=ENGINE_WATCHDOG_S),
            Unit(name="postgres", arguments=(*ENTRY, "postgres", *named)),
        ),
        folder,
        {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_WAIT_POLICY": "passive", **environment},
    )
