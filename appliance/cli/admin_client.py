"""Asks a running appliance over its admin socket. Never: starts one, or prints."""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import socket
from pathlib import Path
from typing import Any

from appliance.cli.db_choice import choose
from appliance.errors import ApplianceError, NotRunning

TIMEOUT_S = 60.0


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Answered(ApplianceError):
    """A failure as the appliance told it, under its own code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that say which appliance is meant; without them `db_choice` decides."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--config", type=Path, default=None, help="the TOML file of `serve`")
    place.add_argument("--data-dir", type=Path, default=None, help="the data folder of a demo")


def place_words(options: argparse.Namespace) -> str:
    """The options of `add_place` as they were given, for a command that is printed to be typed next."""
    given = (("--config", options.config), ("--data-dir", options.data_dir))
    return "".join(f" {name} {shlex.quote(str(path))}" for name, path in given if path is not None)


def ask(
    options: argparse.Namespace,
    method: str,
    path: str,
    body: object = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The answer's JSON. Raises NotRunning, or Answered with what the appliance refused."""
    return ask_socket(_socket_of(options), method, path, body, timeout_s=timeout_s)


def ask_socket(
    address: Path, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
) -> Any:
    """As `ask`, of the appliance whose admin socket is `address`."""
    connection = _UnixConnection(address, timeout_s)
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except TimeoutError as error:
        raise NotRunning(f"{address}: no answer within {timeout_s:g} s") from error
    except PermissionError as error:
        raise NotRunning(f"{address}: only the user that runs the appliance may ask it") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        if not isinstance(error, FileNotFoundError | ConnectionError):
            raise NotRunning(f"{address}: cannot be asked: {error}") from error
        raise NotRunning(f"no appliance runs here: nobody listens at {address}") from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise Answered(answer["error"]["code"], answer["error"]["message"])
    return answer


def _socket_of(options: argparse.Namespace) -> Path:
    choose(options)
    if options.config is not None:
        from appliance.config import load_config

        return load_config(options.config).paths.admin_socket
    from appliance.cli.demo_paths import demo_paths

    return demo_paths(options.data_dir).admin_socket
