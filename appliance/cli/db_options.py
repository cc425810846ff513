"""The options that `appliance db` commands share: which database is meant, and JSON.

Never: connects to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.config import Config
    from appliance.dbops.target import Target


def add_target(parser: argparse.ArgumentParser) -> None:
    """`--url`, `--data-dir`, `--config`: at most one of them; without any, `db_choice` decides."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--url",
        default=None,
        help="a PostgreSQL, as its superuser (postgresql://…; the password may come from PGPASSWORD "
        "or ~/.pgpass)",
    )
    _add_folder(place)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """`--data-dir` or `--config`, for commands that need the folder of an embedded cluster."""
    _add_folder(parser.add_mutually_exclusive_group())


def _add_folder(place: argparse._MutuallyExclusiveGroup) -> None:
    place.add_argument(
        "--data-dir",
        type=Path,
        default=None,
        help="the data folder of a demo, or a PostgreSQL data folder itself",
    )
    place.add_argument("--config", type=Path, default=None, help="the TOML file of `serve`")


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`: one JSON object on standard output in place of text."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_state(parser: argparse.ArgumentParser) -> None:
    """`--state-dir`, for commands that keep or read something outside of the database."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=None,
        help="where this tool and the server keep their state (default: the data folder; with --url "
        "alone: none)",
    )


def state_folder(options: argparse.Namespace) -> Path | None:
    """The folder that `add_state` means; None where none is known or it does not exist yet."""
    folder: Path | None = options.state_dir
    if folder is None and options.url is None:
        folder = _data_folder(options)
    return folder if folder is not None and folder.is_dir() else None


def _data_folder(options: argparse.Namespace) -> Path | None:
    if options.config is not None:
        return _config(options.config).paths.data_dir
    if options.data_dir is not None and (options.data_dir / "PG_VERSION").exists():
        return None  # A PostgreSQL's own folder is nobody else's place.
    from appliance.cli.demo_paths import demo_paths

    return demo_paths(options.data_dir).data_dir


def target_of(options: argparse.Namespace) -> Target:
    """The database that `add_target`'s options mean. Raises ConfigError."""
    from appliance.dbops.target import Target

    if options.url is not None:
        return Target(url=options.url)
    if options.config is not None:
        database = _config(options.config).database
        if database.url is not None and database.pooling == "transaction":
            raise ConfigError(
                f"{options.config}: database.url leads to a pooler (database.pooling), and an operator "
                "needs sessions of the server's own: name the server itself with --url",
                param="database.pooling",
            )
        if database.url is not None:
            return Target(url=database.url)
    return Target(directory=cluster_folder(options))


def cluster_folder(options: argparse.Namespace) -> Path:
    """The data folder of the embedded cluster that `--data-dir` or `--config` means.

    Raises ConfigError when the configuration names a database that is not the appliance's own.
    """
    if options.config is not None:
        config = _config(options.config)
        if config.database.url is not None:
            raise ConfigError(
                f"{options.config}: database.url names a PostgreSQL that has a keeper of its own; "
                "this command is for the one in the data folder"
            )
        return config.paths.postgres_dir
    if options.data_dir is not None and (options.data_dir / "PG_VERSION").exists():
        folder: Path = options.data_dir.absolute()
        return folder
    from appliance.cli.demo_paths import demo_paths

    return demo_paths(options.data_dir).postgres_dir


def _config(path: Path) -> Config:
    from appliance.credentials import load_as_service

    return load_as_service(path)
