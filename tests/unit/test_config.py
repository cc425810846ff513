"""Configuration files: round trip, and errors that name the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import (
    ApiKey,
    Config,
    ModelSource,
    Paths,
    ServerConfig,
    dump_config,
    engine_configs,
    parse_config,
)
from appliance.errors import ConfigError

MINIMAL = '[model]\npath = "m"\nname = "m"\n[paths]\ndata_dir = "d"\nrun_dir = "/run/x"\n'


def test_a_configuration_survives_a_round_trip_through_toml() -> None:
    config = Config(
        model=ModelSource(path=Path('/m/"quoted"\\ é\x7f'), name="é"),
        paths=Paths(data_dir=Path("/d"), run_dir=Path("/r")),
        server=ServerConfig(api_keys=(ApiKey(tenant="a", sha256="0" * 64),), drain_s=2.5),
    )
    assert parse_config(dump_config(config), base=Path("/elsewhere")) == config


def test_relative_paths_are_relative_to_the_file() -> None:
    config = parse_config(MINIMAL, base=Path("/etc/appliance"))
    assert config.model.path == Path("/etc/appliance/m")
    assert config.paths.data_dir == Path("/etc/appliance/d")
    assert config.paths.run_dir == Path("/run/x")
    assert config.engine.trace_path is None
    traced = MINIMAL + '[engine]\ntrace_path = "t"\n'
    assert parse_config(traced, base=Path("/e")).engine.trace_path == Path("/e/t")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model", "end of document"),
        ("", "model"),
        (MINIMAL + "[server]\nprot = 1\n", "prot"),
        (MINIMAL + "[server]\nport = 70000\n", r"\$\.server\.port"),
        (MINIMAL + '[server]\nport = "80"\n', r"\$\.server\.port"),
        (MINIMAL + "[engine]\nrunning_max = 0\n", r"\$\.engine\.running_max"),
        (MINIMAL + "[engine]\nrunning_max = 900\n", "step_tokens_max"),
        (MINIMAL.replace('"m"', '""', 1), r"\$\.model\.path"),
        (MINIMAL + '[[server.api_keys]]\ntenant = "a"\nsha256 = "abc"\n', "sha256|pattern"),
        (
            MINIMAL + f'[[server.api_keys]]\ntenant = "b\\u0000b"\nsha256 = "{"0" * 64}"\n',
            r"\$\.server\.api_keys\[0\]\.tenant",
        ),
        (MINIMAL + '[engine]\ndevice = "gpu"\n', r"\$\.engine\.device"),
    ],
)
def test_a_bad_setting_is_named(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_config(text, base=Path("/"))


def test_each_engine_of_several_has_its_own_device_socket_and_file_of_pages() -> None:
    text = MINIMAL + '[engine]\ndevices = ["cuda:0", "cuda:1"]\ntrace_path = "t.trace"\n'
    config = parse_config(text, base=Path("/b"))
    assert parse_config(dump_config(config), base=Path("/b")) == config
    own = engine_configs(config)
    assert [one.engine.device for one in own] == ["cuda:0", "cuda:1"]
    assert [one.paths.engine_socket.name for one in own] == ["engine-0.sock", "engine-1.sock"]
    assert own[0].paths.kv_slots != own[1].paths.kv_slots
    assert own[1].engine.trace_path == Path("/b/t.trace.engine-1")
    alone = parse_config(MINIMAL, base=Path("/b"))
    assert engine_configs(alone) == (alone,)
    assert alone.paths.engine_socket.name == "engine.sock"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ('devices = ["cuda:0", "cuda:0"]', "cuda:0 twice"),
        ('devices = ["cpu"]\ndevice = "cpu"', "exclude each other"),
        ('devices = ["cuda"]', "devices"),
        ('devices = ["auto"]', "devices"),
    ],
)
def test_devices_that_contradict_are_refused(engine: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_config(MINIMAL + "[engine]\n" + engine + "\n", base=Path("/b"))
