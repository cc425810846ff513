"""Which database a command of `appliance db` means, by what exists, and that it says so first."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from appliance.cli import db_choice
from appliance.cli.db_choice import choose, chosen
from appliance.cli.main import main
from appliance.credentials import load_as_service
from appliance.errors import ConfigError

URL = "postgresql://chat:secret@db.example:5433/app"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed, and a user without a demo."""
    monkeypatch.setattr(db_choice, "CONFIG", tmp_path / "etc" / "appliance.toml")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    return tmp_path


def installed(machine: Path) -> Path:
    """An installed appliance's settings."""
    config = machine / "etc" / "appliance.toml"
    (config.parent / "credentials").mkdir(parents=True)
    config.write_text(
        '[model]\npath = "/srv/m"\nname = "m"\n[paths]\ndata_dir = "/var/lib/x"\nrun_dir = "/run/x"\n'
    )
    return config


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"url": None, "data_dir": None, "config": None, **given})


def said(asked: argparse.Namespace) -> str:
    return chosen(asked, choose(asked))


def test_by_what_exists_the_installed_one_or_the_demo_is_meant(machine: Path) -> None:
    demo = machine / "home" / "appliance"
    assert said(options()) == f"database of this user's demo: {demo}/postgres"
    config = installed(machine)
    asked = options()
    assert said(asked) == "database of the installed appliance: /var/lib/x/postgres"
    assert asked.config == config
    demo.mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"--config {config} or --data-dir {demo}"):
        choose(options())


def test_a_pooler_is_no_server_to_an_operator(machine: Path) -> None:
    config = installed(machine)
    with config.open("a") as file:
        file.write(f'[database]\nurl = "{URL}"\npooling = "transaction"\n')
    with pytest.raises(ConfigError, match=r"pooler.*name the server itself with --url"):
        said(options())
    assert said(options(url=URL)) == "database: db.example:5433/app"


def test_a_command_that_asks_an_appliance_means_the_same_one(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = machine / "home" / "appliance"
    asked = (["experiment", "status"], ["prompt", "history", "ada"], ["cache", "stats"])
    for words in asked:
        assert main(words) == 2
        assert f"nobody listens at {demo}/run/" in capsys.readouterr().err
    config = installed(machine)
    for words in asked:
        assert main(words) == 2
        assert "nobody listens at /run/x/" in capsys.readouterr().err
    demo.mkdir(parents=True)
    for words in (*asked, ["experiment", "check"]):
        assert main(words) == 2
        assert f"--config {config} or --data-dir {demo}" in capsys.readouterr().err


def test_an_option_decides_whatever_exists(machine: Path) -> None:
    config = installed(machine)
    (machine / "home" / "appliance").mkdir(parents=True)
    assert said(options(url=URL)) == "database: db.example:5433/app"
    assert said(options(data_dir=Path("/d"))) == "database: /d/postgres"
    assert said(options(config=config)) == (
        "database of the installed appliance: /var/lib/x/postgres"
    )


def test_a_person_has_the_services_credentials(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = installed(machine)
    (config.parent / "credentials" / "database_url").write_text(f"{URL}\n")
    assert said(options()) == "database of the installed appliance: db.example:5433/app"
    # What a service is handed comes before.
    assert load_as_service(config).database.url == URL
    assert main(["db", "backup", "--into", str(machine / "b")]) == 2
    told = capsys.readouterr()
    assert "has a keeper of its own" in told.err
    assert "secret" not in told.err + told.out


def test_who_may_not_read_the_credentials_is_told_so_where_they_matter(machine: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone can be somebody else")
    config = installed(machine)
    (config.parent / "credentials").chmod(0o700)
    for folder in (machine, *machine.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    config.chmod(0o644)
    assert "credential database_url: " in as_stranger(config)
    data = machine / "data"
    (data / "postgres").mkdir(parents=True)
    config.write_text(config.read_text().replace("/var/lib/x", str(data)))
    assert as_stranger(config) == str(data)


def as_stranger(config: Path) -> str:
    """What another user reads, in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(61000)
            os.setuid(61000)
            os.write(writing, str(load_as_service(config).paths.data_dir).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, encoding="utf-8") as words:
        return words.read()


def test_screens_begin_with_the_database_and_json_stays_json(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("status", "diagnose", "plan", "run", "verify"):
        assert main(["db", command]) == 2
        told = capsys.readouterr()
        assert told.out == f"database of this user's demo: {machine}/home/appliance/postgres\n"
        assert main(["db", command, "--json"]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("appliance: database of this user's demo:")
    assert main(["db", "stop"]) == 2
    assert capsys.readouterr().err.startswith("appliance: database of this user's demo:")
