"""Secrets that a service is handed as files, systemd.exec(5) `LoadCredential=`. Never: a log of one.

The files lie in `/etc/appliance/credentials`, which only root reads; the service sees copies of its own
in `$CREDENTIALS_DIRECTORY`, named `appliance_FILE`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from appliance.config import ApiKey, Config, load_config
from appliance.errors import ConfigError

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
    """The configuration in a file as a service has it; raises ConfigError."""
    return with_credentials(load_config(path), os.environ)


def with_credentials(config: Config, environment: Mapping[str, str]) -> Config:
    """The configuration with what the service manager handed over; without any, as it is.

    Raises ConfigError that names the credential, and nothing of what is in it.
    """
    folder = environment.get(FOLDER_VARIABLE)
    if not folder:
        return config
    replace = msgspec.structs.replace
    url = read_credential(Path(folder), DATABASE_URL)
    if url is not None:
        config = replace(config, database=replace(config.database, url=url.strip()))
    keys = read_credential(Path(folder), API_KEYS)
    if keys is not None:
        added = parse_keys(keys)
        whole = (*config.server.api_keys, *added)
        config = replace(config, server=replace(config.server, api_keys=whole))
    return config


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of `api_keys.toml`. Raises ConfigError."""
    try:
        return msgspec.convert(tomllib.loads(text), _Keys).api_keys
    except msgspec.ValidationError as error:
        raise ConfigError(f"credential {API_KEYS}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        # Its text may quote the file.
        raise ConfigError(f"credential {API_KEYS}: is not TOML") from error


def read_credential(folder: Path, name: str) -> str | None:
    """A credential's text, None when there is none. Raises ConfigError when it cannot be read."""
    try:
        return (folder / f"{PREFIX}{name}").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"credential {name}: cannot be read: {type(error).__name__}") from error
