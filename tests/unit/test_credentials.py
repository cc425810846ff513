"""Secrets that a service is handed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from appliance.cli.db_options import target_of
from appliance.config import ApiKey, Config, ModelSource, Paths
from appliance.credentials import with_credentials
from appliance.dbops.target import Target
from appliance.errors import ConfigError

CONFIG = Config(
    model=ModelSource(path=Path("/m"), name="m"),
    paths=Paths(data_dir=Path("/d"), run_dir=Path("/r")),
)
DIGEST = "ab" * 32
URL = "postgresql://u:secret@db/chat"


def test_without_credentials_the_configuration_is_as_it_was(tmp_path: Path) -> None:
    assert with_credentials(CONFIG, {}) == CONFIG
    assert with_credentials(CONFIG, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == CONFIG


def test_an_address_and_keys_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "appliance_database_url").write_text(f"{URL}\n")
    (tmp_path / "appliance_api_keys.toml").write_text(
        f'[[api_keys]]\ntenant = "ann"\nsha256 = "{DIGEST}"\n'
    )
    found = with_credentials(CONFIG, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert found.database.url == URL
    assert found.server.api_keys == (ApiKey(tenant="ann", sha256=DIGEST),)


@pytest.mark.parametrize(
    "text", ["sk-SECRET", '[[api_keys]]\ntenant = "a"\nsha256 = "sk-SECRET"\n']
)
def test_a_wrong_file_is_refused_by_name_and_not_quoted(tmp_path: Path, text: str) -> None:
    (tmp_path / "appliance_api_keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"api_keys\.toml") as told:
        with_credentials(CONFIG, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert "SECRET" not in told.value.message


def test_a_database_command_of_a_service_has_the_services_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "appliance.toml"
    written.write_text(
        '[model]\npath = "/srv/m"\nname = "m"\n[paths]\ndata_dir = "data"\nrun_dir = "run"\n',
        encoding="utf-8",
    )
    handed = tmp_path / "handed"
    handed.mkdir()
    (handed / "appliance_database_url").write_text(f"{URL}\n", encoding="utf-8")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(handed))
    options = argparse.Namespace(url=None, data_dir=None, config=written)
    assert target_of(options) == Target(url=URL)
