"""Secrets that a service is handed as files, systemd.exec(5) `LoadCredential=`. Never: a log of one.

The files lie in `/etc/appliance/credentials`, beside the configuration, and only root reads them; the
service sees copies of its own in `$CREDENTIALS_DIRECTORY`, named `appliance_FILE`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from appliance.config import ApiKey, Config, load_config
from appliance.errors import ConfigError, NotReadable
from appliance.file_access import not_allowed

FOLDER_NAME = "credentials"
FOLDER_VARIABLE = "CREDENTIALS_DIRECTORY"
PREFIX = "appliance_"
DATABASE_URL = "database_url"
"""Takes the place of `database.url`, which may hold a password."""

API_KEYS = "api_keys.toml"
"""`[[api_keys]]` tables, added to those of `server.api_keys`."""

KNOWN = (DATABASE_URL, API_KEYS)


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api_keys: tuple[ApiKey, ...] = ()


def load_as_service(path: Path) -> Config:
    """The configuration in a file as a service has it, for a command that a person may have typed.

    Nobody hands a person copies: the files beside the configuration are read. Raises ConfigError, also
    when this user may not read them and nothing else says which database is meant.
    """
    config = load_config(path)
    if os.environ.get(FOLDER_VARIABLE):
        return with_credentials(config, os.environ)
    try:
        return with_secrets(config, path.absolute().parent / FOLDER_NAME)
    except NotReadable:
        if config.database.url is not None or os.path.exists(config.paths.postgres_dir):
            return config
        raise


def with_secrets(config: Config, folder: Path) -> Config:
    """The configuration with the files of the folder that services are handed copies of.

    Raises ConfigError that names the credential, and nothing of what is in it.
    """
    return _with(config, folder, prefix="")


def with_credentials(config: Config, environment: Mapping[str, str]) -> Config:
    """The configuration with what the service manager handed over; without any, as it is.

    Raises ConfigError that names the credential, and nothing of what is in it.
    """
    folder = environment.get(FOLDER_VARIABLE)
    return _with(config, Path(folder), prefix=PREFIX) if folder else config


def _with(config: Config, folder: Path, *, prefix: str) -> Config:
    replace = msgspec.structs.replace
    url = _read(folder, DATABASE_URL, prefix)
    if url is not None:
        try:
            config = replace(config, database=replace(config.database, url=url.strip()))
        except ValueError as error:
            raise ConfigError(f"credential {DATABASE_URL}: {error}") from error
    keys = _read(folder, API_KEYS, prefix)
    if keys is not None:
        added = _parse_keys(keys)
        whole = (*config.server.api_keys, *added)
        config = replace(config, server=replace(config.server, api_keys=whole))
    return config


def _parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of `api_keys.toml`. Raises ConfigError."""
    try:
        return msgspec.convert(tomllib.loads(text), _Keys).api_keys
    except msgspec.ValidationError as error:
        raise ConfigError(f"credential {API_KEYS}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        # Its text may quote the file.
        raise ConfigError(f"credential {API_KEYS}: is not TOML") from error


def _read(folder: Path, name: str, prefix: str) -> str | None:
    """A credential's text, None when there is none. Raises ConfigError when it cannot be read."""
    path = folder / f"{prefix}{name}"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path.is_symlink():
            raise ConfigError(f"credential {name}: is a link to nothing") from error
        return None
    except PermissionError as error:
        raise NotReadable(f"credential {name}: {not_allowed(folder)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"credential {name}: cannot be read: {type(error).__name__}") from error
